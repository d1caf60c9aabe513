//! One measurement: the reports at one target since the trainer is past what other targets made.

use super::{coverage::Observation, law::LawPoint, tuning::TUNING};
use serde::{Deserialize, Serialize};

/// Sums over the reports, in seconds and batches.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MeasuredBlock {
    pub reports: u32,
    batches: f64,
    elapsed_s: f64,
    /// Waiting for workers, and for the way from them.
    stall_s: f64,
    fetch_stall_s: f64,
    worker_s: f64,
    outstanding_s: f64,
    full_s: f64,
    /// Batches that were ready and not taken, at the first report and at the last.
    queues: Option<(f64, f64)>,
    /// Number of the reports that had times of workers, and the sums of a batch's computing and of what is shared.
    timed: f64,
    compute_s: f64,
    shared_s: f64,
}

impl MeasuredBlock {
    /// Takes a report.
    pub fn add(&mut self, seen: &Observation<'_>) {
        let Observation { report, facts, batches, elapsed_s, .. } = *seen;
        let share = elapsed_s / report.batch_time_s();
        self.reports += 1;
        self.batches += batches;
        self.elapsed_s += elapsed_s;
        let fetch_s = report.fetch_stall_s.min(report.stall_s);
        self.stall_s += share * (report.stall_s - fetch_s);
        self.fetch_stall_s += share * fetch_s;
        self.worker_s += elapsed_s * report.remote_workers;
        self.outstanding_s += elapsed_s * f64::from(facts.outstanding);
        self.full_s += elapsed_s * report.window_full;
        let first = self.queues.map_or(report.queue_batches, |(first, _)| first);
        self.queues = Some((first, report.queue_batches));
        if report.remote_batch_s().is_some() {
            self.timed += 1.0;
            self.compute_s += report.remote_compute_s;
            self.shared_s += report.remote_shared_s();
        }
    }

    /// Whether it is as long as the measurement that is due: `reports` reports, and whole generations.
    pub fn is_complete(&self, reports: u32, generation: f64) -> bool {
        self.reports >= reports && self.batches >= generation
    }

    /// Share of the time in which the trainer waited for workers.
    pub fn stall(&self) -> f64 {
        self.stall_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Share of the time in which it waited for what was made.
    pub fn fetch_stall(&self) -> f64 {
        self.fetch_stall_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Workers that were at work.
    pub fn workers(&self) -> f64 {
        self.worker_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Workers that were invoked and had not left.
    pub fn outstanding(&self) -> f64 {
        self.outstanding_s / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// Whether the window was full so often that the workers could have made more.
    pub fn is_full(&self) -> bool {
        self.full_s > TUNING.full * self.elapsed_s
    }

    /// Whether the trainer waited while the window was full.
    pub fn waits_while_full(&self) -> bool {
        self.full_s + self.stall_s > self.elapsed_s
    }

    /// The measurement at `target`; none if no worker's time is known.
    pub fn point(&self, target: u32) -> Option<LawPoint> {
        (self.timed > 0.0).then(|| {
            let compute_s = self.compute_s / self.timed;
            let grown = self.queues.map_or(0.0, |(first, last)| last - first);
            LawPoint {
                target,
                workers: self.workers(),
                batch_s: (self.worker_s / (self.batches + grown).max(self.batches / 2.0))
                    .max(compute_s),
                compute_s,
                reported_s: self.shared_s / self.timed,
                stall: self.stall(),
                reports: self.reports,
                is_past: false,
            }
        })
    }
}
