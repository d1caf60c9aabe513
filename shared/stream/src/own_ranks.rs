//! The ranks of a training run that one fetcher serves.

use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::{KnownBatches, RankAssignment, RunRanks, TrainingStep};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use gristmill_model::{Epoch, Nonce, RunToken};

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
    /// The only rank of a run that begins at batch `from` and that nobody has named; `lot` distinguishes it.
    pub fn one(lot: Nonce, from: Cursor) -> Self {
        let (token, ranks) = (RunToken::from_name(&lot.to_string()), RunRanks::one(from));
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
        let rank = cursor.batch_index.checked_sub(ranks.first_of(step))?;
        let RankRange { first, .. } = self.range;
        Some((step, (u64::from(first)..u64::from(self.range.end())).contains(&rank)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::RunToken;
    use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
    use std::num::NonZeroU32;

    #[test]
    fn each_batch_of_a_step_belongs_to_one_rank() {
        let (four, two) = (NonZeroU32::new(4).unwrap(), NonZeroU32::new(2).unwrap());
        let ranks = RunRanks { count: four, from: Cursor::new(1, 3), tail: TailPolicy::Drop };
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
    fn a_rank_without_a_batch_repeats_one_of_another_rank() {
        let ranks = RunRanks {
            count: NonZeroU32::new(4).unwrap(),
            from: Cursor::default(),
            tail: TailPolicy::Repeat,
        };
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
}
