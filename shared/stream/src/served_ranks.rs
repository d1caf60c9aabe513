//! The ranks of a training run that one fetcher serves.

use gristmill_model::splits::batches::{
    BatchJoiner, BatchRules, PlannedBatch, SplitCounts, SplitRows,
};
use gristmill_model::splits::ranks::{KnownBatches, RankAssignment, RunRanks, TrainingStep};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use gristmill_model::splits::{Cursor, SplitPlace};
use gristmill_model::{Epoch, Nonce, Position, RunToken};
use std::{collections::VecDeque, ops::Range};

/// The ranks of a run that one fetcher serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedRanks {
    pub run: TrainingRun,
    pub range: RankRange,
    /// An earlier fetcher of the same run served these ranks.
    pub is_successor: bool,
    /// Workers in the process of the fetcher.
    pub local_workers: u32,
}

impl ServedRanks {
    /// The only rank of a run that begins at batch `from` and that nobody has named; `nonce` distinguishes it.
    pub fn one(nonce: Nonce, from: Cursor) -> Self {
        let (token, ranks) = (RunToken::from_name(&nonce.to_string()), RunRanks::one(from));
        Self::all(TrainingRun { token, ranks, epochs: None })
    }

    /// All ranks of `run`.
    pub fn all(run: TrainingRun) -> Self {
        let range = RankRange::all(run.ranks.count);
        Self { run, range, is_successor: false, local_workers: 0 }
    }

    /// Whether these are all ranks of the run.
    pub fn are_all(&self) -> bool {
        self.range == RankRange::all(self.run.ranks.count)
    }

    /// The step that takes the batch at `cursor`, and whether one of these ranks takes it. Repeats at the end
    /// of an epoch are not counted. None if the run began after that batch.
    pub fn takes(&self, cursor: Cursor) -> Option<(TrainingStep, bool)> {
        let ranks = &self.run.ranks;
        let step = ranks.step_of(cursor)?;
        let data_rank = cursor.batch_index.checked_sub(ranks.first_of(step))?;
        let data_rank = u32::try_from(data_rank).ok();
        Some((step, data_rank.is_some_and(|data_rank| ranks.takes(self.range, data_rank))))
    }

    /// Number of batches of a step that these ranks take: replicas take one together.
    pub fn data_ranks(&self) -> u32 {
        self.run.ranks.data_ranks_in(self.range)
    }

    /// Batches of other ranks that these ranks take again at the last step of `epoch`, which has `count` batches.
    pub fn repeats(&self, epoch: Epoch, count: u64) -> Vec<u64> {
        let Self { run: TrainingRun { ranks, .. }, range, .. } = self;
        let last = count.checked_sub(1).and_then(|last| ranks.step_of(Cursor::new(epoch, last)));
        let Some(step) = last else { return Vec::new() };
        let known = KnownBatches { count, is_all: true };
        let own = range.first..range.end();
        let repeated = own.filter_map(|rank| match ranks.assign(step, rank, known) {
            RankAssignment::Repeat { batch_index, .. } => Some(batch_index),
            _ => None,
        });
        let is_own = |index: u64| self.takes(Cursor::new(epoch, index)).is_some_and(|(_, own)| own);
        repeated.filter(|index| !is_own(*index)).collect()
    }
}

// Which batches of the stream are delivered here: all of them, or those that some ranks of a run take.
// Arithmetic on the counts of committed splits, without their objects.

/// Picks the batches that are delivered here, from splits in order.
#[derive(Debug, Clone)]
pub(crate) struct BatchPicker {
    /// The ranks served here, if other readers serve the rest.
    part: Option<ServedRanks>,
    /// The first batch that is delivered.
    from: Cursor,
    cut: BatchRules,
    n_splits: Position,
    joiner: BatchJoiner,
    /// Batches of others in the step that is not whole yet; ranks served here may repeat them.
    recent: VecDeque<PlannedBatch>,
}

/// Batches that a split brings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PickedBatches {
    /// Whether the stream begins after the batches that this split completes; it may leave rows for later ones.
    pub is_passed: bool,
    /// Batches to deliver, in order.
    pub batches: Vec<PlannedBatch>,
    /// Batches of other readers after the last of them.
    pub others: Option<Range<Cursor>>,
    /// Batches of other readers that ranks served here take again, because the epoch ends.
    pub repeats: Vec<PlannedBatch>,
    /// Rows of the split that a later batch takes, if every batch is delivered here.
    pub left: Option<SplitRows>,
    /// The first split that later batches may need rows of.
    pub needed: Position,
    /// The first split that a restart at these batches needs.
    pub resume_place: SplitPlace,
    /// Number of batches of the epoch, if it ends with the split.
    pub epoch_end: Option<u64>,
}

impl BatchPicker {
    /// Picks batches of the ranks `part`, or all batches, from `from` on, which `joiner` has counted up to.
    pub fn new(
        part: Option<ServedRanks>,
        from: Cursor,
        cut: BatchRules,
        n_splits: Position,
        joiner: BatchJoiner,
    ) -> Self {
        Self { part, from, cut, n_splits, joiner, recent: VecDeque::new() }
    }

    /// Whether other readers take some of the batches.
    pub fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// The stream ends with the next split, of which some records may be missing: it ends no epoch.
    pub fn ends_within_epoch(&mut self) {
        self.n_splits = Position::MAX;
    }

    /// Adds the split at `place`.
    pub fn push(&mut self, place: SplitPlace, counts: SplitCounts) -> PickedBatches {
        let SplitPlace { epoch, position } = place;
        let resume_place = SplitPlace::new(epoch, self.joiner.first_needed());
        if position < self.joiner.position() {
            let (left, needed) = (self.left(position), self.joiner.first_needed());
            return PickedBatches {
                is_passed: true,
                left,
                needed,
                resume_place,
                ..PickedBatches::default()
            };
        }
        let mut made = Vec::new();
        self.joiner.push(counts, |batch| made.push(batch));
        let next = Cursor::new(epoch, self.joiner.batch_index());
        let left = if next < self.from { None } else { self.left(position) };
        let mut picked = PickedBatches { left, resume_place, ..PickedBatches::default() };
        if self.joiner.position() >= self.n_splits {
            let fresh = BatchJoiner::new(self.cut);
            let ended = std::mem::replace(&mut self.joiner, fresh);
            let before = ended.batch_index();
            let last = ended.finish();
            picked.epoch_end = Some(before + u64::from(last.is_some()));
            picked.left = None;
            made.extend(last);
        }
        for batch in made {
            self.pick(batch, epoch, &mut picked);
        }
        if let Some(count) = picked.epoch_end {
            let repeats = self.part.map(|own| own.repeats(epoch, count)).unwrap_or_default();
            self.recent.retain(|batch| repeats.contains(&batch.batch_index));
            picked.repeats = self.recent.drain(..).collect();
        }
        self.forget_whole_steps(epoch);
        let recent = self.recent.iter().flat_map(PlannedBatch::positions).min();
        picked.needed = recent.map_or(self.joiner.first_needed(), |position| {
            position.min(self.joiner.first_needed())
        });
        picked
    }

    /// Rows of the split at `position` that a later batch takes. The rows for a batch of some ranks are read when
    /// it is known whose it is.
    fn left(&self, position: Position) -> Option<SplitRows> {
        let left = || self.joiner.carry().find(|piece| piece.position == position).cloned();
        if self.is_part() { None } else { left() }
    }

    fn pick(&mut self, batch: PlannedBatch, epoch: Epoch, picked: &mut PickedBatches) {
        let at = Cursor::new(epoch, batch.batch_index);
        if at < self.from {
            return;
        }
        let is_own = |own: ServedRanks| own.takes(at).is_some_and(|(_, is_own)| is_own);
        if self.part.is_none_or(is_own) {
            // The trainer learns from the number of this batch that those before it exist.
            picked.others = None;
            picked.batches.push(batch);
            return;
        }
        let first = picked.others.take().map_or(at, |others| others.start);
        picked.others = Some(first..at.next());
        self.recent.push_back(batch);
    }

    /// Forgets batches of steps that all ranks take part in: none of them is repeated.
    fn forget_whole_steps(&mut self, epoch: Epoch) {
        let Some(own) = self.part else { return };
        let next = Cursor::new(epoch, self.joiner.batch_index());
        let first = own.run.ranks.step_of(next).map(|step| own.run.ranks.first_of(step));
        self.recent.retain(|batch| first.is_some_and(|first| batch.batch_index >= first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::RunToken;
    use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
    use gristmill_model::splits::readers::RankRange;
    use gristmill_model::splits::run::TrainingRun;
    use std::num::NonZeroU32;

    #[test]
    fn each_batch_of_a_step_belongs_to_one_rank() {
        let (four, two) = (NonZeroU32::new(4).unwrap(), NonZeroU32::new(2).unwrap());
        let ranks = RunRanks::new(four, Cursor::new(1, 3), TailPolicy::Drop);
        let run = TrainingRun { token: RunToken::from_name("t"), ranks, epochs: None };
        let range = RankRange { first: 2, count: two };
        let own = ServedRanks { run, range, is_successor: false, local_workers: 0 };
        assert!(!own.are_all());
        let taken =
            |epoch, index| own.takes(Cursor::new(epoch, index)).map(|(s, own)| (s.number, own));
        assert_eq!(taken(1, 2), None, "before the run");
        assert_eq!([taken(1, 3), taken(1, 5)], [Some((0, false)), Some((0, true))]);
        assert_eq!([taken(1, 7), taken(2, 3)], [Some((1, false)), Some((0, true))]);
    }

    #[test]
    fn replicas_of_one_fetcher_take_a_batch_together() {
        let own = |range, replicas: &str| {
            let own = crate::samples::own(8, range, Cursor::default(), TailPolicy::Drop);
            let ranks = RunRanks { replicas: replicas.parse().unwrap(), ..own.run.ranks };
            ServedRanks { run: TrainingRun { ranks, ..own.run }, ..own }
        };
        let taken = |own: ServedRanks| {
            let takes = |index| own.takes(Cursor::new(0, index)).unwrap().1;
            (own.data_ranks(), (0..4).filter(|index| takes(*index)).collect::<Vec<_>>())
        };
        assert_eq!(taken(own(0..4, "2")), (2, vec![0, 1]));
        assert_eq!(taken(own(3..6, "2")), (2, vec![1, 2]));
        assert_eq!(
            taken(own(4..8, "2x1")),
            (4, vec![0, 1, 2, 3]),
            "all data, for the second stage"
        );
        assert_eq!(taken(own(3..6, "2x1")), (3, vec![0, 1, 3]), "they go on with rank 0's batch");
    }

    #[test]
    fn a_rank_without_a_batch_repeats_one_of_another_rank() {
        let ranks =
            RunRanks::new(NonZeroU32::new(4).unwrap(), Cursor::default(), TailPolicy::Repeat);
        let run = TrainingRun { token: RunToken::from_name("t"), ranks, epochs: None };
        let repeats = |first, count, batches| {
            let range = RankRange { first, count: NonZeroU32::new(count).unwrap() };
            ServedRanks { run, range, is_successor: false, local_workers: 0 }.repeats(0, batches)
        };
        assert_eq!(repeats(2, 2, 6), [5, 4]);
        assert_eq!(repeats(2, 2, 5), [4, 4]);
        assert_eq!(repeats(3, 1, 6), [4], "rank 3 repeats batch 4 of rank 0");
        assert!(repeats(1, 2, 6).is_empty(), "rank 2 repeats batch 5 of rank 1");
        assert!(repeats(1, 1, 6).is_empty(), "rank 1 takes batch 5");
        assert!(repeats(0, 4, 6).is_empty(), "all batches are here");
        assert!(repeats(3, 1, 8).is_empty() && repeats(3, 1, 0).is_empty());
    }

    const CUT: BatchRules = BatchRules { size: 8, drop_last: false, in_order: false };

    /// Picks for rank `rank` of three, in an epoch of `n_splits` splits.
    fn picker(rank: u32, n_splits: Position, tail: TailPolicy) -> BatchPicker {
        let ranks = RunRanks::new(NonZeroU32::new(3).unwrap(), Cursor::default(), tail);
        let run = TrainingRun { token: RunToken::from_name("run"), ranks, epochs: None };
        let range = RankRange { first: rank, count: NonZeroU32::MIN };
        let own = ServedRanks { run, range, is_successor: false, local_workers: 0 };
        BatchPicker::new(Some(own), Cursor::default(), CUT, n_splits, BatchJoiner::new(CUT))
    }

    fn push(
        picker: &mut BatchPicker,
        position: Position,
        batches: u32,
        rows: u32,
    ) -> PickedBatches {
        let counts = SplitCounts { batches, remainder_rows: rows };
        picker.push(SplitPlace::new(0, position), counts)
    }

    fn numbers(batches: &[PlannedBatch]) -> Vec<u64> {
        batches.iter().map(|batch| batch.batch_index).collect()
    }

    #[test]
    fn a_rank_takes_its_batches_and_learns_of_those_of_others() {
        let mut picker = picker(1, 3, TailPolicy::Drop);
        let picked = push(&mut picker, 0, 4, 0);
        assert_eq!(numbers(&picked.batches), [1]);
        assert_eq!(picked.others, Some(Cursor::new(0, 2)..Cursor::new(0, 4)));
        let picked = push(&mut picker, 1, 1, 0);
        assert_eq!((numbers(&picked.batches), picked.others), (vec![4], None));
        let picked = push(&mut picker, 2, 0, 0);
        assert_eq!((picked.batches, picked.others, picked.epoch_end), (vec![], None, Some(5)));
    }

    #[test]
    fn a_batch_of_others_is_repeated_only_where_the_epoch_ends() {
        let mut picker = picker(2, 2, TailPolicy::Repeat);
        let picked = push(&mut picker, 0, 4, 0);
        assert_eq!(numbers(&picked.batches), [2]);
        assert_eq!((picked.needed, picker.recent.len()), (0, 1), "batch 3 may be repeated");
        let picked = push(&mut picker, 1, 0, 0);
        assert_eq!((numbers(&picked.repeats), picked.epoch_end), (vec![3], Some(4)));
        assert!(picker.recent.is_empty());
    }

    #[test]
    fn a_split_with_which_the_stream_ends_brings_whole_batches_and_ends_no_epoch() {
        let mut picker = BatchPicker::new(None, Cursor::default(), CUT, 2, BatchJoiner::new(CUT));
        push(&mut picker, 0, 1, 5);
        picker.ends_within_epoch();
        let picked = push(&mut picker, 1, 1, 4);
        assert_eq!((numbers(&picked.batches), picked.epoch_end), (vec![1, 2], None));
    }

    #[test]
    fn rows_that_are_left_are_needed_until_their_batch_is_complete() {
        let mut picker = picker(0, 3, TailPolicy::Drop);
        assert_eq!(push(&mut picker, 0, 3, 5).needed, 0);
        let picked = push(&mut picker, 1, 0, 4);
        assert_eq!((numbers(&picked.batches), picked.needed), (vec![3], 1));
        assert_eq!(picked.batches[0].positions().collect::<Vec<_>>(), [0, 1]);
    }

    /// Counts of a split, drawn from `seed`: up to two batches, and a remainder in most splits.
    fn drawn(seed: &mut u64) -> SplitCounts {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = *seed >> 33;
        let remainder = if draw.is_multiple_of(3) { 0 } else { draw / 9 % 8 };
        SplitCounts { batches: (draw / 3 % 3) as u32, remainder_rows: remainder as u32 }
    }

    #[test]
    fn readers_pick_every_batch_once_and_from_splits_that_are_still_needed() {
        for (seed, tail) in (0..200)
            .zip([TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven].into_iter().cycle())
        {
            let mut seed: u64 = seed;
            let splits: Vec<_> = (0..12).map(|_| drawn(&mut seed)).collect();
            let mut all = BatchPicker::new(None, Cursor::default(), CUT, 12, BatchJoiner::new(CUT));
            let mut readers: Vec<_> = (0..3).map(|rank| picker(rank, 12, tail)).collect();
            let mut kept = [0; 3];
            for (position, counts) in (0..).zip(splits) {
                let place = SplitPlace::new(0, position);
                let expected = all.push(place, counts);
                let mut picked = Vec::new();
                for (reader, kept) in readers.iter_mut().zip(&mut kept) {
                    let of = reader.push(place, counts);
                    assert_eq!((of.epoch_end, of.left), (expected.epoch_end, None));
                    for batch in of.batches.iter().chain(&of.repeats) {
                        assert!(batch.positions().all(|of| (*kept..=position).contains(&of)));
                    }
                    assert!(of.epoch_end.is_some() || of.needed >= *kept);
                    *kept = of.needed;
                    picked.extend(of.batches);
                }
                picked.sort_by_key(|batch| batch.batch_index);
                assert_eq!(picked, expected.batches);
            }
        }
    }
}
