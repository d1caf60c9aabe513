//! Which rows make which batch: arithmetic on the counts of committed splits, without their objects.
//!
//! Splits are taken in by position. The complete batches of a split come first; the rows left over
//! are joined with those of later splits, and a joined batch follows the split that completes it. So
//! every batch of an epoch is full but the last, and has a number, the same for
//! every reader.
//!
//! In order, no row may pass another: where rows are left over, the batches of the next split are
//! cut anew, and begin with those rows.

use crate::Position;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;

/// Rows of one split.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SplitRows {
    pub position: Position,
    /// Counted through the frames of its object, from 0.
    pub rows: Range<u32>,
}

impl SplitRows {
    /// Number of rows.
    pub fn len(&self) -> u32 {
        self.rows.end - self.rows.start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Location of the rows of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BatchLocation {
    /// Batch `frame` of the object at `position`, from 0.
    Whole { position: Position, frame: u32 },
    /// Pieces to be concatenated.
    Joined(Vec<SplitRows>),
}

/// One batch of the epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlannedBatch {
    /// Its number in the epoch, from 0.
    pub batch_index: u64,
    /// Rows of a joined batch. A whole one of a pipeline with several batch sizes has as many as its frame says.
    pub rows: u32,
    pub source: BatchLocation,
}

impl PlannedBatch {
    /// The positions whose objects hold its rows, in order.
    pub fn positions(&self) -> impl Iterator<Item = Position> {
        let (whole, pieces) = match &self.source {
            BatchLocation::Whole { position, .. } => (Some(*position), &[][..]),
            BatchLocation::Joined(pieces) => (None, pieces.as_slice()),
        };
        whole.into_iter().chain(pieces.iter().map(|piece| piece.position))
    }
}

/// Counts of a committed split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitCounts {
    /// Complete batches.
    pub batches: u32,
    /// Rows left over.
    pub remainder_rows: u32,
}

/// How the rows of an epoch are cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchRules {
    /// Rows of a joined batch, at least 1. Complete batches of a split may have more; of every split
    /// fewer rows than this are left over.
    pub size: u32,
    /// Whether a last partial batch is left out.
    pub drop_last: bool,
    /// Whether rows keep the order of the splits, leftovers included.
    pub in_order: bool,
}

/// Joins splits, in order, into batches.
///
/// A trainer that resumes at a batch feeds a fresh joiner the counts of the epoch's splits from
/// position 0 and drops earlier batches; it needs only the objects that the other batches name. Or
/// it keeps a joiner (it is small) beside its cursor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchJoiner {
    cut: BatchRules,
    position: Position,
    batch_index: u64,
    /// Left over so far, fewer rows than a batch.
    carry: VecDeque<SplitRows>,
    carried: u64,
}

impl BatchJoiner {
    /// The start of an epoch.
    pub fn new(cut: BatchRules) -> Self {
        Self {
            cut: BatchRules { size: cut.size.max(1), ..cut },
            position: 0,
            batch_index: 0,
            carry: VecDeque::new(),
            carried: 0,
        }
    }

    /// A joiner at the lowest position from which batch `batch_index` and all later ones can be
    /// made again, given the known counts of splits from position 0 on.
    ///
    /// It carries rows of earlier positions that this batch or a later one needs; see
    /// [`BatchJoiner::first_needed`]. If the counts end before that batch, it stands where they end.
    pub fn seek(
        cut: BatchRules,
        batch_index: u64,
        counts: impl IntoIterator<Item = SplitCounts>,
    ) -> Self {
        let mut joiner = Self::new(cut);
        for counts in counts {
            let rows = joiner.carried + u64::from(counts.remainder_rows);
            let completed = u64::from(counts.batches) + rows / u64::from(joiner.cut.size);
            if joiner.batch_index + completed > batch_index {
                break;
            }
            joiner.push(counts, |_| {});
        }
        joiner
    }

    /// The position of the next split to push.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The number of the next batch.
    pub fn batch_index(&self) -> u64 {
        self.batch_index
    }

    /// Rows carried over to the next joined batch, in order.
    pub fn carry(&self) -> impl Iterator<Item = &SplitRows> {
        self.carry.iter()
    }

    /// The lowest position whose object the next batches may still need.
    pub fn first_needed(&self) -> Position {
        self.carry.front().map_or(self.position, |piece| piece.position)
    }

    /// Adds the split at [`BatchJoiner::position`] and passes the batches that it completes to `give`,
    /// in order.
    pub fn push(&mut self, counts: SplitCounts, mut give: impl FnMut(PlannedBatch)) {
        let position = self.position;
        self.position += 1;
        let whole = if self.cut.in_order && self.carried > 0 { 0 } else { counts.batches };
        for frame in 0..whole {
            let source = BatchLocation::Whole { position, frame };
            give(PlannedBatch {
                batch_index: self.batch_index + u64::from(frame),
                rows: self.cut.size,
                source,
            });
        }
        self.batch_index += u64::from(whole);
        let start = whole.saturating_mul(self.cut.size);
        let end =
            counts.batches.saturating_mul(self.cut.size).saturating_add(counts.remainder_rows);
        if start < end {
            self.carry.push_back(SplitRows { position, rows: start..end });
            self.carried += u64::from(end - start);
        }
        while self.carried >= u64::from(self.cut.size) {
            give(self.take(self.cut.size));
        }
    }

    /// Ends the epoch: the last batch, which is not full, unless there are no rows for one or it is
    /// to be dropped.
    pub fn finish(mut self) -> Option<PlannedBatch> {
        let rows = u32::try_from(self.carried).unwrap_or(u32::MAX);
        (rows > 0 && !self.cut.drop_last).then(|| self.take(rows))
    }

    /// Joins the next `rows` carried rows; there are as many.
    fn take(&mut self, rows: u32) -> PlannedBatch {
        let mut pieces = Vec::with_capacity(self.carry.len());
        let mut missing = rows;
        while missing > 0
            && let Some(piece) = self.carry.front_mut()
        {
            let taken = piece.len().min(missing);
            let end = piece.rows.start + taken;
            pieces.push(SplitRows { position: piece.position, rows: piece.rows.start..end });
            piece.rows.start = end;
            missing -= taken;
            if piece.is_empty() {
                self.carry.pop_front();
            }
        }
        self.carried -= u64::from(rows - missing);
        let batch_index = self.batch_index;
        self.batch_index += 1;
        PlannedBatch { batch_index, rows: rows - missing, source: BatchLocation::Joined(pieces) }
    }
}

#[cfg(test)]
mod tests;
