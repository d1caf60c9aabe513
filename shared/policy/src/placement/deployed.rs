//! The placement of a job on what is deployed, by what its first splits took.

use super::{
    PlacedEpoch, PlacedHost, PlacementTerms,
    model::WorkerPart,
    place_epoch,
    search::{EQUAL, SLOWER, local_counts},
};
use crate::plan::{MeasuredSample, PlanLimits, PlannedJob};

/// An epoch that computes everything, with at most `most_local` of the local workers for which the host has idle
/// processors: as many as cost least among those that hardly slow the trainer. Order, memory and compression are as they
/// are.
pub fn place_deployed(
    measured: &MeasuredSample,
    job: &PlannedJob,
    host: PlacedHost,
    limits: &PlanLimits,
    most_local: u32,
) -> PlacedEpoch {
    let part = WorkerPart { ops: 0..measured.ops.len(), packed: None };
    let (work, host_work) = part.work(measured, job);
    let trainer = job.trainer();
    let terms = PlacementTerms { shape: job.shape, trainer, host, limits, prices: &job.prices };
    let counts = local_counts(&host).into_iter().filter(|local| *local <= most_local);
    let all: Vec<PlacedEpoch> =
        counts.map(|local| place_epoch(&work, &host_work, local, &terms)).collect();
    let fastest_s = all.iter().map(|one| one.batch_time_s).fold(f64::INFINITY, f64::min);
    let most_s = fastest_s.max(job.step_s) * (1.0 + SLOWER);
    let fast = || all.iter().filter(|one| one.batch_time_s <= most_s);
    let least_usd = fast().map(|one| one.cost.total().0).fold(f64::INFINITY, f64::min);
    // There is always one without local workers.
    let chosen = fast().find(|one| one.cost.total().0 <= least_usd * (1.0 + EQUAL));
    chosen.or(all.first()).copied().unwrap_or_else(|| place_epoch(&work, &host_work, 0, &terms))
}
