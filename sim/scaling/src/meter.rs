//! Sums between two reports: the measurements of a fetcher and a coordinator.

use crate::trainer::TrainerStall;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReportMeter {
    /// Batches taken by each client.
    pub rounds: u32,
    pub step_s: f64,
    pub stall_s: f64,
    pub fetch_stall_s: f64,
    /// Sum of the queue's length at each take.
    pub queue: f64,
    /// Invocations refused.
    pub throttled: u32,
    flushes: f64,
    times_s: [f64; 3],
    elapsed_s: f64,
    worker_s: f64,
    full_s: f64,
}

impl ReportMeter {
    pub fn pass(&mut self, seconds: f64, at_work: u32, full: bool) {
        self.elapsed_s += seconds;
        self.worker_s += seconds * f64::from(at_work);
        if full {
            self.full_s += seconds;
        }
    }

    pub fn taken(&mut self, stall: &TrainerStall, step_s: f64, ready: u64) {
        self.rounds += 1;
        self.stall_s += stall.all_s;
        self.fetch_stall_s += stall.fetch_s;
        self.step_s += step_s;
        self.queue += ready as f64;
    }

    /// A split of `batches` batches is committed.
    pub fn flushed(&mut self, times_s: [f64; 3], batches: f64) {
        self.flushes += 1.0;
        for (sum, time_s) in self.times_s.iter_mut().zip(times_s) {
            *sum += time_s / batches;
        }
    }

    /// Means over the flushes; `None` without one.
    pub fn times_s(&self) -> Option<[f64; 3]> {
        (self.flushes > 0.0).then(|| self.times_s.map(|sum| sum / self.flushes))
    }

    pub fn mean_workers(&self) -> f64 {
        if self.elapsed_s > 0.0 { self.worker_s / self.elapsed_s } else { 0.0 }
    }

    pub fn share_full(&self) -> f64 {
        if self.elapsed_s > 0.0 { (self.full_s / self.elapsed_s).clamp(0.0, 1.0) } else { 0.0 }
    }
}
