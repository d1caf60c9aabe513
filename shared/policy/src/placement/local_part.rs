//! The part of the batches that local workers make, and the report that is left to remote ones.

use crate::scaling::ScalerFacts;
use gristmill_model::wire::TrainingReport;
use serde::{Deserialize, Serialize};

/// Part of what local workers could make that they are counted on for.
pub(super) const RELIED_ON: f64 = 0.98;

/// Local workers' time for a batch, measured from report to report. By it a scaling policy sees what they leave, also
/// where it does not decide on them; no policy looks at their share itself.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalPart {
    /// Batches of the last report, and those that were ready then.
    pub(super) batches: u64,
    queue_batches: f64,
    /// Batches that remote workers made, as far as they count for the scaling policy.
    remote_batches: f64,
    /// Seconds of one worker for a batch, as last measured.
    pub(super) local_batch_s: Option<f64>,
}

impl LocalPart {
    /// The report as of a trainer that is fed by remote workers alone, beside so many local ones: the scaling policy
    /// decides by it.
    pub fn remote_part(
        &self,
        report: &TrainingReport,
        workers: f64,
        facts: &ScalerFacts,
    ) -> TrainingReport {
        let left = self.left_of(report, workers, facts);
        TrainingReport {
            batches: (self.remote_batches + self.more_remote(report, left)) as u64,
            step_s: report.step_s / left,
            stall_s: report.stall_s / left,
            fetch_stall_s: report.fetch_stall_s / left,
            local_workers: 0.0,
            local_share: 0.0,
            ..*report
        }
    }

    /// Takes a report, made beside so many local workers; not yet `settled` if some of its batches were made beside others.
    pub fn add(
        &mut self,
        report: &TrainingReport,
        workers: f64,
        facts: &ScalerFacts,
        settled: bool,
    ) {
        if !report.is_plausible() || report.batches <= self.batches {
            return;
        }
        let left = self.left_of(report, workers, facts);
        self.remote_batches += self.more_remote(report, left);
        if let Some(time_s) = self.seen_batch_s(report) {
            let known = self.local_batch_s.filter(|_| settled);
            self.local_batch_s = Some(known.map_or(time_s, |known| known * 0.8 + time_s * 0.2));
        }
        (self.batches, self.queue_batches) = (report.batches, report.queue_batches);
    }

    /// Share of the batches that so many local workers could make, while one is due every `due_s`: 0 to 1.
    pub(super) fn share(&self, workers: f64, due_s: f64) -> f64 {
        let local_s = self.local_batch_s.filter(|time_s| *time_s > 0.0);
        local_s.map_or(0.0, |time_s| workers * due_s / time_s).min(1.0)
    }

    /// Share of the batches that is left to remote workers.
    fn left_of(&self, report: &TrainingReport, workers: f64, facts: &ScalerFacts) -> f64 {
        // Not yet known before the first report of local workers is taken.
        let local_batch_s = self.local_batch_s.or_else(|| self.seen_batch_s(report));
        let share = Self { local_batch_s, ..*self }.share(workers, report.step_s / facts.clients());
        (1.0 - RELIED_ON * share).max(1.0 - RELIED_ON)
    }

    /// Batches of remote workers since the report before. Those before the first one count whole.
    fn more_remote(&self, report: &TrainingReport, left: f64) -> f64 {
        let more = report.batches.saturating_sub(self.batches) as f64;
        if self.batches == 0 { more } else { more * left }
    }

    /// A local worker's time for a batch, of which they report nothing: those at work, by the batches that they made.
    fn seen_batch_s(&self, report: &TrainingReport) -> Option<f64> {
        let batches = report.batches.saturating_sub(self.batches) as f64;
        let made = batches + report.queue_batches - self.queue_batches;
        let per_worker = made * report.local_share / report.local_workers;
        let time_s = batches * report.batch_time_s() / per_worker;
        (report.local_workers > 0.0 && per_worker > 0.0 && time_s.is_finite()).then_some(time_s)
    }
}
