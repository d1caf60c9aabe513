//! The report of a run: a table for people, one JSON object for programs, and a page.
//!
//! A [`RunObserver`](gristmill_stream::RunObserver) counts a job's deliveries. At the end [`RunReport::new`] adds the service's data (the costs of
//! workers, the records left out) and writes everything.

mod service_facts;
mod spent;

use crate::{JobHandle, LeftOutFiles, ProgramFailure};
use gristmill_model::CostBreakdown;
use gristmill_model::wire::{
    CacheMode, JobSpec, JobStatus, JobView, OpWork, ScaleDecision, WorkProfile,
};
use gristmill_pipeline::Pipeline;
use gristmill_policy::placement::{PlacedEpoch, PlacedHost};
use gristmill_report::{
    EpochStalls, EpochWaits, OpSeconds, StallAdvice, Timeline, TimelineCost, TimelineEpoch,
    TimelineJob, WorkerShares, attribute,
};
use gristmill_stream::{EpochCounts, EpochReport, RankCounts, RankSteps, RunObservations};
use serde_json::{Value, json};
pub use service_facts::{DatasetDivision, ResourceUsage, SkippedRecords};
use spent::{BASIS, RunCost};
use std::{
    io::{self, Write},
    num::NonZeroU32,
    path::Path,
    time::Duration,
};

/// Time within which the service must answer.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Most skipped records that are shown; `status --skipped` lists all.
const SHOWN_SKIPPED: usize = 10;
/// Part of an epoch, in percent, that a wait must take to be explained in the table.
const WORTH_NAMING_PERCENT: f64 = 3.0;

/// A whole run.
pub struct RunReport {
    job: JobView,
    profile: WorkProfile,
    /// Dollars that the job has spent of its budget, over all its runs.
    spent_usd: Option<f64>,
    /// Processes that were killed on purpose.
    pub kills: u64,
    /// Steps of the ranks; of those of the fetcher, if it reports.
    pub ranks: RankSteps,
    /// Fetchers that are processes of their own, one for each host.
    pub hosts: Option<NonZeroU32>,
    observed: RunObservations,
    usage: ResourceUsage,
    left_out: SkippedRecords,
    /// Files of the dataset that are not read.
    files: LeftOutFiles,
    timeline: Timeline,
    cost: RunCost,
    /// The epoch that a plan predicts, if the workers were placed.
    predicted: Option<PlacedEpoch>,
    /// Why buckets have no effect, if they have none.
    idle_buckets: Option<String>,
}

impl RunReport {
    /// Combines the trainer's observations of `job` with the service's data. `before` is the usage at the start
    /// of the run.
    pub async fn new(
        job: &JobHandle,
        observed: RunObservations,
        before: &ResourceUsage,
    ) -> Result<Self, ProgramFailure> {
        let usage = ResourceUsage::now(&job.service).await.since(before);
        let left_out = if observed.epochs.iter().any(|epoch| epoch.known.totals.skipped > 0) {
            let records = SkippedRecords::read(&job.service, &job.view.job).await?;
            records.in_words_of(&job.folders)
        } else {
            SkippedRecords::default()
        };
        let JobStatus { profile, job: known, scale, .. } = job.status(TIMEOUT).await?;
        let pipeline = &observed.pipeline;
        let dataset = match &job.dataset {
            Some(dataset) => dataset.clone(),
            None => format!("dataset {}", known.dataset_version),
        };
        let cost = RunCost::new(pipeline, &known, &profile, job.service.local.is_none());
        let timeline = timeline((pipeline, &known, &profile), &dataset, &observed, &cost);
        let idle_buckets = idle_buckets(&known, pipeline);
        Ok(Self {
            job: known,
            profile,
            spent_usd: scale.spending.map(|ledger| ledger.spent_usd()),
            kills: 0,
            ranks: RankSteps::default(),
            hosts: None,
            usage,
            left_out,
            files: job.left_out.clone(),
            timeline,
            cost,
            predicted: None,
            idle_buckets,
            observed,
        })
    }

    /// Predicts, for a job whose workers were placed, an epoch by what its first splits took, for a trainer whose step takes
    /// `step` alone and keeps so many of the host's processors busy.
    pub fn predict(&mut self, step: Duration, cores: f64, trainer_cores: f64) {
        let host = PlacedHost { cores, trainer_cores, ..PlacedHost::default() };
        let spec = &self.job.spec;
        let predict = || self.cost.predict(step.as_secs_f64(), host, spec);
        self.predicted = spec.auto_placement.then(predict);
    }

    /// The mean epoch, as it was.
    fn realised(&self) -> PlacementOutcome {
        let epochs = &self.observed.epochs;
        let seconds: f64 = epochs.iter().map(|epoch| epoch.seconds).sum();
        let local = self.sum(|epoch| u64::from(epoch.known.totals.local_splits));
        PlacementOutcome {
            batch_time_s: seconds / self.sum(|epoch| epoch.batches).max(1) as f64,
            usd: self.spent().total().0 / epochs.len().max(1) as f64,
            share_local: local as f64 / self.splits().max(1) as f64,
        }
    }

    /// The plan beside what happened, if there is one.
    fn outcomes(&self) -> String {
        let Some(predicted) = &self.predicted else { return String::new() };
        let text = |outcome: PlacementOutcome| {
            let PlacementOutcome { batch_time_s, usd, share_local } = outcome;
            let (time_ms, percent) = (1e3 * batch_time_s, 1e2 * share_local);
            format!("{time_ms:.1} ms a batch, ${usd:.6} an epoch, {percent:.0} % of it local")
        };
        let PlacedEpoch { local, remote, .. } = predicted;
        format!(
            "predicted with {local} local and {remote} remote workers: {}; realised: {}\n",
            text(PlacementOutcome::from(predicted)),
            text(self.realised())
        )
    }

    /// Checks, before a run, that a page can be written to `path`; fails with [`ProgramFailure::Usage`].
    pub fn check_page(path: &Path) -> Result<(), ProgramFailure> {
        let cannot = |why: &str| {
            ProgramFailure::usage(format!("--report {} cannot be written: {why}", path.display()))
        };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        match (path.is_dir(), dir.unwrap_or(Path::new(".")).is_dir()) {
            (true, _) => Err(cannot("it is a directory")),
            (false, true) => Ok(()),
            (false, false) => Err(cannot("its directory does not exist")),
        }
    }

    /// Writes the page that shows the run.
    pub fn write_page(&self, path: &Path) -> Result<(), ProgramFailure> {
        std::fs::write(path, gristmill_report::render(&self.timeline)).map_err(|error| {
            ProgramFailure::failed(format!(
                "the report cannot be written to {}: {error}",
                path.display()
            ))
        })
    }

    /// Prints warnings to standard error, and the table to `out`. With `json`, prints the object as one line to
    /// `out` and the table to standard error.
    pub fn print(&self, program: &str, json: bool, out: &mut dyn Write) -> io::Result<()> {
        for warning in self.warnings() {
            crate::complain!("{program}: warning: {warning}");
        }
        let table = self.table();
        if json {
            crate::write_stderr(format_args!("{table}"));
            writeln!(out, "{}", self.json())?;
        } else {
            out.write_all(table.as_bytes())?
        }
        out.flush()
    }

    /// Advice to the user, one line each.
    fn warnings(&self) -> Vec<String> {
        let empty = self.observed.empty.as_ref();
        let empty = empty.map(|why| format!("no batch was delivered: {why}"));
        empty.into_iter().chain(self.idle_buckets.clone()).collect()
    }

    fn sum(&self, field: impl Fn(&EpochReport) -> u64) -> u64 {
        self.observed.epochs.iter().map(field).sum()
    }

    /// Elements that did not arrive; none if the run did not begin with the job.
    fn lost(&self) -> Option<u64> {
        let (seen, skipped) = (self.sum(|e| e.distinct), self.sum(|e| e.known.totals.skipped));
        let arrived = seen + skipped + self.observed.dropped;
        self.observed.elements_expected.map(|expected| expected.saturating_sub(arrived))
    }

    /// Each epoch of the run, in order.
    pub fn epochs(&self) -> &[EpochReport] {
        &self.observed.epochs
    }

    /// Elements delivered in all epochs.
    pub fn elements(&self) -> u64 {
        self.sum(|epoch| epoch.elements)
    }

    /// Committed splits.
    pub fn splits(&self) -> u64 {
        self.sum(|epoch| u64::from(epoch.known.totals.splits))
    }

    /// CPU and requests of the run.
    pub fn usage(&self) -> &ResourceUsage {
        &self.usage
    }

    /// Dollars of all epochs.
    fn spent(&self) -> CostBreakdown {
        self.observed.epochs.iter().map(|epoch| self.cost.epoch(epoch)).sum()
    }

    /// Table writes for each committed split.
    pub fn writes_per_split(&self) -> Option<f64> {
        let writes = self.usage.table_writes()?;
        Some(rounded(writes as f64 / self.splits().max(1) as f64, 4))
    }

    fn epoch_json(&self, epoch: &EpochReport) -> Value {
        let [source, compute, put] = epoch.worker_seconds();
        let EpochCounts { totals, left_out } = &epoch.known;
        json!({
            "epoch": totals.epoch,
            "mode": epoch.mode().name(),
            "reason": epoch.reason(),
            "elements": epoch.elements,
            "batches": epoch.batches,
            "skipped": totals.skipped,
            "left_out": left_out,
            "seconds": rounded(epoch.seconds, 3),
            "batch_time_ms": rounded(epoch.batch_time_ms(), 3),
            "stall_fraction": rounded(epoch.stall_fraction(), 4),
            "workers_max": epoch.workers_max,
            "stored_bytes": totals.stored_bytes,
            "local_splits": totals.local_splits,
            "cost": self.cost.epoch(epoch),
            "worker_seconds": {
                "source": rounded(source, 3),
                "compute": rounded(compute, 3),
                "put": rounded(put, 3),
            },
            "stalls": stalls_json(&self.stalls(epoch)),
            "worker_cpu_ms": self.usage.local.then_some(epoch.worker_cpu_ms),
            "time_to_first_batch_ms": rounded(epoch.time_to_first_batch_ms, 1),
        })
    }

    fn json(&self) -> Value {
        let per_sample = |ms: u64| rounded(ms as f64 / self.elements().max(1) as f64, 4);
        let epochs = self.observed.epochs.iter().map(|epoch| self.epoch_json(epoch));
        let epochs: Vec<Value> = epochs.collect();
        let scaling: Vec<Value> =
            self.observed.scaling.iter().map(|decision| json!(decision)).collect();
        let mut report = json!({
            "job": self.job.job,
            "seed": self.job.spec.seed,
            "pipeline": self.observed.pipeline.operator_names(),
            "epochs": epochs,
            "elements_expected": self.observed.elements_expected,
            "elements_delivered": self.elements(),
            "skipped": self.sum(|epoch| epoch.known.totals.skipped),
            "skipped_records": self.left_out.as_json(),
            "quarantine": self.left_out.quarantine_json(),
            "files_left_out": self.files.as_json(),
            "duplicates": self.sum(|epoch| epoch.duplicates),
            "repeated_batches": self.observed.repeated_batches,
            "recomputed_splits": self.observed.recomputed_splits,
            "lost": self.lost(),
            "splits": self.splits(),
            "writes_per_split": self.writes_per_split(),
            "requests": self.usage.requests_json(),
            "cost": self.spent(),
            "kills": self.kills,
            "scaling": scaling,
            "metrics": self.observed.metrics,
            "cpu_ms_per_sample": {
                "worker": per_sample(self.usage.worker_cpu_ms),
                "fetcher": per_sample(self.usage.fetcher_cpu_ms),
                "control": per_sample(self.usage.control_cpu_ms),
            },
            "began": self.observed.began,
            "steps": self.ranks.iter().map(|rank| rank.steps).collect::<Vec<_>>(),
            "runs": self.ranks.runs(),
            "ranks": self.ranks.iter().map(|rank| self.rank_json(rank)).collect::<Vec<_>>(),
            "tail_repeats": self.ranks.iter().map(|rank| rank.repeats).sum::<u64>(),
            "left_out_batches": self.observed.left_out_batches,
            "spent_usd": self.spent_usd,
            "batches_blake3": self.observed.batches_blake3,
            "empty": self.observed.empty,
        });
        if let (true, Some(report)) = (self.job.spec.auto_placement, report.as_object_mut()) {
            report.insert("placement".to_owned(), placement_json(&self.observed.scaling));
        }
        if let (Some(predicted), Some(report)) = (&self.predicted, report.as_object_mut()) {
            report.insert("predicted".to_owned(), outcome_json(&PlacementOutcome::from(predicted)));
            report.insert("realised".to_owned(), outcome_json(&self.realised()));
        }
        if let (Some(hosts), Some(report)) = (self.hosts, report.as_object_mut()) {
            report.extend(self.hosts_json(hosts));
        }
        report
    }

    /// Causes of the waits in an epoch, or in all of them as one.
    fn stalls(&self, epoch: &EpochReport) -> EpochStalls {
        stalls((&self.observed.pipeline, &self.job.spec, &self.profile), epoch)
    }

    /// A rank, and the causes of its waits in all epochs.
    fn rank_json(&self, rank: &RankCounts) -> Value {
        let mut whole = EpochReport::whole(&self.observed.epochs);
        if let Some(waits) = rank.waits {
            whole.waited_seconds = waits.total().as_secs_f64();
            whole.known.totals.waits = waits;
        }
        let mut json = json!(rank);
        json["stalls"] = stalls_json(&self.stalls(&whole));
        json
    }

    /// The hosts, and the bytes of chunks that their fetchers read and workers wrote.
    fn hosts_json(&self, hosts: NonZeroU32) -> serde_json::Map<String, Value> {
        let bytes = self.usage.chunk_bytes();
        let ratio = bytes.filter(|(_, written)| *written > 0);
        let ratio = ratio.map(|(read, written)| rounded(read as f64 / written as f64, 4));
        [
            ("hosts", json!(hosts)),
            ("fetched_bytes", json!(bytes.map(|(read, _)| read))),
            ("chunk_bytes", json!(bytes.map(|(_, written)| written))),
            ("fetched_ratio", json!(ratio)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
    }

    fn table(&self) -> String {
        let mut text = String::from(
            "epoch  elements  batches  seconds  batch time  stall  workers  first batch  mode\n",
        );
        for epoch in &self.observed.epochs {
            text += &format!(
                "{:>5}  {:>8}  {:>7}  {:>7.2}  {:>7.1} ms  {:>3.0} %  {:>7}  {:>8.0} ms  {}\n",
                epoch.known.totals.epoch,
                epoch.elements,
                epoch.batches,
                epoch.seconds,
                epoch.batch_time_ms(),
                epoch.stall_fraction() * 100.0,
                epoch.workers_max,
                epoch.time_to_first_batch_ms,
                epoch.mode().name()
            );
        }
        text += &self.modes();
        for epoch in &self.observed.epochs {
            let stalls = self.stalls(epoch);
            if stalls.percent >= WORTH_NAMING_PERCENT {
                let number = epoch.known.totals.epoch;
                text += &format!("epoch {number} {stalls}; {}\n", stalls.advice);
            }
        }
        let kills = match self.kills {
            0 => String::new(),
            kills => format!(", {kills} processes killed"),
        };
        let recomputed = match self.observed.recomputed_splits {
            0 => String::new(),
            1 => ", 1 split computed again: its object was missing or damaged".to_owned(),
            splits => {
                format!(", {splits} splits computed again: their objects were missing or damaged")
            }
        };
        text += &self.left_out.as_text(SHOWN_SKIPPED);
        if let Some((spent, budget)) = self.spent_usd.zip(self.job.spec.budget) {
            text += &format!("spent ${spent:.4} of ${}\n", budget.cap_usd());
        }
        text += &self.outcomes();
        let expected = self.observed.elements_expected;
        let expected = expected.map_or(String::new(), |expected| format!(" of {expected}"));
        let lost = self.lost().map_or(String::new(), |lost| format!("{lost} lost, "));
        text += &format!(
            "delivered {}{} elements: {} skipped, {lost}{} twice{kills}{recomputed}\nbatches {}\n",
            self.sum(|epoch| epoch.distinct),
            expected,
            self.sum(|epoch| epoch.known.totals.skipped),
            self.sum(|epoch| epoch.duplicates),
            self.observed.batches_blake3
        );
        text
    }

    /// The reason for each cache mode, if there was a choice.
    fn modes(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for epoch in &self.observed.epochs {
            let (number, mode) = (epoch.known.totals.epoch, epoch.mode());
            let Some(reason) = epoch.reason().filter(|_| last != Some(mode)) else {
                continue;
            };
            text += &format!("epoch {number} {}: {reason}\n", mode.name());
            last = Some(mode);
        }
        text
    }

    /// Fails a run that lost an element or delivered one twice.
    pub fn check(&self) -> Result<(), ProgramFailure> {
        match (self.lost().unwrap_or(0), self.sum(|epoch| epoch.duplicates)) {
            (0, 0) => Ok(()),
            (lost, twice) => {
                Err(ProgramFailure::failed(format!("{lost} records lost, {twice} delivered twice")))
            }
        }
    }
}

/// Why buckets have no effect on the job, if they have none.
fn idle_buckets(job: &JobView, pipeline: &Pipeline) -> Option<String> {
    let plan = job.plan?;
    let division = DatasetDivision {
        records: plan.records / u64::from(plan.copies.max(1)),
        files: u64::from(job.n_files),
        split_records: u64::from(plan.split_records),
        is_given: job.spec.settings.split_batches.is_some(),
    };
    division.idle_buckets(pipeline)
}

/// The parts of a wait in seconds, and the remedies.
fn stalls_json(stalls: &EpochStalls) -> Value {
    let part = |part: &gristmill_report::StallPart| {
        (part.cause.to_string(), rounded(part.seconds, 3).into())
    };
    json!({
        "seconds": rounded(stalls.total_s, 3),
        "parts": stalls.parts.iter().map(part).collect::<serde_json::Map<String, Value>>(),
        "advice": stalls.advice.to_string(),
        "more_workers_help": matches!(
            stalls.advice,
            StallAdvice::MoreWorkers { .. } | StallAdvice::AtMaximum { .. }
        ),
    })
}

/// An epoch as it was predicted, or was.
struct PlacementOutcome {
    /// Seconds from one batch to the next.
    batch_time_s: f64,
    /// Dollars of the epoch.
    usd: f64,
    /// Share of the batches, or of the splits, that local workers make.
    share_local: f64,
}

impl From<&PlacedEpoch> for PlacementOutcome {
    fn from(predicted: &PlacedEpoch) -> Self {
        let PlacedEpoch { batch_time_s, share_local, cost, .. } = *predicted;
        Self { batch_time_s, usd: cost.total().0, share_local }
    }
}

fn outcome_json(outcome: &PlacementOutcome) -> Value {
    let PlacementOutcome { batch_time_s, usd, share_local } = outcome;
    json!({
        "batch_time_s": rounded(*batch_time_s, 6),
        "usd": usd,
        "share_local": rounded(*share_local, 4),
    })
}

/// The decisions on where batches are made.
fn placement_json(decisions: &[ScaleDecision]) -> Value {
    let of = |ScaleDecision { batch, workers, local, reason }: &ScaleDecision| {
        let local = local.unwrap_or(0);
        json!({ "batch": batch, "local": local, "remote": workers, "reason": reason })
    };
    decisions.iter().map(of).collect()
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

// The data of a run's page: the causes of each epoch's waits, and the cost of the run on AWS.

/// A job's pipeline and settings, and what its operators cost.
type CostedJob<'a> = (&'a Pipeline, &'a JobSpec, &'a WorkProfile);

/// The work of an epoch's workers, by operator. The profile covers the first splits; operators before the
/// cache point that the epoch reads are left out.
fn shares((pipeline, spec, profile): CostedJob<'_>, epoch: &EpochReport) -> WorkerShares {
    let [source_s, compute_s, put_s] = epoch.worker_seconds();
    let read_point = match epoch.mode() {
        CacheMode::Get { point } => pipeline.cache_points().into_iter().nth(point as usize),
        _ => None,
    };
    let is_read = |op: &OpWork| {
        let stage = op.stage.map(|stage| stage as usize);
        read_point.as_ref().is_some_and(|point| stage == Some(point.stage))
    };
    let from = profile.ops.iter().position(is_read).map_or(0, |point| point + 1);
    let ran: Vec<&OpWork> = profile.ops.iter().skip(from).filter(|op| op.active_us > 0).collect();
    let all_us: u64 = ran.iter().map(|op| op.active_us).sum();
    let seconds = |op: &OpWork| compute_s * op.active_us as f64 / all_us.max(1) as f64;
    // Parsing records is part of computing; reading them is not.
    let name = |op: &OpWork| if op.op == "source" { "parse".into() } else { op.op.clone() };
    let ops = ran.iter().map(|op| OpSeconds { name: name(op), seconds: seconds(op) });
    WorkerShares {
        source_s,
        ops: ops.collect(),
        put_s,
        workers: Some(f64::from(epoch.workers_max)),
        // A fixed number is no limit.
        max_workers: spec.autoscale.then_some(spec.workers),
    }
}

/// Causes of an epoch's waits.
fn stalls(job: CostedJob<'_>, epoch: &EpochReport) -> EpochStalls {
    let known = epoch.known.totals.waits;
    let waits = EpochWaits {
        total_s: epoch.waited_seconds,
        unclaimed_s: known.unclaimed.as_secs_f64(),
        working_s: known.working.as_secs_f64(),
        fetch_s: known.fetch.as_secs_f64(),
        decode_s: known.decode.as_secs_f64(),
        first_batch_s: Some(epoch.time_to_first_batch_ms / 1e3),
    };
    attribute(&waits, &shares(job, epoch), epoch.seconds)
}

/// The record of a whole run.
fn timeline(
    (pipeline, view, profile): (&Pipeline, &JobView, &WorkProfile),
    dataset: &str,
    observed: &RunObservations,
    cost: &RunCost,
) -> Timeline {
    let (spec, known) = (&view.spec, (pipeline, &view.spec, profile));
    let mut start_s = 0.0;
    let mut total = TimelineCost { basis: BASIS.to_owned(), ..TimelineCost::default() };
    let epochs = observed.epochs.iter().map(|epoch| {
        let spent = cost.epoch(epoch);
        total.spent += spent;
        let began_s = start_s;
        start_s += epoch.seconds;
        let totals = &epoch.known.totals;
        TimelineEpoch {
            epoch: totals.epoch,
            mode: epoch.mode(),
            reason: epoch.reason().unwrap_or_default().to_owned(),
            start_s: Some(began_s),
            seconds: epoch.seconds,
            batches: epoch.batches,
            rows: epoch.elements,
            skipped: totals.skipped,
            first_batch_s: Some(epoch.time_to_first_batch_ms / 1e3),
            workers: shares(known, epoch),
            cost_usd: Some(spent.total().0),
            stalls: Some(stalls(known, epoch)),
        }
    });
    let epochs = epochs.collect();
    let ops = pipeline.stages().iter().map(|stage| stage.op.name().to_owned());
    let has_sizes = pipeline.batching().has_sizes();
    let records = view.plan.filter(|_| !has_sizes).map(|plan| plan.records);
    Timeline {
        job: TimelineJob {
            name: view.job.to_string(),
            pipeline: pipeline.name().unwrap_or_default().to_owned(),
            ops: ops.collect(),
            dataset: dataset.to_owned(),
            seed: Some(spec.seed),
            batch_size: Some(pipeline.batch_size()),
            batches_per_epoch: records.map(|n| n.div_ceil(u64::from(pipeline.batch_size()))),
        },
        samples: observed.recorded.samples.clone(),
        decisions: observed.recorded.decisions.clone(),
        epochs,
        cost: Some(total),
    }
}
