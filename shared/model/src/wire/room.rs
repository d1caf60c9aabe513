//! The room that an account has for a job's workers, as far as expired events show it.

use serde::{Deserialize, Serialize};

/// Events that may wait beside the workers that ran; more with many workers.
const LEAST_MORE: u32 = 32;
const PART: u32 = 8;
/// Events that were sent together expire within this time of each other.
const QUIET_MS: u64 = 10_000;
/// Time after which an event has found an environment or expired, and the scaler knows it.
const KNOWN_MS: u64 = 75_000;
/// The room of so long ago says nothing.
const FORGOTTEN_MS: u64 = 900_000;

/// Workers that the account ran when events to others expired, and how many more are tried. Asynchronous events wait
/// when there is no room, so the platform refuses none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountRoom {
    pub ran: u32,
    /// Events that may wait for room, from `more_ms` on.
    pub more: u32,
    pub more_ms: u64,
    /// When these run if none has expired by then.
    pub known_ms: u64,
}

impl AccountRoom {
    /// The room that events show which expired at `now_ms` while `ran` workers did not.
    pub fn seen(ran: u32, now_ms: u64) -> Self {
        let more_ms = now_ms.saturating_add(QUIET_MS);
        let more = (ran / PART).max(LEAST_MORE);
        Self { ran, more, more_ms, known_ms: more_ms.saturating_add(KNOWN_MS) }
    }

    /// Most workers to have outstanding.
    pub fn most(&self, now_ms: u64) -> u32 {
        let more = if now_ms < self.more_ms { 0 } else { self.more };
        self.ran.saturating_add(more)
    }

    /// The room after a look at `outstanding` workers, of which none expired. Twice as many more are tried once the
    /// last ones run. None if there is room for `wanted`, or if too long ago to tell.
    #[must_use]
    pub fn tried(self, outstanding: u32, wanted: u32, now_ms: u64) -> Option<Self> {
        if now_ms < self.known_ms {
            return Some(self);
        }
        if self.ran.max(outstanding) >= wanted
            || now_ms.saturating_sub(self.known_ms) > FORGOTTEN_MS
        {
            return None;
        }
        if outstanding <= self.ran {
            return Some(self);
        }
        let (ran, more) = (outstanding, self.more.saturating_mul(2));
        Some(Self { ran, more, more_ms: now_ms, known_ms: now_ms.saturating_add(KNOWN_MS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_more_are_tried_once_those_that_expired_together_have() {
        let room = AccountRoom::seen(200, 60_000);
        assert_eq!((room.most(60_000), room.most(69_999), room.most(70_000)), (200, 200, 232));
        assert_eq!(AccountRoom::seen(8_000, 0).most(10_000), 9_000);
    }

    #[test]
    fn the_number_that_is_tried_doubles_while_all_find_room() {
        let mut room = AccountRoom::seen(200, 0);
        let mut most = Vec::new();
        for step in 1..5 {
            let now_ms = step * 85_000;
            room = room.tried(room.most(now_ms), 2_000, now_ms).unwrap();
            most.push(room.most(now_ms));
        }
        assert_eq!(most, [296, 424, 680, 1_192]);
        assert_eq!(room.tried(1_192, 900, 5 * 85_000), None, "there is room for all");
    }

    #[test]
    fn nothing_is_learnt_before_events_could_expire_or_where_none_was_sent() {
        let room = AccountRoom::seen(200, 0);
        assert_eq!(room.tried(232, 2_000, 84_999), Some(room));
        assert_eq!(room.tried(200, 2_000, 85_000), Some(room));
        assert_eq!(room.tried(200, 2_000, 1_000_000), None, "too long ago");
    }
}
