//! The data of a run's page: the causes of each epoch's waits, and the cost of the run on AWS.

use crate::service::stack_shape;
use gristmill_model::wire::{CacheMode, JobSpec, JobView, OpWork, WorkProfile};
use gristmill_pipeline::Pipeline;
use gristmill_policy::cost::{BilledRequests, FunctionShape, PriceList};
use gristmill_report::{
    EpochStalls, EpochWaits, OpSeconds, Timeline, TimelineCost, TimelineEpoch, TimelineJob,
    TimelineMode, WorkerShares, attribute,
};
use gristmill_stream::{EpochReport, RunObservations};

/// A job's pipeline and settings, and what its operators cost.
pub type CostedJob<'a> = (&'a Pipeline, &'a JobSpec, &'a WorkProfile);

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
pub fn stalls(job: CostedJob<'_>, epoch: &EpochReport) -> EpochStalls {
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

fn mode(mode: CacheMode) -> TimelineMode {
    match mode {
        CacheMode::Profile => TimelineMode::Profile,
        CacheMode::Compute => TimelineMode::Compute,
        CacheMode::Put { point } => TimelineMode::Put { point },
        CacheMode::Get { point } => TimelineMode::Get { point },
    }
}

/// The record of a whole run.
pub fn timeline(
    pipeline: &Pipeline,
    (view, dataset): (&JobView, &str),
    observed: &RunObservations,
    profile: &WorkProfile,
) -> Timeline {
    let (spec, known) = (&view.spec, (pipeline, &view.spec, profile));
    let (shape, prices) = (stack_shape(), PriceList::default());
    let mut start_s = 0.0;
    let mut total = TimelineCost { basis: BASIS.to_owned(), ..TimelineCost::default() };
    let epochs = observed.epochs.iter().map(|epoch| {
        let (compute_usd, requests_usd) = cost(epoch, &shape, &prices);
        *total.compute_usd.get_or_insert(0.0) += compute_usd;
        *total.requests_usd.get_or_insert(0.0) += requests_usd;
        let began_s = start_s;
        start_s += epoch.seconds;
        let totals = &epoch.known.totals;
        TimelineEpoch {
            epoch: totals.epoch,
            mode: mode(epoch.mode()),
            reason: epoch.reason().unwrap_or_default().to_owned(),
            start_s: Some(began_s),
            seconds: epoch.seconds,
            batches: epoch.batches,
            rows: epoch.elements,
            skipped: totals.skipped,
            first_batch_s: Some(epoch.time_to_first_batch_ms / 1e3),
            workers: shares(known, epoch),
            cost_usd: Some(compute_usd + requests_usd),
            stalls: Some(stalls(known, epoch)),
        }
    });
    let epochs = epochs.collect();
    let ops = pipeline.stages().iter().map(|stage| stage.op.name().to_owned());
    let records = view.plan.map(|plan| plan.records);
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

/// The basis of the prices.
const BASIS: &str = "list prices of us-east-1, for the stack's workers, had this run been on AWS";

/// Dollars of an epoch for its workers, and for its requests.
fn cost(epoch: &EpochReport, shape: &FunctionShape, prices: &PriceList) -> (f64, f64) {
    let [source_s, compute_s, put_s] = epoch.worker_seconds();
    // Objects are stored while the next split is computed.
    let worker_s = (source_s + compute_s).max(put_s);
    let split = if worker_s > 0.0 { BilledRequests::SPLIT } else { BilledRequests::CACHED_SPLIT };
    let requests_usd = split.usd(prices).0 * f64::from(epoch.known.totals.splits);
    (shape.usd_per_second(prices).0 * worker_s, requests_usd)
}
