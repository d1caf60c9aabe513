//! Samples and decisions recorded during a run.

use crate::JobStatistics;
use gristmill_model::wire::ScaleDecision;
use gristmill_report::{TimelineDecision, TimelineSample};
use std::time::{Duration, Instant};

/// Interval between samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// Samples and decisions of a run.
#[derive(Debug, Clone, Default)]
pub struct RunRecording {
    pub samples: Vec<TimelineSample>,
    pub decisions: Vec<TimelineDecision>,
}

/// Records samples at intervals.
pub struct RunRecorder {
    started: Instant,
    sampled: Option<Instant>,
    /// Batches and seconds of waiting at the last sample.
    last: (u64, f64),
    pub recorded: RunRecording,
}

impl RunRecorder {
    pub fn new(started: Instant) -> Self {
        Self { started, sampled: None, last: (0, 0.0), recorded: RunRecording::default() }
    }

    /// Samples the run; `batches` were taken so far, and `waited_s` seconds spent waiting for them.
    pub fn look(&mut self, snapshot: &JobStatistics, batches: u64, waited_s: f64) {
        let since = self.sampled.map(|sampled| sampled.elapsed());
        if since.is_some_and(|since| since < SAMPLE_EVERY) {
            return;
        }
        self.sampled = Some(Instant::now());
        let (batches_before, waited_before_s) =
            std::mem::replace(&mut self.last, (batches, waited_s));
        let taken = batches.saturating_sub(batches_before) as f64;
        let JobStatistics { metrics, scale, active_workers, .. } = snapshot;
        // Without a batch there is no mean.
        let batch_time_s = since.filter(|_| taken > 0.0).map(|since| since.as_secs_f64() / taken);
        let stall_s = batch_time_s.map(|all_s| ((waited_s - waited_before_s) / taken).min(all_s));
        self.recorded.samples.push(TimelineSample {
            t_s: self.started.elapsed().as_secs_f64(),
            batches,
            batch_time_s,
            stall_s,
            step_s: batch_time_s.zip(stall_s).map(|(all_s, stall_s)| all_s - stall_s),
            workers: Some(f64::from(*active_workers)),
            target: (scale.target > 0).then_some(scale.target),
            outstanding: Some(scale.outstanding.len()),
            queue_batches: Some(f64::from(metrics.queue_batches)),
        });
    }

    /// Records new decisions.
    pub fn decided(&mut self, decisions: &[ScaleDecision]) {
        let t_s = self.started.elapsed().as_secs_f64();
        self.recorded.decisions.extend(decisions.iter().map(|decision| TimelineDecision {
            t_s,
            batch: decision.batch,
            workers: decision.workers,
            reason: decision.reason.clone(),
        }));
    }
}
