//! Predicts a job before it runs: number of workers, duration of an epoch, cost, and alternatives, from
//! a profile of a few hundred records. All of it is arithmetic over [`crate::cost`]; the figures are as
//! good as the profile, the prices and the shape.
//!
//! [`plan`] is for functions on AWS and their alternatives, [`predict_local`] for the embedded service,
//! where workers, service, fetcher and trainer share one machine.

mod alternatives;
pub mod deployment;
mod job;
mod local;
mod measured;
#[cfg(test)]
pub(crate) mod tests;

use crate::cost::{CostBreakdown, EpochBound, EpochEstimate, Usd, quantity, ratio};

use serde::{Deserialize, Serialize};
use std::fmt;

pub use alternatives::{AlternativeKind, PlanAlternative};
pub use job::{DeliveredEpoch, PlanLimits, PlannedCachePoint, PlannedJob};
pub use local::{LocalBound, LocalCosts, LocalEstimate, LocalJob, predict_local};
pub use measured::{MeasuredSample, OpCost};

/// Alternatives within this part of each other count as equally fast.
const AS_FAST: f64 = 0.01;

/// Break-even of keeping a cache at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BreakEven {
    /// Index in [`PlannedJob::points`].
    pub point: usize,
    /// "cache after `resize`".
    pub name: String,
    /// Longest interval between two epochs that read it, in days, at which storing costs less than
    /// computing again; 0 if reading saves nothing.
    pub days: f64,
    pub stored_bytes: f64,
    /// Price of storing it for a day, and savings of one epoch that reads it.
    pub usd_per_day: Usd,
    pub saved_usd: Usd,
}

/// A plan: the prediction for a job on functions, and the alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPrediction {
    pub records: u64,
    pub batches: u64,
    pub splits: u64,
    /// Workers to hold: the fewest that make the epoch as short as the limits allow.
    pub workers: u32,
    /// Limit that prevents more, if any.
    pub limited_by: Option<String>,
    /// Seconds of one worker for a batch, and of the trainer for a step.
    pub worker_batch_s: f64,
    pub step_s: f64,
    /// Estimate for functions that compute every epoch: the subject of the plan.
    pub functions: EpochEstimate,
    /// Dollars of functions for a million records, divided as so many are: a small dataset has small splits.
    pub per_million: CostBreakdown,
    /// The functions and the other options, in this order. Costs are the mean per epoch over the job,
    /// including the accelerator.
    pub alternatives: Vec<PlanAlternative>,
    /// Indices in `alternatives`: of the least total cost, and of the least time (of equally fast ones the
    /// cheapest).
    pub cheapest: usize,
    pub fastest: usize,
    pub break_even: Vec<BreakEven>,
    /// Plain sentences, the most important first.
    pub verdicts: Vec<String>,
    /// Source of the prices and date of the last check.
    pub prices: String,
}

/// Plans a job on functions.
pub fn plan(measured: &MeasuredSample, job: &PlannedJob, limits: &PlanLimits) -> JobPrediction {
    let work = job.epoch_work(measured);
    let trainer = job.trainer();
    let desired = work.workers_needed(&job.shape, &trainer, u32::MAX);
    let (workers, limited_by) = limits.apply(desired, &job.shape, &job.prices);
    let functions = work.on_functions(workers, &job.shape, &trainer, &job.prices);
    let alternatives = alternatives::all(measured, job, limits, &work, &functions);
    let cheapest = least(&alternatives, |alternative| alternative.cost.total().0);
    let fastest_s = alternatives.iter().map(possible_s).fold(f64::INFINITY, f64::min);
    let fastest = least(&alternatives, |alternative| {
        if possible_s(alternative) <= fastest_s * (1.0 + AS_FAST) {
            alternative.cost.total().0
        } else {
            f64::INFINITY
        }
    });
    let million = PlannedJob { records: 1_000_000, splits: job.million_splits, ..job.clone() };
    let per_million = million.epoch_work(measured);
    let per_million = per_million.on_functions(workers, &job.shape, &trainer, &job.prices).cost;
    let break_even = alternatives::break_even(measured, job, &functions);
    let mut plan = JobPrediction {
        records: job.records,
        batches: work.batches,
        splits: work.splits,
        workers,
        limited_by,
        worker_batch_s: ratio(work.workers_s(1, &job.shape), work.batches as f64),
        step_s: quantity(job.step_s),
        functions,
        per_million,
        alternatives,
        cheapest,
        fastest,
        break_even,
        verdicts: Vec::new(),
        prices: format!("{} ({})", job.prices.source, job.prices.checked),
    };
    plan.verdicts = verdicts(&plan, job);
    plan.verdicts.extend(alternatives::instances_pay(job, &work, &plan.functions));
    plan.verdicts.extend(deployment::needs(plan.workers));
    plan.verdicts.extend(deployment::puts(plan.splits, plan.functions.seconds));
    plan.verdicts.extend(deployment::egress(&work, &job.prices));
    plan
}

/// Seconds of an epoch; infinite if it is impossible.
fn possible_s(alternative: &PlanAlternative) -> f64 {
    match alternative.refused {
        None => alternative.seconds,
        Some(_) => f64::INFINITY,
    }
}

/// Index of the first possible alternative with the least measure. Functions, which come first, are always possible.
fn least(alternatives: &[PlanAlternative], measure: impl Fn(&PlanAlternative) -> f64) -> usize {
    let possible = alternatives.iter().enumerate().filter(|(_, a)| a.refused.is_none());
    let least = possible.min_by(|(_, a), (_, b)| measure(a).total_cmp(&measure(b)));
    least.map_or(0, |(index, _)| index)
}

fn verdicts(plan: &JobPrediction, job: &PlannedJob) -> Vec<String> {
    let mut said = vec![bound_verdict(plan)];
    if let Some(limit) = &plan.limited_by {
        said.push(format!("{limit} keeps it at {} workers", plan.workers));
    }
    let functions_usd = plan.functions.cost.preprocessing().0;
    for alternative in &plan.alternatives {
        let preprocessing_usd = alternative.cost.preprocessing().0;
        let cheaper = 1.0 - ratio(preprocessing_usd, functions_usd);
        let as_fast = alternative.seconds <= plan.functions.seconds * (1.0 + AS_FAST);
        let substitute =
            matches!(alternative.kind, AlternativeKind::Instances | AlternativeKind::TrainerCpu);
        if alternative.refused.is_some() || !substitute || !as_fast || cheaper < AS_FAST {
            continue;
        }
        said.push(format!(
            "functions are not the cheapest: {} would be {:.0} % cheaper ({} instead of {} an epoch, the \
             accelerator aside)",
            alternative.name,
            1e2 * cheaper,
            alternative.cost.preprocessing(),
            plan.functions.cost.preprocessing(),
        ));
    }
    let best_cache = plan.break_even.iter().max_by(|a, b| a.days.total_cmp(&b.days));
    if let Some(BreakEven { name, days, usd_per_day, saved_usd, .. }) = best_cache {
        said.push(if *days > 0.0 {
            format!(
                "{name} pays if it is read again within {days:.1} days (saves {saved_usd} an epoch, keeping \
                 it costs {usd_per_day} a day)"
            )
        } else {
            format!("{name} never pays: reading it costs as much as computing it")
        });
    }
    if plan.functions.bound == EpochBound::WorkerNetwork && job.shape.memory_mb > SMALL_WORKER_MB {
        said.push(
            "workers wait for their network, not for a processor: less memory costs less and takes as long"
                .into(),
        );
    }
    said
}

/// Below this a worker lacks memory for two objects and its buffers, regardless of its processor.
const SMALL_WORKER_MB: u32 = 512;

fn bound_verdict(plan: &JobPrediction) -> String {
    let JobPrediction { workers, worker_batch_s, step_s, functions, .. } = plan;
    let waits = match functions.bound {
        EpochBound::Trainer => "the trainer never waits".to_owned(),
        bound => {
            let stall = 1.0 - ratio(functions.trainer_s, functions.seconds);
            format!("the trainer waits {:.0} % of the time for {bound}", 1e2 * stall)
        }
    };
    format!(
        "a worker makes a batch in {worker_batch_s:.3} s, a step takes {step_s:.3} s: {workers} workers, and {waits}"
    )
}

// A plan as text: at most 28 lines.

/// Most alternatives shown; a pipeline may have any number of points.
const MAX_ROWS: usize = 10;
/// Most sentences shown.
const MAX_VERDICTS: usize = 9;
/// Characters of the name column.
const NAME_WIDTH: usize = 28;

impl fmt::Display for JobPrediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobPrediction { records, batches, splits, prices, .. } = self;
        writeln!(
            f,
            "{records} records an epoch: {batches} batches in {splits} splits; prices: {prices}"
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<NAME_WIDTH$} {:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "an epoch on",
            "workers",
            "time",
            "compute",
            "requests",
            "storage",
            "transfer",
            "trainer",
            "total"
        )?;
        let marked = [self.cheapest, self.fastest];
        let rows = self.alternatives.iter().enumerate();
        // Marked rows are always shown.
        let shown =
            |(index, _): &(usize, &PlanAlternative)| *index < MAX_ROWS || marked.contains(index);
        for (index, alternative) in rows.filter(shown) {
            row(f, alternative)?;
            if index == self.cheapest {
                write!(f, "  cheapest")?;
            }
            if index == self.fastest {
                write!(f, "  fastest")?;
            }
            writeln!(f)?;
        }
        let CostBreakdown { compute, requests, storage, transfer, accelerator } = self.per_million;
        writeln!(
            f,
            "{:<NAME_WIDTH$} {:>7} {:>11} {compute:>9} {requests:>9} {storage:>9} {transfer:>9} \
             {accelerator:>9} {:>9}",
            "functions, a million records",
            "",
            "",
            self.per_million.total()
        )?;
        writeln!(f)?;
        for verdict in self.verdicts.iter().take(MAX_VERDICTS) {
            writeln!(f, "{verdict}")?;
        }
        write!(f, "Arithmetic from prices and a sample: not measured on AWS.")
    }
}

fn row(f: &mut fmt::Formatter<'_>, alternative: &PlanAlternative) -> fmt::Result {
    let PlanAlternative { name, workers, seconds, cost, refused, .. } = alternative;
    let name: String = name.chars().take(NAME_WIDTH).collect();
    if let Some(why) = refused {
        return write!(f, "{name:<NAME_WIDTH$} {:>7} {why}", "-");
    }
    let CostBreakdown { compute, requests, storage, transfer, accelerator } = *cost;
    let workers =
        if workers.fract() == 0.0 { format!("{workers}") } else { format!("{workers:.1}") };
    write!(
        f,
        "{name:<NAME_WIDTH$} {workers:>7} {:>11} {compute:>9} {requests:>9} {storage:>9} {transfer:>9} \
         {accelerator:>9} {:>9}",
        duration(*seconds),
        cost.total()
    )
}

/// `4.20 s`, `31 min 15 s`, `2 h 05 min`.
fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.2} s");
    }
    let whole = seconds.round() as u64;
    match whole / 3600 {
        0 => format!("{} min {:02} s", whole / 60, whole % 60),
        hours => format!("{hours} h {:02} min", whole % 3600 / 60),
    }
}
