//! What happened in a run, as it is shown: samples while it trains, and at the end where each epoch's
//! waiting went and what it would have cost on AWS.

use super::{report::EpochReport, trainer::Trained};
use crate::args::{TrainArgs, Workers};
use gristmill_client::Snapshot;
use gristmill_model::wire::{CacheMode, JobView, OpWork, ScaleDecision, WorkProfile};
use gristmill_pipeline::Pipeline;
use gristmill_policy::cost::{FunctionShape, Prices, Requests};
use gristmill_report::{
    Cost, Decision, Epoch, Job, OpSeconds, Sample, Stalls, Timeline, Waits, WorkerShares, attribute,
};
use std::time::{Duration, Instant};

/// Between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// What is noted while a run goes on.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    pub samples: Vec<Sample>,
    pub decisions: Vec<Decision>,
}

/// Notes what is seen, now and then.
pub struct Recorder {
    started: Instant,
    sampled: Option<Instant>,
    /// Batches and seconds of waiting at the last sample.
    last: (u64, f64),
    recorded: Recorded,
}

impl Recorder {
    pub fn new(started: Instant) -> Self {
        Self { started, sampled: None, last: (0, 0.0), recorded: Recorded::default() }
    }

    /// Looks at the run: `batches` are taken so far, and `waited_s` seconds waited for them.
    pub fn look(&mut self, snapshot: &Snapshot, batches: u64, waited_s: f64) {
        let since = self.sampled.map(|sampled| sampled.elapsed());
        if since.is_some_and(|since| since < SAMPLE_EVERY) {
            return;
        }
        self.sampled = Some(Instant::now());
        let (batches_before, waited_before_s) =
            std::mem::replace(&mut self.last, (batches, waited_s));
        let taken = batches.saturating_sub(batches_before) as f64;
        let Snapshot { metrics, scale, active_workers, .. } = snapshot;
        // Without a batch there is nothing to take a mean of.
        let batch_time_s = since.filter(|_| taken > 0.0).map(|since| since.as_secs_f64() / taken);
        let stall_s = batch_time_s.map(|all_s| ((waited_s - waited_before_s) / taken).min(all_s));
        self.recorded.samples.push(Sample {
            t_s: self.started.elapsed().as_secs_f64(),
            batches,
            batch_time_s,
            stall_s,
            step_s: batch_time_s.zip(stall_s).map(|(all_s, stall_s)| all_s - stall_s),
            workers: Some(f64::from(*active_workers)),
            target: (scale.target > 0).then_some(scale.target),
            outstanding: Some(scale.outstanding.len()),
            queue_batches: Some(f64::from(metrics.queue_batches)),
            cost_usd: None,
        });
    }

    /// Decisions that are news.
    pub fn decided(&mut self, decisions: &[ScaleDecision]) {
        let t_s = Some(self.started.elapsed().as_secs_f64());
        self.recorded.decisions.extend(decisions.iter().map(|decision| Decision {
            t_s,
            batch: decision.batch,
            workers: decision.workers,
            reason: decision.reason.clone(),
        }));
    }

    pub fn finish(self) -> Recorded {
        self.recorded
    }
}

/// What workers spent an epoch's time on. The profile is of the first splits; what an epoch that reads a
/// point does not run has no part in it.
fn shares(args: &TrainArgs, epoch: &EpochReport, profile: &WorkProfile) -> WorkerShares {
    let [source_s, compute_s, put_s] = epoch.worker_seconds;
    let is_point = |op: &OpWork| op.op == "autocache";
    let from = match epoch.mode {
        CacheMode::Get { point } => {
            let points = profile.ops.iter().enumerate().filter(|(_, op)| is_point(op));
            points.map(|(i, _)| i + 1).nth(point as usize).unwrap_or(0)
        }
        _ => 0,
    };
    let ran: Vec<&OpWork> = profile.ops.iter().skip(from).filter(|op| op.active_us > 0).collect();
    let all_us: u64 = ran.iter().map(|op| op.active_us).sum();
    let seconds = |op: &OpWork| compute_s * op.active_us as f64 / all_us.max(1) as f64;
    // Parsing records is a part of computing; reading them is told apart.
    let name = |op: &OpWork| if op.op == "source" { "parse".into() } else { op.op.clone() };
    let ops = ran.iter().map(|op| OpSeconds { name: name(op), seconds: seconds(op) });
    WorkerShares {
        source_s,
        ops: ops.collect(),
        put_s,
        workers: Some(f64::from(epoch.workers_max)),
        // A number that was asked for is no limit.
        max_workers: (args.workers == Workers::Auto).then(|| args.most_workers()),
        source_growth: None,
    }
}

/// Where the waiting of an epoch went.
pub fn stalls(args: &TrainArgs, epoch: &EpochReport, profile: &WorkProfile) -> Stalls {
    let waits = Waits {
        total_s: epoch.waited_seconds,
        unclaimed_s: epoch.waits.unclaimed.as_secs_f64(),
        working_s: epoch.waits.working.as_secs_f64(),
        fetch_s: epoch.waits.fetch.as_secs_f64(),
        decode_s: epoch.waits.decode.as_secs_f64(),
        first_batch_s: Some(epoch.time_to_first_batch_ms / 1e3),
    };
    attribute(&waits, &shares(args, epoch, profile), epoch.seconds)
}

/// The record of a whole run.
pub fn timeline(
    args: &TrainArgs,
    pipeline: &Pipeline,
    (view, dataset): (&JobView, &str),
    trained: &Trained,
    profile: &WorkProfile,
) -> Timeline {
    let (shape, prices) = (FunctionShape::default(), Prices::default());
    let mut start_s = 0.0;
    let mut total = Cost { basis: BASIS.to_owned(), ..Cost::default() };
    let epochs = trained.epochs.iter().map(|epoch| {
        let (compute_usd, requests_usd) = cost(epoch, &shape, &prices);
        *total.compute_usd.get_or_insert(0.0) += compute_usd;
        *total.requests_usd.get_or_insert(0.0) += requests_usd;
        let began_s = start_s;
        start_s += epoch.seconds;
        Epoch {
            epoch: epoch.epoch,
            mode: epoch.mode.to_string().into(),
            reason: epoch.reason.clone().unwrap_or_default(),
            start_s: Some(began_s),
            seconds: epoch.seconds,
            batches: epoch.batches,
            rows: epoch.elements,
            skipped: epoch.skipped,
            first_batch_s: Some(epoch.time_to_first_batch_ms / 1e3),
            workers: shares(args, epoch, profile),
            cost_usd: Some(compute_usd + requests_usd),
            stalls: Some(stalls(args, epoch, profile)),
        }
    });
    let epochs = epochs.collect();
    let ops = pipeline.stages().iter().map(|stage| stage.op.name().to_owned());
    let records = view.plan.map(|plan| plan.records);
    Timeline {
        job: Job {
            name: view.job.to_string(),
            pipeline: pipeline.name().unwrap_or_default().to_owned(),
            ops: ops.collect(),
            dataset: dataset.to_owned(),
            seed: Some(args.seed),
            batch_size: Some(pipeline.batch_size()),
            batches_per_epoch: records.map(|n| n.div_ceil(u64::from(pipeline.batch_size()))),
            started: None,
        },
        seconds: None,
        samples: trained.recorded.samples.clone(),
        decisions: trained.recorded.decisions.clone(),
        epochs,
        cost: Some(total),
    }
}

/// What the prices are of.
const BASIS: &str = "list prices of us-east-1, for the stack's workers, had this run been on AWS";

/// Dollars of an epoch for its workers, and for its requests.
fn cost(epoch: &EpochReport, shape: &FunctionShape, prices: &Prices) -> (f64, f64) {
    let [source_s, compute_s, put_s] = epoch.worker_seconds;
    // Objects are stored while the next split is computed.
    let worker_s = (source_s + compute_s).max(put_s);
    let split = match worker_s > 0.0 {
        true => Requests::SPLIT,
        false => Requests::CACHED_SPLIT,
    };
    let requests_usd = split.usd(prices).0 * f64::from(epoch.splits);
    (shape.usd_per_second(prices).0 * worker_s, requests_usd)
}
