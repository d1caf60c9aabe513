//! Invocations under way, as a set of numbers with one bit each, so that the scaler's item stays
//! small with thousands of them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{collections::BTreeMap, ops::Range};

/// Workers of one [`DepartedWorkers`] shard, one bit each.
pub const LEFT_SHARD: u32 = 32;

/// Which workers of one shard have left: bit `i` is the shard's `i`-th number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DepartedWorkers {
    pub bits: u32,
    /// Those of them whose events expired: they never ran.
    #[serde(default, skip_serializing_if = "is_none")]
    pub expired: u32,
}

fn is_none(bits: &u32) -> bool {
    *bits == 0
}

impl DepartedWorkers {
    /// This shard with `worker` added.
    #[must_use]
    pub fn with(self, worker: u32) -> Self {
        Self { bits: self.bits | 1 << (worker % LEFT_SHARD), ..self }
    }

    /// This shard with `worker` added, whose event expired.
    #[must_use]
    pub fn with_expired(self, worker: u32) -> Self {
        Self { expired: self.expired | 1 << (worker % LEFT_SHARD), ..self.with(worker) }
    }

    /// Whether `worker`, a number within the shard, has left.
    pub fn has(self, worker: u32) -> bool {
        self.bits >> (worker % LEFT_SHARD) & 1 == 1
    }
}

/// Most numbers that one run spans.
const MOST_SPANNED: u32 = 1 << 16;

/// Invocations sent and not known to have ended (events may still wait).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OutstandingWorkers {
    runs: Vec<Run>,
}

/// Workers invoked at one time: consecutive numbers, some of which have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    sent_ms: u64,
    first: u32,
    /// The number `first + 8 i + j` is bit `j` of byte `i`.
    bits: Vec<u8>,
}

impl Run {
    fn numbers(&self) -> impl Iterator<Item = u32> {
        let bits = self.bits.iter().zip(0_u32..).flat_map(|(byte, i)| {
            (0..8).filter(move |j| byte >> j & 1 == 1).map(move |j| i * 8 + j)
        });
        bits.map(|bit| self.first.saturating_add(bit))
    }
}

impl OutstandingWorkers {
    /// Adds the invocations numbered `numbers`, none of which was there.
    pub fn add(&mut self, numbers: Range<u32>, sent_ms: u64) {
        let mut first = numbers.start;
        while first < numbers.end {
            let end = numbers.end.min(first.saturating_add(MOST_SPANNED));
            let n = end - first;
            let bits = (0..n.div_ceil(8)).map(|i| match n - i * 8 {
                part @ 1..8 => (1 << part) - 1,
                _ => u8::MAX,
            });
            self.runs.push(Run { sent_ms, first, bits: bits.collect() });
            first = end;
        }
    }

    /// Keeps the invocations for which `keep` returns true, given number and time of sending.
    pub fn retain(&mut self, mut keep: impl FnMut(u32, u64) -> bool) {
        for run in &mut self.runs {
            let (first, sent_ms) = (run.first, run.sent_ms);
            for (byte, i) in run.bits.iter_mut().zip(0_u32..) {
                for j in 0..8 {
                    if *byte >> j & 1 == 1 && !keep(first.saturating_add(i * 8 + j), sent_ms) {
                        *byte &= !(1 << j);
                    }
                }
            }
            while run.bits.last() == Some(&0) {
                run.bits.pop();
            }
            let ended = run.bits.iter().take_while(|byte| **byte == 0).count();
            run.bits.drain(..ended);
            run.first += ended as u32 * 8;
        }
        self.runs.retain(|run| !run.bits.is_empty());
    }

    /// Removes the invocations that have left, according to their shards.
    pub fn settle(&mut self, left: &BTreeMap<u32, DepartedWorkers>) {
        let has_left =
            |number: u32| left.get(&(number / LEFT_SHARD)).is_some_and(|l| l.has(number));
        self.retain(|number, _| !has_left(number));
    }

    /// Number of invocations whose events expired, according to their shards.
    pub fn expired(&self, left: &BTreeMap<u32, DepartedWorkers>) -> u32 {
        let is_expired = |number: u32| {
            let shard = left.get(&(number / LEFT_SHARD));
            shard.is_some_and(|shard| shard.expired >> (number % LEFT_SHARD) & 1 == 1)
        };
        self.iter().filter(|(number, _)| is_expired(*number)).count() as u32
    }

    /// Each number, and when it was sent, in milliseconds.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        self.runs.iter().flat_map(|run| run.numbers().map(|number| (number, run.sent_ms)))
    }

    /// Number of invocations.
    pub fn len(&self) -> u32 {
        let ones = self.runs.iter().flat_map(|run| &run.bits).map(|byte| byte.count_ones());
        ones.sum()
    }

    /// Whether no worker is outstanding.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The shards that record the ends of invocations, in order, without those for which `may_have`
    /// returns false.
    pub fn shards(&self, may_have: impl Fn(u32) -> bool) -> Vec<u32> {
        let absent = self.iter().filter(|(number, _)| may_have(*number));
        let mut shards: Vec<u32> = absent.map(|(number, _)| number / LEFT_SHARD).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

impl Serialize for Run {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let digits: String = self.bits.iter().map(|byte| format!("{byte:02x}")).collect();
        (self.sent_ms, self.first, digits).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Run {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (sent_ms, first, digits) = <(u64, u32, String)>::deserialize(from)?;
        let byte = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(text, 16).ok()
        };
        let bits: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        let bits = bits.filter(|bits| bits.len() as u32 <= MOST_SPANNED / 8);
        Ok(Self {
            sent_ms,
            first,
            bits: bits.ok_or_else(|| D::Error::custom("not a run of bits"))?,
        })
    }
}

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
    fn it_is_a_set_of_numbers() {
        let (mut set, mut model) = (OutstandingWorkers::default(), BTreeMap::new());
        let mut next = 0_u32;
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        for at_ms in 0..200 {
            let more = random(90) as u32;
            set.add(next..next + more, at_ms);
            model.extend((next..next + more).map(|number| (number, at_ms)));
            next += more;
            let (divisor, rest) = (2 + random(5) as u32, random(2) as u32);
            set.retain(|number, _| number % divisor != rest);
            model.retain(|number, _| number % divisor != rest);
            assert_eq!(set.iter().collect::<BTreeMap<_, _>>(), model);
            assert_eq!(set.len() as usize, model.len());
            let json = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<OutstandingWorkers>(&json).unwrap(), set);
        }
        set.retain(|_, _| false);
        assert!(set.is_empty());
    }

    #[test]
    fn thousands_are_small() {
        let mut set = OutstandingWorkers::default();
        set.add(0..5_000, 1_700_000_000_000);
        assert!(serde_json::to_vec(&set).unwrap().len() < 1_400);
        assert_eq!(set.shards(|_| true).len(), 157);
        assert_eq!(set.shards(|number| number >= 4_990), [155, 156]);
        set.add(70_000..140_000, 1);
        assert_eq!(set.len(), 75_000);
    }

    #[test]
    fn damaged_runs_are_refused() {
        for damaged in ["[[1,2,\"0g\"]]", "[[1,2,\"\u{e9}\"]]", "[[1,2]]"] {
            assert!(serde_json::from_str::<OutstandingWorkers>(damaged).is_err(), "{damaged}");
        }
    }
}

#[cfg(test)]
mod room_tests {
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
