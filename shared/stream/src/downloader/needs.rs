//! Which objects, or frames of them, the batches of a split need.

use crate::own_batches::PickedBatches;
use gristmill_model::Position;
use gristmill_model::splits::SplitKind;
use gristmill_model::splits::batches::BatchLocation;
use gristmill_model::wire::ReadySplit;
use std::collections::{BTreeMap, BTreeSet};

/// Objects up to this size are read whole: a second request takes longer than the bytes that it saves.
const SMALL_BYTES: u64 = 16 << 10;

/// The part of an object that is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NeededPart {
    Whole,
    Frames {
        /// Numbers of the frames.
        frames: BTreeSet<u32>,
        /// About how many bytes they have.
        bytes: u64,
    },
}

impl NeededPart {
    /// `frames` of the object of `entry`, in batches of `size` rows.
    fn from_frames(entry: &ReadySplit, frames: BTreeSet<u32>, size: u32) -> Self {
        let outcome = &entry.outcome;
        let rows_of = |frame: &u32| {
            if *frame < outcome.batches {
                u64::from(size)
            } else {
                u64::from(outcome.remainder_rows)
            }
        };
        let needed: u64 = frames.iter().map(rows_of).sum();
        let all = u64::from(outcome.batches) * u64::from(size) + u64::from(outcome.remainder_rows);
        let is_most = u128::from(needed) * 10 >= u128::from(all) * 9;
        // A chunk of an earlier local worker has no object: all of it is computed again.
        let is_local = outcome.kind == SplitKind::Local;
        if is_most || is_local || outcome.object_bytes <= SMALL_BYTES {
            return Self::Whole;
        }
        let bytes = u128::from(outcome.object_bytes) * u128::from(needed) / u128::from(all.max(1));
        Self::Frames { frames, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }
    }

    /// About how many of the `all` bytes that the object of `entry` counts for this is.
    pub fn bytes(&self, entry: &ReadySplit, all: u64) -> u64 {
        let Self::Frames { bytes, .. } = self else { return all };
        let object_bytes = u128::from(entry.outcome.object_bytes.max(1));
        let part = u128::from(all) * u128::from(*bytes) / object_bytes;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// Finds what is needed, and remembers the entries of splits that later batches may need.
pub(super) struct SplitNeeds {
    /// Rows per batch.
    size: u32,
    /// Whether only the batches of some ranks are delivered here.
    is_part: bool,
    entries: BTreeMap<Position, ReadySplit>,
}

impl SplitNeeds {
    pub fn new(size: u32, is_part: bool) -> Self {
        Self { size: size.max(1), is_part, entries: BTreeMap::new() }
    }

    /// Finds what is needed of the split committed as `entry`, which brought `picked`, and of earlier ones.
    pub fn parts_of_split(
        &mut self,
        entry: &ReadySplit,
        picked: &PickedBatches,
    ) -> Vec<(ReadySplit, NeededPart)> {
        if !self.is_part {
            let has_batches = !(picked.batches.is_empty() && picked.repeats.is_empty());
            let is_needed =
                entry.outcome.kind != SplitKind::Poison && (has_batches || picked.left.is_some());
            return is_needed.then(|| (entry.clone(), NeededPart::Whole)).into_iter().collect();
        }
        self.entries.insert(entry.place.position, entry.clone());
        let mut shares = Vec::new();
        for (position, frames) in frames(picked, self.size) {
            // An absent entry is an error when the batch is joined.
            if let Some(entry) = self.entries.get(&position) {
                shares.push((entry.clone(), NeededPart::from_frames(entry, frames, self.size)));
            }
        }
        match picked.epoch_end {
            Some(_) => self.entries.clear(),
            None => self.entries = self.entries.split_off(&picked.needed),
        }
        shares
    }
}

/// The frames that hold rows of the batches, by split.
fn frames(picked: &PickedBatches, size: u32) -> BTreeMap<Position, BTreeSet<u32>> {
    let mut frames: BTreeMap<Position, BTreeSet<u32>> = BTreeMap::new();
    for batch in picked.batches.iter().chain(&picked.repeats) {
        match &batch.source {
            BatchLocation::Whole { position, frame } => {
                frames.entry(*position).or_default().insert(*frame);
            }
            BatchLocation::Joined(pieces) => {
                for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
                    let numbers = piece.rows.start / size..=(piece.rows.end - 1) / size;
                    frames.entry(piece.position).or_default().extend(numbers);
                }
            }
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::entry;
    use gristmill_model::splits::batches::{PlannedBatch, SplitRows};

    /// A split of `batches` batches and a remainder of four rows, in an object of 1 MiB.
    fn large(position: u32, batches: u32) -> ReadySplit {
        let mut entry = entry(0, position, batches);
        (entry.outcome.object_bytes, entry.outcome.remainder_rows) = (1 << 20, 4);
        entry
    }

    fn whole(position: u32, frame: u32) -> PlannedBatch {
        PlannedBatch { batch_index: 0, rows: 8, source: BatchLocation::Whole { position, frame } }
    }

    fn joined(pieces: &[(u32, std::ops::Range<u32>)]) -> PlannedBatch {
        let piece = |(position, rows): &(u32, std::ops::Range<u32>)| SplitRows {
            position: *position,
            rows: rows.clone(),
        };
        let source = BatchLocation::Joined(pieces.iter().map(piece).collect());
        PlannedBatch { batch_index: 0, rows: 8, source }
    }

    fn frames_of(share: &NeededPart) -> Vec<u32> {
        match share {
            NeededPart::Frames { frames, .. } => frames.iter().copied().collect(),
            NeededPart::Whole => panic!("the whole object"),
        }
    }

    #[test]
    fn rows_of_an_earlier_split_are_read_with_the_split_that_completes_their_batch() {
        let mut needs = SplitNeeds::new(8, true);
        assert!(needs.parts_of_split(&large(0, 4), &PickedBatches::default()).is_empty());
        let batches = vec![whole(1, 2), joined(&[(0, 32..36), (1, 32..36)])];
        let shares = needs.parts_of_split(
            &large(1, 4),
            &PickedBatches { batches, needed: 2, ..PickedBatches::default() },
        );
        let [(first, remainder), (second, own)] = shares.as_slice() else { panic!("{shares:?}") };
        assert_eq!((first.place.position, frames_of(remainder)), (0, vec![4]));
        assert_eq!((second.place.position, frames_of(own)), (1, vec![2, 4]));
        assert_eq!(own.bytes(second, 1 << 20), (1 << 20) * 12 / 36);
        assert_eq!(
            own.bytes(second, 36),
            11,
            "about a third of the bytes for which the object counts"
        );
        assert!(needs.entries.is_empty());
    }

    #[test]
    fn an_object_is_read_whole_where_most_of_it_is_needed_or_it_is_small() {
        let share = |entry: &ReadySplit, frames: std::ops::Range<u32>| {
            NeededPart::from_frames(entry, frames.collect(), 8)
        };
        let ten = large(0, 10);
        assert_eq!(share(&ten, 0..10), NeededPart::Whole);
        assert_ne!(share(&ten, 0..9), NeededPart::Whole);
        let mut small = large(0, 10);
        small.outcome.object_bytes = SMALL_BYTES;
        assert_eq!(share(&small, 0..1), NeededPart::Whole);
        let mut local = large(0, 10);
        local.outcome.kind = SplitKind::Local;
        assert_eq!(share(&local, 0..1), NeededPart::Whole);
    }

    #[test]
    fn a_reader_of_all_batches_takes_whole_objects() {
        let mut needs = SplitNeeds::new(8, false);
        let passed = |left| PickedBatches { is_passed: true, left, ..PickedBatches::default() };
        assert!(needs.parts_of_split(&large(0, 4), &passed(None)).is_empty());
        let left = SplitRows { position: 0, rows: 32..36 };
        assert_eq!(needs.parts_of_split(&large(0, 4), &passed(Some(left))).len(), 1);
        let batches = vec![whole(0, 1)];
        let picked = PickedBatches { batches, ..PickedBatches::default() };
        assert_eq!(needs.parts_of_split(&large(0, 4), &picked)[0].1, NeededPart::Whole);
        let again = needs.parts_of_split(&large(0, 4), &PickedBatches::default());
        assert!(again.is_empty(), "the trainer has all its batches");
        let mut poison = large(0, 0);
        poison.outcome.kind = SplitKind::Poison;
        assert!(needs.parts_of_split(&poison, &PickedBatches::default()).is_empty());
    }
}
