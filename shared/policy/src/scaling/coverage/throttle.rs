//! The account's limit, learnt from refused invocations and retried with growing pauses.
//!
//! Other jobs share the account's concurrency, and no event reports when some of it is free again.

use super::ScalerFacts;
use serde::{Deserialize, Serialize};

/// Reports without a refusal before another attempt; four times as many after each failed one.
const PATIENCE: u32 = 40;
const PATIENCE_MOST: u32 = 10_000;
/// Consecutive reports with refusals before the target is lowered: a single one may be the limit on the
/// rate of starts (1,000 in 10 s), which is transient.
const REFUSALS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Throttle {
    /// Workers that the account ran when it refused more.
    pub granted: Option<u32>,
    refusals: u32,
    quiet: u32,
    patience: u32,
}

impl Throttle {
    /// Takes a report; returns true if the account turns out to allow less than `target`.
    pub fn observe(&mut self, facts: &ScalerFacts, target: u32) -> bool {
        if facts.throttled == 0 || facts.outstanding >= target {
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
        self.granted = Some(facts.outstanding.max(1));
        true
    }

    /// Whether it is time to try more than was granted.
    pub fn is_over(&self) -> bool {
        self.granted.is_some() && self.quiet >= self.patience
    }

    /// Forgets the limit but not the number of refusals.
    pub fn retry(&mut self) {
        self.granted = None;
        self.quiet = 0;
    }
}
