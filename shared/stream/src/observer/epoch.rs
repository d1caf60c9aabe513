//! One epoch of a run.

use crate::EpochTotals;
use gristmill_model::splits::WorkerTimes;
use gristmill_model::wire::{CacheMode, EpochCacheMode};
use serde::{Deserialize, Serialize};

/// One epoch of the job, as this fetcher saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochCounts {
    #[serde(flatten)]
    pub totals: EpochTotals,
    /// Last batches that no rank got.
    pub left_out: u64,
}

/// The part of an epoch after its first second, some of which the start takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteadyPart {
    pub elements: u64,
    pub seconds: f64,
}

/// One epoch as its trainer experienced it.
#[derive(Debug, Clone, Default)]
pub struct EpochReport {
    /// The job's totals of it.
    pub known: EpochCounts,
    pub elements: u64,
    pub batches: u64,
    pub seconds: f64,
    pub waited_seconds: f64,
    pub workers_max: u32,
    pub time_to_first_batch_ms: f64,
    /// Its part after its first second, if it was longer.
    pub steady: Option<SteadyPart>,
    pub duplicates: u64,
    pub distinct: u64,
    /// The use of the pipeline's `autocache` points, if it has any.
    pub caching: Option<EpochCacheMode>,
    /// CPU time of worker processes while the epoch was delivered, in milliseconds.
    pub worker_cpu_ms: u64,
}

impl EpochReport {
    /// The mode of `autocache` points.
    pub fn mode(&self) -> CacheMode {
        self.caching.as_ref().map_or(CacheMode::Compute, |caching| caching.mode)
    }

    /// The reason for the mode, if there was a choice.
    pub fn reason(&self) -> Option<&str> {
        self.caching.as_ref().map(|caching| &*caching.reason)
    }

    /// Worker seconds for reading, computing and storing its splits.
    pub fn worker_seconds(&self) -> [f64; 3] {
        let WorkerTimes { source_ms, compute_ms, put_ms } = self.known.totals.times;
        [source_ms, compute_ms, put_ms].map(|ms| ms as f64 / 1e3)
    }

    /// All epochs as one. The profile of a job is of its first splits, so the mode is that of the first epoch.
    pub fn whole(epochs: &[Self]) -> Self {
        let mut whole = epochs.first().cloned().unwrap_or_default();
        for epoch in epochs.iter().skip(1) {
            whole.seconds += epoch.seconds;
            whole.waited_seconds += epoch.waited_seconds;
            whole.workers_max = whole.workers_max.max(epoch.workers_max);
            let (sum, totals) = (&mut whole.known.totals, &epoch.known.totals);
            sum.waits += totals.waits;
            sum.times = sum.times.plus(totals.times);
        }
        whole
    }

    /// Mean time from one batch to the next.
    pub fn batch_time_ms(&self) -> f64 {
        self.seconds * 1e3 / (self.batches.max(1) as f64)
    }

    /// Part of the epoch that the trainer spent waiting, from 0 to 1.
    pub fn stall_fraction(&self) -> f64 {
        if self.seconds > 0.0 { (self.waited_seconds / self.seconds).min(1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeliveryWaits;
    use std::time::Duration;

    #[test]
    fn an_epoch_is_the_same_in_the_last_frame() {
        let waits =
            DeliveryWaits { unclaimed: Duration::from_millis(1500), ..DeliveryWaits::default() };
        let totals = EpochTotals { epoch: 3, splits: 4, waits, ..EpochTotals::default() };
        let counts = EpochCounts { totals, left_out: 2 };
        let json = serde_json::to_value(counts).unwrap();
        assert_eq!((&json["epoch"], &json["waits"]["unclaimed"]), (&3.into(), &1.5.into()));
        assert_eq!(serde_json::from_value::<EpochCounts>(json).unwrap(), counts);
    }
}
