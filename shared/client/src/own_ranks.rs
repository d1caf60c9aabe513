//! The ranks of a training run that one fetcher serves.

use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use gristmill_model::splits::{Cursor, ranks::Step};

/// The ranks of a run that one fetcher serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRanks {
    pub run: TrainingRun,
    pub range: RankRange,
    /// An earlier fetcher of the same run served these ranks.
    pub is_successor: bool,
}

impl OwnRanks {
    /// Whether these are all ranks of the run.
    pub fn are_all(&self) -> bool {
        self.range == RankRange::all(self.run.ranks.count)
    }

    /// The step that takes the batch at `cursor`, and whether one of these ranks takes it. Repeats at the end
    /// of an epoch are not counted. None if the run began after that batch.
    pub fn takes(&self, cursor: Cursor) -> Option<(Step, bool)> {
        let ranks = &self.run.ranks;
        let step = ranks.step_of(cursor)?;
        let rank = cursor.batch_index.checked_sub(ranks.first_of(step))?;
        let RankRange { first, .. } = self.range;
        Some((step, (u64::from(first)..u64::from(self.range.end())).contains(&rank)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::RunToken;
    use gristmill_model::splits::ranks::{Ranks, Tail};
    use std::num::NonZeroU32;

    #[test]
    fn each_batch_of_a_step_belongs_to_one_rank() {
        let (four, two) = (NonZeroU32::new(4).unwrap(), NonZeroU32::new(2).unwrap());
        let ranks = Ranks { count: four, from: Cursor::new(1, 3), tail: Tail::Drop };
        let run = TrainingRun { token: RunToken::of("t"), ranks };
        let range = RankRange { first: 2, count: two };
        let own = OwnRanks { run, range, is_successor: false };
        assert!(!own.are_all());
        let taken =
            |epoch, index| own.takes(Cursor::new(epoch, index)).map(|(s, own)| (s.number, own));
        assert_eq!(taken(1, 2), None, "before the run");
        assert_eq!([taken(1, 3), taken(1, 5)], [Some((0, false)), Some((0, true))]);
        assert_eq!([taken(1, 7), taken(2, 3)], [Some((1, false)), Some((0, true))]);
    }
}
