//! Alternatives to the planned functions: other worker counts, caches, instances, the trainer's own processors.

use super::{
    BreakEven, MeasuredSample, PlanLimits, PlannedCachePoint, PlannedJob, SMALL_WORKER_MB,
};
use crate::cost::{
    BilledRequests, CostBreakdown, DAY_S, EpochBound, EpochEstimate, EpochWork, FunctionShape,
    HOUR_S, Usd, longest, quantity, ratio,
};
use gristmill_model::MB_PER_VCPU;
use serde::{Deserialize, Serialize};

/// Kind of an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlternativeKind {
    /// Functions compute every epoch.
    Functions,
    /// The first epoch is computed and stored at a point; the others read it.
    Cache,
    /// Instances run the workers.
    Instances,
    /// The trainer's host runs the workers.
    TrainerCpu,
}

/// One alternative.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanAlternative {
    pub kind: AlternativeKind,
    pub name: String,
    /// Workers of an epoch in its steady state; for instances, processors.
    pub workers: f64,
    /// Seconds of an epoch; for a cache, of one that reads it.
    pub seconds: f64,
    pub bound: EpochBound,
    /// Mean cost of an epoch over all the job's epochs. A cache's first epoch is computed, and its storage
    /// is shared among all.
    pub cost: CostBreakdown,
    pub per_million: CostBreakdown,
    /// Reason why it is impossible.
    pub refused: Option<String>,
}

/// All alternatives, functions first.
pub(super) fn all(
    measured: &MeasuredSample,
    job: &PlannedJob,
    limits: &PlanLimits,
    work: &EpochWork,
    functions: &EpochEstimate,
) -> Vec<PlanAlternative> {
    let on = |workers: u32| work.on_functions(workers, &job.shape, &job.trainer(), &job.prices);
    let chosen = functions.workers;
    let mut all = vec![function_alternative(functions)];
    if chosen > 1 {
        all.push(function_alternative(&on(chosen / 2)));
    }
    let more = chosen.saturating_mul(2).min(limits.max_workers.max(1));
    if more > chosen {
        all.push(function_alternative(&on(more)));
    }
    all.extend(smaller_functions(job, work, functions));
    all.extend(job.points.iter().map(|point| cached(measured, job, limits, functions, *point)));
    all.push(instances(job, work, functions));
    all.push(trainer_cpu(measured, job, work));
    all
}

fn function_alternative(estimate: &EpochEstimate) -> PlanAlternative {
    let EpochEstimate { workers, seconds, bound, cost, per_million, .. } = *estimate;
    PlanAlternative {
        kind: AlternativeKind::Functions,
        name: format!("{workers} functions"),
        workers: f64::from(workers),
        seconds,
        bound,
        cost,
        per_million,
        refused: None,
    }
}

/// Functions with just the processor they need, if workers are network-bound.
fn smaller_functions(
    job: &PlannedJob,
    work: &EpochWork,
    functions: &EpochEstimate,
) -> Option<PlanAlternative> {
    let busy = ratio(work.split.compute_s(&job.shape), work.split.network_s(&job.shape));
    let useful_mb = f64::from(job.shape.memory_mb).min(MB_PER_VCPU) * busy;
    let memory_mb = (useful_mb.ceil() as u32).max(SMALL_WORKER_MB);
    if work.split.bound(&job.shape) != EpochBound::WorkerNetwork || memory_mb >= job.shape.memory_mb
    {
        return None;
    }
    let shape = FunctionShape { memory_mb, ..job.shape };
    let estimate = work.on_functions(functions.workers, &shape, &job.trainer(), &job.prices);
    let name = format!("{} functions of {memory_mb} MB", functions.workers);
    Some(PlanAlternative { name, ..function_alternative(&estimate) })
}

/// An epoch that reads the cache at `point`, without the storage.
fn reading(
    measured: &MeasuredSample,
    job: &PlannedJob,
    limits: &PlanLimits,
    point: PlannedCachePoint,
) -> EpochEstimate {
    let trainer = job.trainer();
    if point.after_op + 1 >= measured.ops.len() {
        let work = job.epoch_delivered(measured);
        let (seconds, bound) = work.seconds(0, &job.shape, &trainer);
        let splits = work.splits as f64;
        let bytes = work.split.bytes_out * splits;
        let cost = CostBreakdown {
            requests: work.requests.usd(&job.prices) * splits,
            transfer: job.prices.transferred(0.0, bytes),
            accelerator: job.prices.accelerator(seconds),
            ..CostBreakdown::default()
        };
        return work.estimate(0, seconds, bound, &trainer, cost);
    }
    let work = job.epoch_after(measured, point.after_op);
    let desired = work.workers_needed(&job.shape, &trainer, u32::MAX);
    let (workers, _) = limits.apply(desired, &job.shape, &job.prices);
    work.on_functions(workers, &job.shape, &trainer, &job.prices)
}

/// Price of an epoch's puts to the cache; zero after the last operator, whose output is put anyway.
fn puts(
    measured: &MeasuredSample,
    job: &PlannedJob,
    work: &EpochWork,
    point: PlannedCachePoint,
) -> Usd {
    let puts = if point.after_op + 1 >= measured.ops.len() { 0.0 } else { work.splits as f64 };
    BilledRequests { puts, ..BilledRequests::default() }.usd(&job.prices)
}

fn stored_bytes(measured: &MeasuredSample, job: &PlannedJob, point: PlannedCachePoint) -> f64 {
    let per_record = if point.after_op + 1 >= measured.ops.len() {
        measured.delivered_bytes_per_record()
    } else {
        measured.bytes_per_record(point.after_op)
    };
    per_record * job.records as f64
}

fn name(measured: &MeasuredSample, point: PlannedCachePoint) -> String {
    let op = measured.ops.get(point.after_op).map_or("?", |op| op.op.as_str());
    format!("cache after `{op}`")
}

fn cached(
    measured: &MeasuredSample,
    job: &PlannedJob,
    limits: &PlanLimits,
    functions: &EpochEstimate,
    point: PlannedCachePoint,
) -> PlanAlternative {
    let work = job.epoch_work(measured);
    let read = reading(measured, job, limits, point);
    let epochs = f64::from(job.epochs.max(1));
    let storage = CostBreakdown {
        storage: job.prices.stored(stored_bytes(measured, job, point), job.kept_days * DAY_S),
        requests: puts(measured, job, &work, point),
        ..CostBreakdown::default()
    };
    let of_all = functions.cost + storage + read.cost * (epochs - 1.0);
    let refused = if point.after_op >= measured.ops.len() {
        Some("no such operator".to_owned())
    } else if point.random && !point.reuse_random {
        Some("random: `reuse_random: true` allows it".to_owned())
    } else {
        None
    };
    let cost = of_all * (1.0 / epochs);
    PlanAlternative {
        kind: AlternativeKind::Cache,
        name: name(measured, point),
        workers: f64::from(read.workers),
        seconds: read.seconds,
        bound: read.bound,
        cost,
        per_million: cost.per_million(work.records as f64),
        refused,
    }
}

/// The same workers on instances that are paid for by the hour and used for part of it. Assumes equally
/// fast vCPUs: they are the same processors.
fn instances(job: &PlannedJob, work: &EpochWork, functions: &EpochEstimate) -> PlanAlternative {
    let instance = &job.prices.instance;
    let splits = work.splits as f64;
    let bytes_per_s = quantity(instance.network_mb_per_s_per_vcpu) * 1e6;
    let bytes = quantity(work.split.bytes_in) + quantity(work.split.bytes_out);
    // Workers overlap: a processor that one leaves idle is used by another.
    let busy_s = quantity(work.split.cpu_s).max(ratio(bytes, bytes_per_s)) * splits;
    let paid_s = ratio(busy_s, quantity(instance.utilisation));
    let compute = Usd(paid_s / HOUR_S * quantity(instance.usd_per_vcpu_hour));
    let cost = CostBreakdown { compute, ..functions.cost };
    PlanAlternative {
        kind: AlternativeKind::Instances,
        name: format!("{} at {:.0} % utilisation", instance.name, 1e2 * instance.utilisation),
        workers: ratio(busy_s, functions.seconds),
        seconds: functions.seconds,
        bound: functions.bound,
        cost,
        per_million: cost.per_million(work.records as f64),
        refused: None,
    }
}

/// Local workers on the processors that training leaves idle, which are already paid for.
fn trainer_cpu(measured: &MeasuredSample, job: &PlannedJob, work: &EpochWork) -> PlanAlternative {
    let cores = quantity(job.spare_cores);
    let records = work.records as f64;
    let cpu_s = measured.cpu_s_per_record(0) * records;
    let source_bytes = work.split.bytes_in * work.splits as f64;
    let trainer_s = work.batches as f64 * quantity(job.step_s);
    // Waits overlap: there may be more workers than processors.
    let (seconds, bound) = longest([
        (trainer_s, EpochBound::Trainer),
        (ratio(cpu_s, cores), EpochBound::Workers),
        (ratio(source_bytes, quantity(job.ingest_bytes_per_s)), EpochBound::TrainerNetwork),
    ]);
    let cost = CostBreakdown {
        requests: BilledRequests::LOCAL_SPLIT.usd(&job.prices) * work.splits as f64,
        transfer: job.prices.transferred(source_bytes, 0.0),
        accelerator: job.prices.accelerator(seconds),
        ..CostBreakdown::default()
    };
    PlanAlternative {
        kind: AlternativeKind::TrainerCpu,
        name: format!("the trainer's {cores} spare cores"),
        workers: cores,
        seconds,
        bound,
        cost,
        per_million: cost.per_million(records),
        refused: (cores <= 0.0).then(|| "it has none to spare".to_owned()),
    }
}

pub(super) fn break_even(
    measured: &MeasuredSample,
    job: &PlannedJob,
    work: &EpochWork,
    functions: &EpochEstimate,
) -> Vec<BreakEven> {
    let usable = |(_, point): &(usize, &PlannedCachePoint)| {
        point.after_op < measured.ops.len() && (!point.random || point.reuse_random)
    };
    let points = job.points.iter().enumerate().filter(usable);
    let of = |(index, point): (usize, &PlannedCachePoint)| {
        let read = reading(measured, job, &PlanLimits::default(), *point);
        let stored_bytes = stored_bytes(measured, job, *point);
        let saved_usd = functions.cost.preprocessing()
            - read.cost.preprocessing()
            - puts(measured, job, work, *point);
        let usd_per_day = job.prices.stored(stored_bytes, DAY_S);
        let days = ratio(saved_usd.0, usd_per_day.0);
        let name = name(measured, *point);
        BreakEven { point: index, name, days, stored_bytes, usd_per_day, saved_usd }
    };
    points.map(of).collect()
}
