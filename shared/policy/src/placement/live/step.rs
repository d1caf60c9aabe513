//! Mean and deviation of the trainer's step over some reports, and the comparison of two.

use serde::{Deserialize, Serialize};

/// Reports before a mean is believed, and most that a comparison takes.
const REPORTS_LEAST: f64 = 5.0;
const REPORTS_MOST: f64 = 20.0;
/// Deviations of a mean: two-sided bounds of 95 %.
const BOUNDS: f64 = 1.96;
/// A step that is longer by this share, in two reports in a row and by so many deviations, ends a comparison.
const FAR: f64 = 0.1;
const FAR_DEVIATIONS: f64 = 3.0;

/// Result of a comparison of fewer local workers with more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialVerdict {
    Open,
    Fewer,
    More,
}

/// Steps with one count of local workers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StepBlock {
    reports: f64,
    mean_s: f64,
    /// Sum of the squared differences from the mean.
    squares: f64,
    last_s: [f64; 2],
}

impl StepBlock {
    /// Adds the mean step of a report. The oldest of many count less.
    pub fn add(&mut self, step_s: f64) {
        if self.reports >= REPORTS_MOST {
            self.squares *= 1.0 - 1.0 / self.reports;
            self.reports -= 1.0;
        }
        self.reports += 1.0;
        let off_s = step_s - self.mean_s;
        self.mean_s += off_s / self.reports;
        self.squares += off_s * (step_s - self.mean_s);
        self.last_s = [self.last_s[1], step_s];
    }

    pub fn is_known(&self) -> bool {
        self.reports >= REPORTS_LEAST
    }

    /// Whether more reports would add nothing.
    pub fn is_full(&self) -> bool {
        self.reports >= REPORTS_MOST
    }

    fn variance(&self) -> f64 {
        if self.reports > 1.0 { self.squares / (self.reports - 1.0) } else { 0.0 }
    }

    /// Whether a step differs by this share of the mean, and by more than noise.
    pub fn differs(&self, step_s: f64, share: f64) -> bool {
        let off_s = (step_s - self.mean_s).abs();
        self.is_known()
            && off_s > share * self.mean_s
            && off_s > FAR_DEVIATIONS * self.variance().sqrt()
    }

    /// Slowdown of the step with more local workers, as a share, and its half width at 95 %.
    fn compared(&self, many: &Self) -> (f64, f64) {
        let error = |block: &Self| block.variance() / block.reports.max(1.0);
        let width = BOUNDS * (error(self) + error(many)).sqrt() / self.mean_s;
        (many.mean_s / self.mean_s - 1.0, width)
    }

    /// Slowdown of the step with more local workers, as a share.
    pub fn slowdown(&self, many: &Self) -> f64 {
        self.compared(many).0
    }

    /// Whether more local workers are better than these, by the slowdown at which they cost what they save. At its end,
    /// what is undecided is decided for fewer.
    pub fn verdict(&self, many: &Self, break_even: f64, is_end: bool) -> TrialVerdict {
        let far = |step_s: f64| {
            let over_s = step_s - self.mean_s * (1.0 + break_even);
            over_s > FAR * self.mean_s && over_s > FAR_DEVIATIONS * self.variance().sqrt()
        };
        if self.is_known() && many.reports >= 2.0 && many.last_s.into_iter().all(far) {
            return TrialVerdict::Fewer;
        }
        if !(self.is_known() && many.is_known()) {
            return TrialVerdict::Open;
        }
        match self.compared(many) {
            (slowdown, width) if slowdown + width < break_even => TrialVerdict::More,
            (slowdown, width) if slowdown - width > break_even => TrialVerdict::Fewer,
            _ if is_end => TrialVerdict::Fewer,
            _ => TrialVerdict::Open,
        }
    }
}
