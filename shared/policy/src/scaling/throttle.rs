//! What the account grants: learnt from invocations it refuses, tried again ever more rarely.
//!
//! Accounts share their concurrency with other jobs, and nobody tells when some of it is free again.

use super::Report;
use serde::{Deserialize, Serialize};

/// Reports without a refusal before one more attempt; four times as many after each that failed.
const PATIENCE: u32 = 40;
const PATIENCE_MOST: u32 = 10_000;
/// Reports in a row with refusals before the target gives in: one may be the limit on how fast
/// functions start (1,000 in 10 s), which passes.
const REFUSALS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Throttle {
    /// Workers the account granted when it refused more.
    pub granted: Option<u32>,
    refusals: u32,
    quiet: u32,
    patience: u32,
}

impl Throttle {
    /// Takes a report in; returns true where the account has turned out to grant less than `target`.
    pub fn observe(&mut self, report: &Report, target: u32) -> bool {
        if report.throttled == 0 || report.outstanding >= target {
            self.refusals = 0;
            self.quiet = self.quiet.saturating_add(1);
            return false;
        }
        self.quiet = 0;
        self.refusals += 1;
        if self.refusals < REFUSALS {
            return false;
        }
        self.refusals = 0;
        self.patience = (self.patience.max(PATIENCE / 4) * 4).min(PATIENCE_MOST);
        self.granted = Some(report.outstanding.max(1));
        true
    }

    /// Whether it is time to ask for more than was granted.
    pub fn is_over(&self) -> bool {
        self.granted.is_some() && self.quiet >= self.patience
    }

    /// Forgets what was granted, not how often it was refused.
    pub fn retry(&mut self) {
        self.granted = None;
        self.quiet = 0;
    }
}
