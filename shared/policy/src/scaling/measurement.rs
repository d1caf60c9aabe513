//! A measurement: the reports of one count of workers, since the trainer is past what other counts made.

use super::{coverage::Observation, tuning::TUNING};
use serde::{Deserialize, Serialize};

/// Sums over the reports, in seconds and batches. A full window censors nothing: workers without work leave, and only
/// those at work are counted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Measurement {
    /// None for a first guess, by the times that workers report: their calls and pauses are not in it.
    pub reports: u32,
    /// Batches of remote workers, and the workers' time for them.
    batches: f64,
    worker_s: f64,
    /// Time, and the parts of it in which the trainer waited for workers, and in which the window was full.
    elapsed_s: f64,
    stall_s: f64,
    full_s: f64,
    /// Reports that had times of workers, and a batch's computing and shared time in them.
    timed: u32,
    compute_s: f64,
    shared_s: f64,
    /// Whether the computing time has changed since.
    pub is_past: bool,
}

impl Measurement {
    /// What so many reports of `workers` would say.
    pub fn known(reports: u32, workers: f64, batch_s: f64, compute_s: f64, stall: f64) -> Self {
        let elapsed_s = batch_s / workers;
        Self {
            reports,
            batches: 1.0,
            worker_s: batch_s,
            elapsed_s,
            stall_s: stall * elapsed_s,
            timed: 1,
            compute_s,
            shared_s: batch_s - compute_s,
            ..Self::default()
        }
    }

    /// Adds a report.
    pub fn add(&mut self, seen: &Observation<'_>) {
        let Observation { report, batches, elapsed_s, .. } = *seen;
        let waits = (report.stall_s - report.fetch_stall_s).max(0.0) / report.batch_time_s();
        self.reports += 1;
        self.batches += batches;
        self.worker_s += elapsed_s * report.remote_workers;
        self.elapsed_s += elapsed_s;
        self.stall_s += elapsed_s * waits;
        self.full_s += elapsed_s * report.window_full;
        if report.remote_batch_s().is_some() {
            self.timed += 1;
            self.compute_s += report.remote_compute_s;
            self.shared_s += report.remote_shared_s();
        }
    }

    /// Whether it is as long as the measurement that is due: `reports` reports, and whole generations.
    pub fn is_complete(&self, reports: u32, generation: f64) -> bool {
        self.reports >= reports && self.batches >= generation
    }

    /// Whether it tells a worker's times.
    pub fn is_timed(&self) -> bool {
        self.timed > 0
    }

    /// Share of the time in which the trainer waited for workers.
    pub fn stall(&self) -> f64 {
        self.stall_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Whether it waited while the window was full: more workers would make no more.
    pub fn waits_while_full(&self) -> bool {
        self.full_s + self.stall_s > self.elapsed_s
    }

    /// Workers that were at work.
    pub fn workers(&self) -> f64 {
        self.worker_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// A worker's time for a batch, with its calls, its waits and its pauses: by what came out.
    pub fn batch_s(&self) -> f64 {
        (self.worker_s / self.batches).max(self.compute_s())
    }

    /// The part in which it computed.
    pub fn compute_s(&self) -> f64 {
        self.compute_s / f64::from(self.timed)
    }

    /// The part that all share, with calls and pauses, and without those that workers do not report.
    pub fn shared_s(&self) -> f64 {
        (self.batch_s() - self.compute_s()).max(0.0)
    }

    pub fn reported_s(&self) -> f64 {
        self.shared_s / f64::from(self.timed)
    }

    /// Batches per second.
    pub fn rate(&self) -> f64 {
        self.workers() / self.batch_s()
    }

    /// The variance of the logarithm of its time for a batch.
    pub fn variance(&self) -> f64 {
        let [_, sigma, _] = TUNING.sigma;
        let noise = match self.reports {
            0 => sigma * self.reported_s() / self.batch_s(),
            reports => {
                sigma * 1.0_f64.hypot(self.compute_s() / self.batch_s())
                    / f64::from(reports).sqrt()
            }
        };
        noise * noise + TUNING.model * TUNING.model
    }
}
