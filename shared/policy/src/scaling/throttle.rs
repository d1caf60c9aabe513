//! The account's limit, learnt from refused invocations and retried with growing pauses.
//!
//! Other jobs share the account's concurrency, and no event reports when some of it is free again.

use super::{Reason, ScalerFacts, tuning::TUNING};
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
    /// Takes a report. Returns the count to move to, if the account turns out to allow less than `target`, or it is time
    /// to try more than it granted.
    pub fn observe(&mut self, facts: &ScalerFacts, target: u32) -> Option<(u32, Reason)> {
        if facts.throttled == 0 || facts.outstanding >= target {
            (self.refusals, self.quiet) = (0, self.quiet.saturating_add(1));
            self.granted.filter(|_| self.quiet >= self.pause)?;
            (self.granted, self.quiet) = (None, 0);
            return Some((target.saturating_add(1 + target / 20), Reason::Retry));
        }
        (self.refusals, self.quiet) = (self.refusals + 1, 0);
        if self.refusals < TUNING.refusals {
            return None;
        }
        let [first, most] = TUNING.retry;
        let granted = facts.outstanding.max(1);
        let pause = (self.pause.max(first / 4) * 4).min(most);
        *self = Self { granted: Some(granted), pause, ..Self::default() };
        Some((granted, Reason::Throttled))
    }
}
