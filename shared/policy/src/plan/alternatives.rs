//! Alternatives to the planned functions: other worker counts, caches, instances, the trainer's own processors.

use super::{
    BreakEven, MeasuredSample, PlanLimits, PlannedCachePoint, PlannedJob, SMALL_WORKER_MB,
};
use crate::cost::{
    CostBreakdown, DAY_S, EpochBound, EpochEstimate, EpochWork, FunctionShape, HOUR_S, SplitOrigin,
    Usd, longest, quantity, ratio,
};
use gristmill_model::MB_PER_VCPU;
use serde::{Deserialize, Serialize};

/// Kind of an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlternativeKind {
    /// Functions compute every epoch.
    Functions,
    /// The first epochs are computed and stored at a point; the others read it.
    Cache,
    /// Instances run the workers.
    Instances,
    /// Functions on instances that AWS manages: the instances' price and a fee, and none for a function's time.
    ManagedInstances,
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
    /// Mean cost of an epoch over all the job's epochs. A cache's first epochs are computed, and its storage
    /// is shared among all.
    pub cost: CostBreakdown,
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
    all.extend(job.points.iter().map(|point| cached(measured, job, limits, functions, point)));
    let (own, managed) = (instances(job, work, functions), managed(job, work, functions));
    all.extend([own, managed]);
    all.push(trainer_cpu(measured, job, work));
    all
}

fn function_alternative(estimate: &EpochEstimate) -> PlanAlternative {
    let EpochEstimate { workers, seconds, bound, cost, .. } = *estimate;
    PlanAlternative {
        kind: AlternativeKind::Functions,
        name: format!("{workers} functions"),
        workers: f64::from(workers),
        seconds,
        bound,
        cost,
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
    point: &PlannedCachePoint,
) -> EpochEstimate {
    let trainer = job.trainer();
    let work = job.epoch_reading(measured, point);
    let workers = match work.origin {
        SplitOrigin::Cache => 0,
        _ => {
            let desired = work.workers_needed(&job.shape, &trainer, u32::MAX);
            limits.apply(desired, &job.shape, &job.prices).0
        }
    };
    work.on_functions(workers, &job.shape, &trainer, &job.prices)
}

fn cached(
    measured: &MeasuredSample,
    job: &PlannedJob,
    limits: &PlanLimits,
    functions: &EpochEstimate,
    point: &PlannedCachePoint,
) -> PlanAlternative {
    let read = reading(measured, job, limits, point);
    let of_all = job.with_cache(measured, point, functions.cost, read.cost);
    PlanAlternative {
        kind: AlternativeKind::Cache,
        name: point.name(measured),
        workers: f64::from(read.workers),
        seconds: read.seconds,
        bound: read.bound,
        cost: of_all * (1.0 / f64::from(job.epochs.max(1))),
        refused: point.refused(measured).map(str::to_owned),
    }
}

/// Processor seconds of instances that an epoch keeps busy. Assumes equally fast vCPUs: they are the same processors.
fn busy_s(job: &PlannedJob, work: &EpochWork) -> f64 {
    let bytes_per_s = quantity(job.prices.instance.network_mb_per_s_per_vcpu) * 1e6;
    let bytes = quantity(work.split.bytes_in) + quantity(work.split.bytes_out);
    // Workers overlap: a processor that one leaves idle is used by another.
    quantity(work.split.cpu_s).max(ratio(bytes, bytes_per_s)) * work.splits as f64
}

/// Dollars of instances that are busy all the time they are paid for.
fn fully_used(job: &PlannedJob, work: &EpochWork) -> Usd {
    Usd(busy_s(job, work) / HOUR_S * quantity(job.prices.instance.usd_per_vcpu_hour))
}

/// The same workers on instances that are paid for by the hour and used for part of it.
fn instances(job: &PlannedJob, work: &EpochWork, functions: &EpochEstimate) -> PlanAlternative {
    let instance = &job.prices.instance;
    let compute = Usd(ratio(fully_used(job, work).0, quantity(instance.utilisation)));
    let cost = CostBreakdown { compute, ..functions.cost };
    PlanAlternative {
        kind: AlternativeKind::Instances,
        name: format!("{} at {:.0} % utilisation", instance.name, 1e2 * instance.utilisation),
        workers: ratio(busy_s(job, work), functions.seconds),
        seconds: functions.seconds,
        bound: functions.bound,
        cost,
        refused: None,
    }
}

/// The same on Lambda Managed Instances. From public documentation, not tried.
fn managed(job: &PlannedJob, work: &EpochWork, functions: &EpochEstimate) -> PlanAlternative {
    let own = instances(job, work, functions);
    let compute = own.cost.compute * (1.0 + quantity(job.prices.instance.managed_fee));
    PlanAlternative {
        kind: AlternativeKind::ManagedInstances,
        name: format!("managed, {}", own.name),
        cost: CostBreakdown { compute, ..own.cost },
        ..own
    }
}

/// From which use on instances cost less than functions, and managed ones; none for work that computes nothing.
pub(super) fn instances_pay(
    job: &PlannedJob,
    work: &EpochWork,
    functions: &EpochEstimate,
) -> Option<String> {
    let from = ratio(fully_used(job, work).0, functions.cost.compute.0);
    let managed = from * (1.0 + quantity(job.prices.instance.managed_fee));
    let use_of = |from: f64| match from {
        from if from < 1.0 => format!("from {:.0} % use on", 1e2 * from),
        _ => "never".to_owned(),
    };
    (from > 0.0).then(|| {
        format!(
            "instances cost less than functions {}, Lambda Managed Instances {} (public documentation, not tried; \
             at least three, and slow to grow)",
            use_of(from),
            use_of(managed),
        )
    })
}

/// Local workers on the processors that training leaves idle, which are already paid for.
fn trainer_cpu(measured: &MeasuredSample, job: &PlannedJob, work: &EpochWork) -> PlanAlternative {
    let cores = quantity(job.spare_cores);
    let cpu_s = measured.cpu_s_per_record(0) * work.records as f64;
    let source_bytes = work.split.bytes_in * work.splits as f64;
    let trainer_s = work.batches as f64 * quantity(job.step_s);
    // Waits overlap: there may be more workers than processors.
    let (seconds, bound) = longest([
        (trainer_s, EpochBound::Trainer),
        (ratio(cpu_s, cores), EpochBound::Workers),
        (ratio(source_bytes, quantity(job.ingest_bytes_per_s)), EpochBound::TrainerNetwork),
    ]);
    let work = EpochWork { origin: SplitOrigin::TrainerHost, held_bytes: 0.0, ..*work };
    let cost = work.cost(seconds, &job.shape, &job.prices);
    PlanAlternative {
        kind: AlternativeKind::TrainerCpu,
        name: format!("the trainer's {cores} spare cores"),
        workers: cores,
        seconds,
        bound,
        cost,
        refused: (cores <= 0.0).then(|| "it has none to spare".to_owned()),
    }
}

pub(super) fn break_even(
    measured: &MeasuredSample,
    job: &PlannedJob,
    functions: &EpochEstimate,
) -> Vec<BreakEven> {
    let points = job.points.iter().enumerate();
    let usable = points.filter(|(_, point)| point.refused(measured).is_none());
    let of = |(index, point): (usize, &PlannedCachePoint)| {
        let read = reading(measured, job, &PlanLimits::default(), point);
        let stored_bytes = job.stored_bytes(measured, point);
        let puts = CostBreakdown { storage: Usd(0.0), ..job.storing(measured, point) };
        let saved_usd =
            functions.cost.preprocessing() - read.cost.preprocessing() - puts.preprocessing();
        let usd_per_day = job.prices.stored(stored_bytes, DAY_S);
        let days = ratio(saved_usd.0, usd_per_day.0);
        let name = point.name(measured);
        BreakEven { point: index, name, days, stored_bytes, usd_per_day, saved_usd }
    };
    usable.map(of).collect()
}
