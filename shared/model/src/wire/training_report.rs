//! The trainer's report: its meter builds it, the scaling policy decides from it. Times are in seconds.

use serde::{Deserialize, Serialize};

/// How training and its workers did since the report before, over about a hundred batches.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingReport {
    /// Batches delivered so far in the run, over all epochs: orders the reports.
    pub batches: u64,
    /// Mean time that the trainer itself took for a batch.
    pub step_s: f64,
    /// Mean time that it waited for one.
    pub stall_s: f64,
    /// Part of `stall_s` in which the batch was made and on its way: more workers would not shorten it.
    pub fetch_stall_s: f64,
    /// Batches fetched or ready, and not taken; mean over the polls.
    pub queue_batches: f64,
    /// Batches leased to workers or ready, and not delivered, at the latest poll.
    pub ahead_batches: u64,
    /// Batches of one lease.
    pub lease_batches: u32,
    /// Share of the polls at which the full window allowed no claim, 0 to 1.
    pub window_full: f64,
    /// Remote workers that held a lease, mean over the polls.
    pub remote_workers: f64,
    /// Local workers that held a lease, mean over the polls. Their splits count as ahead, and in no time below.
    pub local_workers: f64,
    /// Share of the batches that became ready meanwhile, in the trainer's cache mode, which local workers made: 0 to 1.
    pub local_share: f64,
    /// Processors of the trainer's host that were busy, with any work; 0 if that is not known.
    pub busy_cores: f64,
    /// Processors of the trainer's host; 0 if that is not known.
    pub host_cores: f64,
    /// Mean time that a remote worker waited for its source, for a batch. This and the next two are of the splits that
    /// became ready meanwhile in the trainer's cache mode; all are 0 if there was none.
    pub remote_source_s: f64,
    /// Mean time that it computed.
    pub remote_compute_s: f64,
    /// Mean time that it stored objects, beyond the two: it stores one split while it makes the next.
    pub remote_put_s: f64,
}

/// A day: no batch takes longer, so larger numbers are clock errors.
const LONGEST_S: f64 = 86_400.0;

impl TrainingReport {
    /// Mean time from one batch to the next.
    pub fn batch_time_s(&self) -> f64 {
        self.step_s + self.stall_s
    }

    /// Workers that held a lease.
    pub fn workers(&self) -> f64 {
        self.remote_workers + self.local_workers
    }

    /// Batches of a lease, at least 1.
    pub fn lease(&self) -> f64 {
        f64::from(self.lease_batches.max(1))
    }

    /// Batches that this many workers hold at a time. After as many deliveries, measurements are of the current count.
    pub fn generation(&self, workers: f64) -> f64 {
        workers * self.lease()
    }

    /// A remote worker's time for a batch at shared resources: sources and stores.
    pub fn remote_shared_s(&self) -> f64 {
        self.remote_source_s + self.remote_put_s
    }

    /// A remote worker's time for a batch, if it is known and plausible.
    pub fn remote_batch_s(&self) -> Option<f64> {
        let parts = [self.remote_source_s, self.remote_compute_s, self.remote_put_s];
        let total_s: f64 = parts.iter().sum();
        let is_plausible = parts.iter().all(|part| (0.0..=LONGEST_S).contains(part));
        (is_plausible && is_duration(total_s)).then_some(total_s)
    }

    /// Whether the numbers are possible.
    pub fn is_plausible(&self) -> bool {
        let counts = [
            self.queue_batches,
            self.remote_workers,
            self.local_workers,
            self.busy_cores,
            self.host_cores,
        ];
        is_duration(self.step_s)
            && (self.stall_s == 0.0 || is_duration(self.stall_s))
            && (0.0..=LONGEST_S).contains(&self.fetch_stall_s)
            && counts.iter().all(|count| (0.0..1e15).contains(count))
            && (0.0..=1.0).contains(&self.window_full)
            && (0.0..=1.0).contains(&self.local_share)
    }
}

fn is_duration(seconds: f64) -> bool {
    // Less than a nanosecond cannot be measured; zero would make every count infinite.
    (1e-9..=LONGEST_S).contains(&seconds)
}
