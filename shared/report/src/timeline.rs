//! The record of a run. Every part is optional, so that a page can be made from half a run.
//!
//! Times (`_s`) are seconds; `t_s` counts from the start of the run. Values that are not finite count as
//! missing.

use crate::{EpochStalls, WorkerShares, units};
use gristmill_model::{CostBreakdown, wire::CacheMode};

/// One run of a job, as recorded on its trainer's host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    pub job: TimelineJob,
    pub samples: Vec<TimelineSample>,
    pub decisions: Vec<TimelineDecision>,
    pub epochs: Vec<TimelineEpoch>,
    pub cost: Option<TimelineCost>,
}

/// The job that was run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimelineJob {
    pub name: String,
    pub pipeline: String,
    /// Operators in execution order.
    pub ops: Vec<String>,
    pub dataset: String,
    pub seed: Option<u64>,
    /// Elements of a batch.
    pub batch_size: Option<u32>,
    pub batches_per_epoch: Option<u64>,
}

/// Measurements at one time; means since the last sample. Sampled per second, per poll or per batch, as
/// available.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TimelineSample {
    pub t_s: f64,
    /// Batches delivered since the start of the run.
    pub batches: u64,
    /// Time from one batch to the next, as seen by the trainer: step plus stall.
    pub batch_time_s: Option<f64>,
    /// Part of `batch_time_s` spent waiting for a batch.
    pub stall_s: Option<f64>,
    /// Part of `batch_time_s` spent in the trainer's own step.
    pub step_s: Option<f64>,
    /// Workers that held a lease.
    pub workers: Option<f64>,
    /// Target number of workers.
    pub target: Option<u32>,
    /// Workers invoked and not known to have ended.
    pub outstanding: Option<u32>,
    /// Batches fetched or ready, and not taken.
    pub queue_batches: Option<f64>,
}

/// One change of the worker count.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimelineDecision {
    pub t_s: f64,
    /// Batches delivered when it was made.
    pub batch: u64,
    /// Target from then on.
    pub workers: u32,
    pub reason: String,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimelineEpoch {
    pub epoch: u32,
    pub mode: CacheMode,
    /// Reason for the mode, with the predicted numbers.
    pub reason: String,
    /// Start of the epoch. `None`: when the last one ended.
    pub start_s: Option<f64>,
    pub seconds: f64,
    pub batches: u64,
    pub rows: u64,
    /// Records skipped because they could not be read.
    pub skipped: u64,
    /// Time from the epoch's beginning to its first batch.
    pub first_batch_s: Option<f64>,
    pub workers: WorkerShares,
    pub cost_usd: Option<f64>,
    /// Attribution by [`attribute`](crate::attribute).
    pub stalls: Option<EpochStalls>,
}

/// Dollars of the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimelineCost {
    pub spent: CostBreakdown,
    /// Origin of the prices: "list prices of us-east-1, had this run been on AWS".
    pub basis: String,
}

impl TimelineCost {
    /// Items that cost anything, as (name, dollars).
    pub fn items(&self) -> Vec<(&'static str, f64)> {
        let items = self.spent.items().into_iter();
        items
            .map(|(name, usd)| (name, units::amount(usd.0)))
            .filter(|(_, usd)| *usd > 0.0)
            .collect()
    }

    /// Dollars of all items.
    pub fn total_usd(&self) -> f64 {
        self.items().iter().map(|(_, usd)| usd).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::Usd;

    #[test]
    fn the_total_is_the_sum_of_what_was_counted() {
        let cost = |compute: f64, requests: f64| TimelineCost {
            spent: CostBreakdown {
                compute: Usd(compute),
                requests: Usd(requests),
                ..CostBreakdown::default()
            },
            ..TimelineCost::default()
        };
        assert_eq!(cost(1.0, 0.25).items(), [("compute", 1.0), ("requests", 0.25)]);
        assert_eq!(cost(1.0, 0.25).total_usd(), 1.25);
        assert_eq!(cost(f64::NAN, 1.0).items(), [("requests", 1.0)]);
    }

    #[test]
    fn a_mode_is_written_in_words() {
        let modes = [
            (CacheMode::Profile, "profile"),
            (CacheMode::Compute, "compute"),
            (CacheMode::Put { point: 0 }, "put at point 0"),
            (CacheMode::Get { point: 12 }, "get at point 12"),
        ];
        for (mode, words) in modes {
            assert_eq!(mode.to_string(), words);
        }
    }
}
