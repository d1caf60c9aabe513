//! The cost of a run, by the arithmetic with which plans predict it.

use crate::service::stack_shape;
use gristmill_model::{
    CostBreakdown,
    splits::WorkerTimes,
    wire::{JobSpec, JobView, WorkProfile},
};
use gristmill_pipeline::Pipeline;
use gristmill_policy::placement::{PlacedEpoch, PlacedHost, place_deployed};
use gristmill_policy::plan::{DeliveredEpoch, MeasuredSample, PlanLimits, PlannedJob};
use gristmill_stream::{EpochReport, EpochTotals};

/// The basis of the prices.
pub(super) const BASIS: &str =
    "list prices of us-east-1, for the stack's workers, had this run been on AWS";

/// A run's job, as a plan would have it, with the work of its first splits.
pub(super) struct RunCost {
    job: PlannedJob,
    measured: MeasuredSample,
    /// Whether functions ran, and were measured.
    is_deployed: bool,
}

impl RunCost {
    pub fn new(
        pipeline: &Pipeline,
        view: &JobView,
        profile: &WorkProfile,
        is_deployed: bool,
    ) -> Self {
        let job = PlannedJob::running(pipeline, &view.spec, view.plan.as_ref(), profile);
        let job = PlannedJob { shape: stack_shape(), ..job };
        Self { job, measured: MeasuredSample::from(profile), is_deployed }
    }

    /// An epoch as a plan places it, for a trainer whose step takes `step_s` on `host`, with at most so many workers.
    pub fn predict(&self, step_s: f64, host: PlacedHost, spec: &JobSpec) -> PlacedEpoch {
        let job = PlannedJob { step_s, ..self.job.clone() };
        let limits = PlanLimits { max_workers: spec.most_workers(), ..PlanLimits::default() };
        place_deployed(&self.measured, &job, host, &limits, spec.settings.local_workers)
    }

    /// Dollars of an epoch.
    pub fn epoch(&self, epoch: &EpochReport) -> CostBreakdown {
        let EpochTotals { splits, local_splits, stored_bytes, times, .. } = epoch.known.totals;
        let delivered = DeliveredEpoch {
            mode: epoch.mode(),
            seconds: epoch.seconds,
            splits: splits.into(),
            local_splits: local_splits.into(),
            object_bytes: stored_bytes as f64,
            function_s: self.is_deployed.then(|| function_s(times)),
        };
        self.job.spent(&self.measured, &delivered)
    }
}

/// Seconds of functions that took `times`: they store objects while they compute the next.
fn function_s(WorkerTimes { source_ms, compute_ms, put_ms }: WorkerTimes) -> f64 {
    (source_ms + compute_ms).max(put_ms) as f64 / 1e3
}
