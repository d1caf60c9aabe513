//! The policy's input: one report for about a hundred batches, averaged over the clients.

use serde::{Deserialize, Serialize};

/// Progress of training and its workers since the last report. The client measures `step_s` and `stall_s` (the time
/// between handing out a batch and the next request, and the time the trainer waited for it); the rest is
/// reported by the coordinator at each poll, averaged over the polls.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Batches delivered so far in the run, over all clients and epochs. Orders the reports.
    pub batches: u64,
    /// Clients that train in lockstep on this job.
    pub clients: u32,
    /// Mean time of the trainer's own step, in seconds.
    pub step_s: f64,
    /// Mean wait of the trainer per batch, in seconds; batch time is `step_s + stall_s`.
    pub stall_s: f64,
    /// Part of `stall_s` in which the batch was made and in transit: more workers would not shorten it.
    pub fetch_stall_s: f64,
    /// Batches committed and not yet taken by the trainer; mean over the polls.
    pub queue_batches: f64,
    /// Batches handed out or ready, and not delivered, at the time of the report.
    pub ahead_batches: u64,
    /// Batches of one lease.
    pub lease_batches: u32,
    /// Splits that may be claimed at the time of the report.
    pub claimable: u32,
    /// Share of the polls at which the full window allowed no claim.
    pub window_full: f64,
    /// Workers that hold a lease; mean over the polls.
    pub workers: f64,
    /// Workers invoked and not known to have ended, at the time of the report.
    pub outstanding: u32,
    /// Invocations that the platform refused since the last report.
    pub throttled: u32,
    /// Worker time per batch, mean over the flushes of splits in this mode since the last report; `None`
    /// without one.
    pub worker: Option<WorkerTimes>,
    /// Changes with the execution mode (compute, put, get), which invalidates measurements of workers.
    pub mode: u32,
    /// Time of the report in seconds. For people only: clocks may be wrong.
    pub at_s: f64,
}

/// Seconds of one worker per batch, by activity.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTimes {
    pub source_s: f64,
    pub compute_s: f64,
    pub put_s: f64,
}

impl WorkerTimes {
    /// Seconds at shared resources: sources and stores.
    pub fn shared_s(&self) -> f64 {
        self.source_s + self.put_s
    }

    /// Seconds of one worker per batch.
    pub fn total_s(&self) -> f64 {
        self.source_s + self.compute_s + self.put_s
    }
}

/// A day: no batch takes longer, so larger numbers are clock errors.
const LONGEST_S: f64 = 86_400.0;

impl Report {
    /// Mean time from one batch to the next, in seconds.
    pub fn batch_time_s(&self) -> f64 {
        self.step_s + self.stall_s
    }

    /// Batches of a lease, at least 1.
    pub(super) fn lease(&self) -> f64 {
        f64::from(self.lease_batches.max(1))
    }

    /// Batches that this many workers hold at a time. After as many deliveries, measurements are of the current count.
    pub(super) fn generation(&self, workers: f64) -> f64 {
        workers * self.lease()
    }

    /// Worker time per batch, if known and plausible.
    pub fn worker_times(&self) -> Option<WorkerTimes> {
        self.worker.filter(|times| {
            let parts = [times.source_s, times.compute_s, times.put_s];
            is_duration(times.total_s())
                && parts.iter().all(|part| (0.0..=LONGEST_S).contains(part))
        })
    }

    /// Seconds of one worker per batch, if known and plausible.
    pub fn worker_batch_s(&self) -> Option<f64> {
        self.worker_times().map(|times| times.total_s())
    }

    /// Whether the numbers are possible.
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
    // Less than a nanosecond cannot be measured; zero would make every count infinite.
    (1e-9..=LONGEST_S).contains(&seconds)
}
