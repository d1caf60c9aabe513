//! Plain Cachew (Graur et al., ATC 2022, section 4.3): one worker more while batch time improves.

use crate::scaling::{ScalerFacts, ScalingPolicy, Settings, TrainingReport, WorkerMetrics};
use serde::{Deserialize, Serialize};

/// A smaller improvement of batch time is ignored (section 4.3: 3 %).
const IMPROVEMENT: f64 = 0.03;
/// A larger "improvement" is a measurement error.
const NOISE: f64 = 1.2;
/// Reports between two checks of a converged count (every 1,000 batches).
const REVISIT_REPORTS: u32 = 10;
/// Growth of the queue since convergence that allows for one worker less (more than 40 %).
const QUEUE_GROWTH: f64 = 1.4;
/// Growth of batch time since convergence that is "significantly higher"; the paper gives no number.
/// Well above the noise of a mean over 100 batches.
const SLOWER: f64 = 1.2;
/// Batches not measured after a change (section 4.3).
const PAUSE_BATCHES: u64 = 150;

/// State of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cachew {
    pub target: u32,
    /// Measurement at convergence.
    pub converged: Option<Sample>,
    last_at_other_count: Option<Sample>,
    latest: Option<Sample>,
    /// Whether workers are being removed, one at each report.
    removing: bool,
    reports: u32,
    paused_until: u64,
    batches: u64,
    mode: u32,
}

/// Batch time (s) and queue (batches) at a count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    workers: u32,
    batch_time_s: f64,
    queue_batches: f64,
}

impl Default for Cachew {
    fn default() -> Self {
        Self {
            target: 1,
            converged: None,
            last_at_other_count: None,
            latest: None,
            removing: false,
            reports: 0,
            paused_until: 0,
            batches: 0,
            mode: 0,
        }
    }
}

impl ScalingPolicy for Cachew {
    fn begin(_: &Settings, _: Option<&WorkerMetrics>) -> Self {
        Self::default()
    }

    fn target(&self) -> u32 {
        self.target
    }

    fn next_target(&mut self, report: &TrainingReport, facts: &ScalerFacts, most: u32) -> u32 {
        if facts.mode != self.mode {
            *self = Self { mode: facts.mode, ..Self::default() };
            return self.target;
        }
        let from = std::mem::replace(&mut self.batches, report.batches);
        let time_s = report.batch_time_s();
        // Reports of another count, or within the pause, are not used.
        let settled = from >= self.paused_until && facts.outstanding == self.target;
        if !settled || !report.is_plausible() || report.batches <= from {
            return self.target;
        }
        let sample = Sample {
            workers: self.target,
            batch_time_s: time_s,
            queue_batches: report.queue_batches,
        };
        match self.converged {
            None => self.scale_up(sample, most),
            Some(at) => self.revisit(sample, at, most),
        }
        self.target
    }

    fn has_converged(&self) -> bool {
        self.converged.is_some()
    }
}

impl Cachew {
    fn scale_up(&mut self, sample: Sample, most: u32) {
        let Some(before) = self.last_at_other_count else {
            self.move_to(sample, self.target + 1, most);
            return;
        };
        let improvement = 1.0 - sample.batch_time_s / before.batch_time_s;
        if improvement.abs() > NOISE {
            return;
        }
        if improvement > IMPROVEMENT && self.target < most {
            self.move_to(sample, self.target + 1, most);
        } else {
            let at = if improvement > IMPROVEMENT { sample } else { before };
            self.converged = Some(at);
            self.reports = 0;
            self.move_to(sample, at.workers, most);
        }
    }

    fn revisit(&mut self, sample: Sample, at: Sample, most: u32) {
        if self.removing {
            let worse = self
                .last_at_other_count
                .map_or(0.0, |before| sample.batch_time_s / before.batch_time_s - 1.0);
            if worse < IMPROVEMENT && self.target > 1 {
                self.converged = Some(sample);
                self.move_to(sample, self.target - 1, most);
            } else {
                self.removing = false;
                self.move_to(sample, self.target + 1, most);
            }
            return;
        }
        self.reports += 1;
        if !self.reports.is_multiple_of(REVISIT_REPORTS) {
            return;
        }
        // An empty queue cannot grow by 40 %: one batch is the minimum.
        if sample.queue_batches > QUEUE_GROWTH * at.queue_batches.max(1.0) && self.target > 1 {
            self.removing = true;
            self.converged = Some(sample);
            self.move_to(sample, self.target - 1, most);
        } else if sample.batch_time_s > SLOWER * at.batch_time_s {
            self.converged = None;
            self.move_to(sample, self.target + 1, most);
        }
    }

    fn move_to(&mut self, sample: Sample, target: u32, most: u32) {
        self.last_at_other_count = Some(sample);
        self.target = target.clamp(1, most);
        self.paused_until = self.batches + PAUSE_BATCHES;
    }
}
