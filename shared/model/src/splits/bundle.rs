//! The bundle item: up to eight consecutive positions, leased together, committed one by one.
//!
//! An absent item is a bundle that was never claimed. The encoded item stays within 1 KB, so that
//! an update is billed as one write unit.

use crate::{
    Attempt, ErrorPolicy, InvocationId, Nonce,
    splits::{SplitPlace, batches::SplitCounts, lease::renewed_ms},
};
use serde::{Deserialize, Serialize};

/// Most positions of a bundle.
pub const MAX_BUNDLE_SPLITS: usize = 8;
/// Longest error text an item keeps, in bytes.
pub const MAX_ERROR_BYTES: usize = 200;
/// Longest invocation id an item keeps, in bytes (the platform's are UUIDs of 36).
pub const MAX_INVOCATION_BYTES: usize = 64;

/// State of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BundleState {
    /// `owner` works on it; anybody may claim it from `until_ms` on.
    Leased,
    /// The platform reported its owner dead: anybody may claim it now.
    Released,
    /// Its owner gave it back, or a suspect waits to be tried alone: claimable at `retry_at_ms`.
    Failed,
    /// Every split is committed. Final.
    Done,
    /// Given up; the job fails with `error`. Final.
    Dead,
    /// Its owner gave it back without a failure: anybody may claim it now, and the claim goes on with
    /// the same attempt.
    Returned,
}

/// From this attempt on, a bundle's suspect is run first, by itself. Its neighbours had their
/// chance to be committed, and two suspects in one bundle would clear each other for ever.
pub const TRIAL_ATTEMPTS: Attempt = 4;

/// A split that workers died on, one after the other, with no death elsewhere in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SuspectSplit {
    /// Index in the bundle.
    pub split_index: u8,
    /// Consecutive deaths so far, at least 1. From the second on, each worker had completed a
    /// control just before it died.
    pub strikes: u8,
    /// Ordinal of the latest in the death log.
    pub ordinal: u64,
}

/// One bundle as the table holds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bundle {
    pub state: BundleState,
    pub attempt: Attempt,
    pub owner: Nonce,
    pub invocation: InvocationId,
    /// When the lease ends (leased only).
    pub until_ms: u64,
    /// When it may be claimed again (failed only).
    pub retry_at_ms: u64,
    /// When it was first claimed, or a split of it was last committed.
    pub since_ms: u64,
    /// One per position.
    pub entries: Vec<Option<CommittedSplit>>,
    /// The split that the owner has marked; never a committed one.
    pub current_split: Option<u8>,
    /// One is enough: a death elsewhere ends every suspicion.
    pub suspect: Option<SuspectSplit>,
    /// The control: a committed split that the owner runs again before it starts the suspect,
    /// discarding the result. A worker that dies for another reason dies on the control too.
    pub control: Option<SplitPlace>,
    /// The latest failure, one line.
    pub error: Option<String>,
    /// Time spent by workers, over all attempts.
    pub times: WorkerTimes,
}

impl Bundle {
    /// Estimates when its owner last gave a sign of life, in milliseconds: the last commit, or the
    /// renewal of the lease. Too late for leases that are longer than the shortest, too early for
    /// leases cut by the worker's remaining time.
    pub fn last_contact_ms(&self) -> u64 {
        self.since_ms.max(renewed_ms(self.until_ms))
    }

    /// Indices of the uncommitted splits, in the order to run them. A suspect comes last, so that its neighbours are
    /// committed before it can do harm; from [`TRIAL_ATTEMPTS`] on it comes first.
    pub fn todo(&self) -> Vec<u8> {
        let open = (0u8..).zip(&self.entries).filter(|(_, e)| e.is_none()).map(|(at, _)| at);
        let mut todo: Vec<u8> = open.collect();
        let suspect = self.suspect.map(|suspect| suspect.split_index);
        let first = self.attempt >= TRIAL_ATTEMPTS;
        todo.sort_by_key(|at| (Some(*at) == suspect) != first);
        todo
    }

    /// Whether the next owner starts with a suspect, and so needs a control.
    pub fn wants_control(&self) -> bool {
        let first = self.todo().first().copied();
        first.is_some() && first == self.suspect.map(|suspect| suspect.split_index)
    }

    /// Whether the owner of this attempt completed the control, or committed a split, before it
    /// died.
    pub fn had_control(&self) -> bool {
        let by_owner = |e: &CommittedSplit| {
            e.outcome.kind != SplitKind::Poison
                && (e.attempt, e.nonce) == (self.attempt, self.owner)
        };
        self.control.is_some() || self.entries.iter().flatten().any(by_owner)
    }

    /// The committed split of that index, if it is committed.
    pub fn entry(&self, split_index: u8) -> Option<&CommittedSplit> {
        self.entries.get(usize::from(split_index))?.as_ref()
    }

    /// Whether every split is committed.
    pub fn is_complete(&self) -> bool {
        self.entries.iter().all(Option::is_some)
    }

    /// Whether (attempt, nonce) holds the lease.
    pub fn is_leased_to(&self, attempt: Attempt, nonce: Nonce) -> bool {
        self.state == BundleState::Leased && self.attempt == attempt && self.owner == nonce
    }

    /// Whether `nonce` holds the lease, in any attempt.
    pub fn is_held_by(&self, nonce: Nonce) -> bool {
        self.state == BundleState::Leased && self.owner == nonce
    }

    /// The earliest time a claim can succeed, in ms; none when it never will.
    pub fn claimable_at_ms(&self) -> Option<u64> {
        match self.state {
            BundleState::Leased => Some(self.until_ms),
            BundleState::Failed => Some(self.retry_at_ms),
            BundleState::Released | BundleState::Returned => Some(0),
            BundleState::Done | BundleState::Dead => None,
        }
    }

    /// Whether the owner of the current attempt is presumed dead at `now_ms` and its death is not
    /// accounted for yet.
    pub fn has_dead_owner(&self, now_ms: u64) -> bool {
        match self.state {
            BundleState::Leased => self.until_ms <= now_ms,
            BundleState::Released => true,
            BundleState::Failed | BundleState::Done | BundleState::Dead | BundleState::Returned => {
                false
            }
        }
    }
}

/// `text` on one line and within [`MAX_ERROR_BYTES`].
pub(crate) fn error_line(text: &str) -> String {
    line_of(text, MAX_ERROR_BYTES)
}

/// `text` on one line of at most `most` bytes.
pub(crate) fn line_of(text: &str, most: usize) -> String {
    let mut line: String = text.trim().replace(['\n', '\r'], " ");
    if line.len() > most {
        let end = (0..=most).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
    }
    line
}

/// Location of a finished split's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitKind {
    /// An object holds its batches.
    #[default]
    Object,
    /// A worker in the trainer's host holds them; recomputed (and compared) when lost.
    Local,
    /// It kills every worker that runs it: all its records are skipped.
    Poison,
}

/// The content of a finished split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct SplitOutcome {
    pub kind: SplitKind,
    /// Size of the object (of the content, when local).
    pub object_bytes: u64,
    /// CRC32C over the checksums of the object's frames: identifies the content.
    pub crc32c: u32,
    /// Elements in its batches and its remainder; for an indexed file, records.
    pub rows: u32,
    /// Complete batches.
    pub batches: u32,
    /// Rows left over after them.
    pub remainder_rows: u32,
    /// Source records left out.
    pub skipped_records: u32,
}

impl SplitOutcome {
    /// A poisoned split of so many records.
    pub fn poisoned(records: u32) -> Self {
        Self { kind: SplitKind::Poison, skipped_records: records, ..Self::default() }
    }

    /// The treatment of bad records that makes it again, which may not be the job's by now: a split without any is the same
    /// under each.
    pub fn on_error(&self) -> ErrorPolicy {
        match self.skipped_records {
            0 => ErrorPolicy::Fail,
            _ => ErrorPolicy::Skip,
        }
    }

    /// Its part in the arithmetic of batches.
    pub fn counts(&self) -> SplitCounts {
        SplitCounts { batches: self.batches, remainder_rows: self.remainder_rows }
    }
}

/// One finished split, as its worker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SplitCommit {
    /// Index in the bundle.
    pub split_index: u8,
    pub outcome: SplitOutcome,
}

/// One committed split as the table holds it. Never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommittedSplit {
    /// With `nonce`, names the object.
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub outcome: SplitOutcome,
}

/// Time that workers spent, by activity. What a worker computes on several threads at a time takes it a share of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct WorkerTimes {
    /// Waiting for the source.
    pub source_ms: u64,
    pub compute_ms: u64,
    /// Storing objects.
    pub put_ms: u64,
}

impl WorkerTimes {
    /// The sum of both, saturating.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        self.with(more, u64::saturating_add)
    }

    /// The larger of each time.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    /// An equal share of each time for one of `splits`.
    #[must_use]
    pub fn share_of(self, splits: u32) -> Self {
        self.with(Self::default(), |total_ms, _| total_ms / u64::from(splits.max(1)))
    }

    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            source_ms: each(self.source_ms, other.source_ms),
            compute_ms: each(self.compute_ms, other.compute_ms),
            put_ms: each(self.put_ms, other.put_ms),
        }
    }

    /// The sum of all times, in milliseconds.
    pub fn total_ms(self) -> u64 {
        self.source_ms + self.compute_ms + self.put_ms
    }
}

/// Odd constant of a multiplicative hash.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The sizes by which every bound on memory counts objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObjectSizes {
    /// The bytes that an object has.
    #[default]
    Real,
    /// Sizes from one byte to `most`, drawn from `seed` and the split: for simulations of objects that
    /// are too large to be made.
    Modelled { seed: u64, most: u64 },
}

impl ObjectSizes {
    /// The bytes that count for the object of the split at `place`, which has `object_bytes`.
    pub fn bytes(self, place: SplitPlace, object_bytes: u64) -> u64 {
        match self {
            Self::Modelled { seed, most } if object_bytes > 0 => {
                let split = u64::from(place.epoch) << 32 | u64::from(place.position);
                let drawn = mixed(mixed(seed ^ split.wrapping_mul(MIXER)));
                // As many sizes of each order of magnitude.
                let bits = drawn % (u64::from(most.max(1).ilog2()) + 1);
                ((drawn >> 8) % (1 << bits) + (1 << bits)).min(most.max(1))
            }
            Self::Real | Self::Modelled { .. } => object_bytes,
        }
    }
}

/// A number of which every bit depends on every bit of `number`.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 32).wrapping_mul(MIXER);
    number ^ number >> 29
}

#[cfg(test)]
mod sizes_tests {
    use super::*;

    #[test]
    fn modelled_objects_have_sizes_of_every_order_of_magnitude() {
        let sizes = ObjectSizes::Modelled { seed: 7, most: 200_000_000 };
        let of = |position| sizes.bytes(SplitPlace::new(1, position), 300);
        let all: Vec<u64> = (0..1_000).map(of).collect();
        assert_eq!(all, (0..1_000).map(of).collect::<Vec<_>>(), "a split has one size");
        assert!(all.iter().all(|bytes| (1..=200_000_000).contains(bytes)));
        for least in [1, 100, 10_000, 1_000_000, 100_000_000] {
            let many = all.iter().filter(|bytes| (least..least * 100).contains(*bytes)).count();
            assert!(many > 20, "{many} from {least} bytes on");
        }
        let other = ObjectSizes::Modelled { seed: 8, most: 200_000_000 };
        assert_ne!(other.bytes(SplitPlace::new(1, 0), 300), of(0));
        let tiny = ObjectSizes::Modelled { seed: 7, most: 1 };
        assert_eq!((tiny.bytes(SplitPlace::default(), 300), of(0) > 0), (1, true));
    }

    #[test]
    fn real_objects_and_absent_ones_count_as_they_are() {
        assert_eq!(ObjectSizes::default().bytes(SplitPlace::default(), 300), 300);
        let sizes = ObjectSizes::Modelled { seed: 7, most: 200 };
        assert_eq!(sizes.bytes(SplitPlace::default(), 0), 0);
    }
}
