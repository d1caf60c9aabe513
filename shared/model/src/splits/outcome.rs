//! A finished split: the content of its object, and the time that its worker took.

use crate::splits::batches::SplitCounts;
use crate::{Attempt, ErrorPolicy, Nonce};
use serde::{Deserialize, Serialize};

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
    pub fn poison(records: u32) -> Self {
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

/// Time that workers spent, by activity.
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
        Self {
            source_ms: self.source_ms.saturating_add(more.source_ms),
            compute_ms: self.compute_ms.saturating_add(more.compute_ms),
            put_ms: self.put_ms.saturating_add(more.put_ms),
        }
    }

    /// The larger of each time.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            source_ms: self.source_ms.max(other.source_ms),
            compute_ms: self.compute_ms.max(other.compute_ms),
            put_ms: self.put_ms.max(other.put_ms),
        }
    }

    /// An equal share of each time for one of `splits`.
    #[must_use]
    pub fn share_of(self, splits: u32) -> Self {
        let splits = u64::from(splits.max(1));
        Self {
            source_ms: self.source_ms / splits,
            compute_ms: self.compute_ms / splits,
            put_ms: self.put_ms / splits,
        }
    }

    pub fn total_ms(self) -> u64 {
        [self.source_ms, self.compute_ms, self.put_ms].into_iter().sum()
    }
}
