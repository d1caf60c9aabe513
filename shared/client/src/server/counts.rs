//! Counts of the steps that the ranks of a fetcher were given, and of the epochs that it saw.

use crate::{EpochTotals, report::RankSteps};
use gristmill_model::Epoch;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::Range};

/// One epoch of the job, as this fetcher saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochCounts {
    #[serde(flatten)]
    pub totals: EpochTotals,
    /// Last batches that no rank got.
    pub left_out: u64,
}

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
    use crate::DeliveryWaits;
    use std::time::Duration;

    #[test]
    fn an_epoch_is_the_same_in_the_last_frame() {
        let waits =
            DeliveryWaits { unclaimed: Duration::from_millis(1500), ..DeliveryWaits::default() };
        let totals = EpochTotals { epoch: 3, splits: 4, waits, ..EpochTotals::default() };
        let counts = EpochCounts { totals, left_out: 2 };
        let json = serde_json::to_value(counts).unwrap();
        assert_eq!((&json["epoch"], &json["waits"]["unclaimed"]), (&3.into(), &1.5.into()));
        assert_eq!(serde_json::from_value::<EpochCounts>(json).unwrap(), counts);
    }

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
