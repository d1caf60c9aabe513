//! A measurement: the reports at one target since the trainer is past what other targets made.

use super::{coverage::Observation, law::LawPoint};
use serde::{Deserialize, Serialize};

/// Sums over the reports, in seconds and batches. A full window censors nothing: workers without work leave, and only
/// those at work are counted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MeasuredBlock {
    pub reports: u32,
    batches: f64,
    elapsed_s: f64,
    /// Waiting for workers that could have made more.
    stall_s: f64,
    worker_s: f64,
    outstanding_s: f64,
    full_s: f64,
    /// Number of the reports that had times of workers, and the sums of a batch's computing and of what is shared.
    timed: f64,
    compute_s: f64,
    shared_s: f64,
}

impl MeasuredBlock {
    /// These, and a report.
    pub fn with(mut self, seen: &Observation<'_>) -> Self {
        let Observation { report, facts, batches, elapsed_s, .. } = *seen;
        let waits = (report.stall_s - report.fetch_stall_s).max(0.0) / report.batch_time_s();
        self.reports += 1;
        self.batches += batches;
        self.elapsed_s += elapsed_s;
        self.stall_s += elapsed_s * waits;
        self.worker_s += elapsed_s * report.remote_workers;
        self.outstanding_s += elapsed_s * f64::from(facts.outstanding);
        self.full_s += elapsed_s * report.window_full;
        if report.remote_batch_s().is_some() {
            self.timed += 1.0;
            self.compute_s += report.remote_compute_s;
            self.shared_s += report.remote_shared_s();
        }
        self
    }

    /// Whether it is as long as the measurement that is due: `reports` reports, and whole generations.
    pub fn is_complete(&self, reports: u32, generation: f64) -> bool {
        self.reports >= reports && self.batches >= generation
    }

    /// Share of the time in which the trainer waited for workers.
    pub fn stall(&self) -> f64 {
        self.stall_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Workers that were invoked and had not left.
    pub fn outstanding(&self) -> f64 {
        self.outstanding_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Whether it waited while the window was full: more workers would make no more.
    pub fn waits_while_full(&self) -> bool {
        self.full_s + self.stall_s > self.elapsed_s
    }

    /// The measurement at `target`; none if no worker's time is known.
    pub fn point(&self, target: u32) -> Option<LawPoint> {
        let compute_s = self.compute_s / self.timed;
        (self.timed > 0.0).then(|| LawPoint {
            target,
            workers: self.worker_s / self.elapsed_s.max(f64::MIN_POSITIVE),
            batch_s: (self.worker_s / self.batches).max(compute_s),
            compute_s,
            reported_s: self.shared_s / self.timed,
            stall: self.stall(),
            reports: self.reports,
            is_past: false,
        })
    }
}
