//! The account's limit, learnt from refused invocations and retried with growing pauses.
//!
//! Other jobs share the account's concurrency, and no event reports when some of it is free again.

use super::{ScalerFacts, tuning::TUNING};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Throttle {
    /// Workers that the account ran when it refused more.
    pub granted: Option<u32>,
    refusals: u32,
    quiet: u32,
    /// Reports without a refusal before the next attempt.
    pause: u32,
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
        if self.refusals < TUNING.refusals {
            return false;
        }
        self.refusals = 0;
        let [first, most] = TUNING.retry;
        self.pause = (self.pause.max(first / 4) * 4).min(most);
        self.granted = Some(facts.outstanding.max(1));
        true
    }

    /// Whether it is time to try more than was granted.
    pub fn is_over(&self) -> bool {
        self.granted.is_some() && self.quiet >= self.pause
    }

    /// Forgets the limit but not the number of refusals.
    pub fn retry(&mut self) {
        self.granted = None;
        self.quiet = 0;
    }
}
