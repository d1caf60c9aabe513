//! Counts of the steps that the ranks of a fetcher were given, and of the epochs that it saw.

use gristmill_model::Epoch;
use gristmill_stream::{EpochCounts, EpochTotals, RankSteps};
use std::{collections::BTreeMap, ops::Range};

/// The steps of all ranks of a fetcher, and the epochs of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCounts {
    pub ranks: RankSteps,
    pub epochs: BTreeMap<Epoch, EpochCounts>,
}

impl ServedCounts {
    pub(super) fn new(range: Range<u32>) -> Self {
        let mut ranks = RankSteps::default();
        ranks.begin_run(range);
        Self { ranks, epochs: BTreeMap::new() }
    }

    /// An epoch ended, maybe not for the first time.
    pub(super) fn end_epoch(&mut self, totals: &EpochTotals, left_out: u64) {
        let mut totals = *totals;
        if let Some(before) = self.epochs.get(&totals.epoch) {
            // A rank went back to an earlier step, and waited again.
            totals.waits += before.totals.waits;
        }
        self.epochs.insert(totals.epoch, EpochCounts { totals, left_out });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_stream::DeliveryWaits;
    use std::time::Duration;

    #[test]
    fn waits_of_an_epoch_that_ends_again_add_up() {
        let waits = DeliveryWaits { fetch: Duration::from_secs(1), ..DeliveryWaits::default() };
        let mut counts = ServedCounts::new(0..1);
        for _ in 0..2 {
            counts.end_epoch(&EpochTotals { rows: 5, waits, ..EpochTotals::default() }, 0);
        }
        let EpochTotals { rows, waits, .. } = counts.epochs[&0].totals;
        assert_eq!((rows, waits.fetch), (5, Duration::from_secs(2)));
    }
}
