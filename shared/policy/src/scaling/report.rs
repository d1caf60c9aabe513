//! What the policy sees: one report for about a hundred batches, averaged over the clients.

use serde::{Deserialize, Serialize};

/// How training and its workers did since the report before. A fetcher knows `step_s` and `stall_s` (the
/// time between handing out a batch and being asked for the next, and the time it let the trainer
/// wait); the rest is what the coordinator tells it at each poll, averaged over the polls.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Batches delivered so far in the run, over all clients and epochs. Orders the reports.
    pub batches: u64,
    /// Clients that train on this job in step with each other.
    pub clients: u32,
    /// Mean time the trainer itself takes for a batch, in seconds.
    pub step_s: f64,
    /// Mean time the trainer waited for a batch, in seconds; batch time is `step_s + stall_s`.
    pub stall_s: f64,
    /// Part of `stall_s` in which the batch was made and on its way to the trainer: more workers would not shorten it.
    pub fetch_stall_s: f64,
    /// Batches committed and not yet taken by the trainer, mean over the polls.
    pub queue_batches: f64,
    /// Batches handed out to workers or ready, and not delivered, now.
    pub ahead_batches: u64,
    /// Batches of one lease: what a worker makes before it asks again.
    pub lease_batches: u32,
    /// Splits that may be claimed now.
    pub claimable: u32,
    /// Share of the polls at which nothing might be claimed because the window was full.
    pub window_full: f64,
    /// Workers that hold a lease, mean over the polls.
    pub workers: f64,
    /// Workers invoked and not known to have ended, now.
    pub outstanding: u32,
    /// Invocations the platform refused since the report before.
    pub throttled: u32,
    /// What a worker spends on a batch, mean over the flushes of splits of this mode since the report before; none without
    /// one.
    pub worker: Option<WorkerTimes>,
    /// Changes when the execution mode does (compute, put, get): what was learnt about workers ends.
    pub mode: u32,
    /// When it was made, in seconds. Clocks may be wrong: for people only.
    pub at_s: f64,
}

/// Seconds of one worker for one batch, by what it does (see `WorkerCost` of the protocol).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTimes {
    pub source_s: f64,
    pub compute_s: f64,
    pub put_s: f64,
}

impl WorkerTimes {
    /// Seconds spent on what workers share: sources and stores.
    pub fn shared_s(&self) -> f64 {
        self.source_s + self.put_s
    }

    /// Seconds of one worker for one batch.
    pub fn total_s(&self) -> f64 {
        self.source_s + self.compute_s + self.put_s
    }
}

/// A day: no batch takes longer, so larger numbers are mistakes of a clock.
const LONGEST_S: f64 = 86_400.0;

impl Report {
    /// Mean time from one batch to the next, in seconds.
    pub fn batch_time_s(&self) -> f64 {
        self.step_s + self.stall_s
    }

    /// Batches of a lease.
    pub(super) fn lease(&self) -> f64 {
        f64::from(self.lease_batches.max(1))
    }

    /// Batches that so many workers have in hand at a time: what is seen at a count was made by it once these are delivered.
    pub(super) fn generation(&self, workers: f64) -> f64 {
        workers * self.lease()
    }

    /// What a worker spends on a batch, where it is known and makes sense.
    pub fn worker_times(&self) -> Option<WorkerTimes> {
        self.worker.filter(|times| {
            let parts = [times.source_s, times.compute_s, times.put_s];
            is_duration(times.total_s())
                && parts.iter().all(|part| (0.0..=LONGEST_S).contains(part))
        })
    }

    /// Seconds of one worker for one batch, where it is known and makes sense.
    pub fn worker_batch_s(&self) -> Option<f64> {
        self.worker_times().map(|times| times.total_s())
    }

    /// Whether its numbers can be true at all.
    pub fn is_plausible(&self) -> bool {
        let counts = [self.queue_batches, self.workers];
        is_duration(self.step_s)
            && (self.stall_s == 0.0 || is_duration(self.stall_s))
            && (0.0..=LONGEST_S).contains(&self.fetch_stall_s)
            && counts.iter().all(|count| (0.0..1e15).contains(count))
            && (0.0..=1.0).contains(&self.window_full)
    }
}

fn is_duration(seconds: f64) -> bool {
    // Below a nanosecond nothing is measured; a zero would make every count infinite.
    (1e-9..=LONGEST_S).contains(&seconds)
}
