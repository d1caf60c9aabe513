//! One epoch of a run.

use crate::{EpochTotals, Waits};
use gristmill_model::wire::CacheMode;

/// One epoch as its trainer experienced it.
#[derive(Debug, Clone)]
pub struct EpochReport {
    pub epoch: u32,
    pub elements: u64,
    pub batches: u64,
    pub skipped: u64,
    /// Last batches that no rank got.
    pub left_out: u64,
    /// Elements that workers produced.
    pub rows: u64,
    pub splits: u32,
    pub seconds: f64,
    pub waited_seconds: f64,
    pub workers_max: u32,
    pub time_to_first_batch_ms: f64,
    pub duplicates: u64,
    pub distinct: u64,
    /// The mode of `autocache` points, and its reason.
    pub mode: CacheMode,
    pub reason: Option<String>,
    /// Worker seconds for reading, computing and storing its splits.
    pub worker_seconds: [f64; 3],
    /// Stored bytes of its objects.
    pub stored_bytes: u64,
    /// Time that the trainer waited, by cause.
    pub waits: Waits,
    /// CPU time of worker processes while the epoch was delivered, in milliseconds.
    pub worker_cpu_ms: u64,
}

impl Default for EpochReport {
    fn default() -> Self {
        Self {
            epoch: 0,
            elements: 0,
            batches: 0,
            skipped: 0,
            left_out: 0,
            rows: 0,
            splits: 0,
            seconds: 0.0,
            waited_seconds: 0.0,
            workers_max: 0,
            time_to_first_batch_ms: 0.0,
            duplicates: 0,
            distinct: 0,
            // The mode of a pipeline without cache points.
            mode: CacheMode::Compute,
            reason: None,
            worker_seconds: [0.0; 3],
            stored_bytes: 0,
            waits: Waits::default(),
            worker_cpu_ms: 0,
        }
    }
}

impl EpochReport {
    /// Takes what the job knows of the epoch.
    pub(super) fn take_totals(&mut self, totals: &EpochTotals) {
        (self.rows, self.skipped, self.splits) = (totals.rows, totals.skipped, totals.splits);
        let [source, compute, put] = [totals.source_ms, totals.compute_ms, totals.put_ms];
        self.worker_seconds = [source, compute, put].map(|ms| ms as f64 / 1e3);
        (self.stored_bytes, self.waits) = (totals.stored_bytes, totals.waits);
    }

    /// All epochs as one. The profile of a job is of its first splits, so the mode is that of the first epoch.
    pub(super) fn whole(epochs: &[Self]) -> Self {
        let mut whole = epochs.first().cloned().unwrap_or_default();
        for epoch in epochs.iter().skip(1) {
            whole.seconds += epoch.seconds;
            whole.waited_seconds += epoch.waited_seconds;
            whole.waits += epoch.waits;
            whole.workers_max = whole.workers_max.max(epoch.workers_max);
            for (sum, seconds) in whole.worker_seconds.iter_mut().zip(epoch.worker_seconds) {
                *sum += seconds;
            }
        }
        whole
    }

    /// Mean time from one batch to the next.
    pub fn batch_time_ms(&self) -> f64 {
        self.seconds * 1e3 / (self.batches.max(1) as f64)
    }

    /// Part of the epoch that the trainer spent waiting, from 0 to 1.
    pub fn stall_fraction(&self) -> f64 {
        match self.seconds > 0.0 {
            true => (self.waited_seconds / self.seconds).min(1.0),
            false => 0.0,
        }
    }
}
