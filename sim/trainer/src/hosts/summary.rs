//! The totals that fetchers send at the end of a run.

use gristmill_model::Epoch;
use gristmill_stream::{DeliveryWaits, EpochCounts, EpochTotals};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The payload of a fetcher's last frames.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FetcherSummary {
    /// Whether the job is closed: nothing is left to acknowledge.
    #[serde(default)]
    pub closed: bool,
    #[serde(default)]
    totals: Vec<EpochCounts>,
}

impl FetcherSummary {
    /// Waits of the fetcher's ranks, in all epochs that it has seen to their ends.
    pub fn waits(&self) -> DeliveryWaits {
        let mut waits = DeliveryWaits::default();
        self.totals.iter().for_each(|counts| waits += counts.totals.waits);
        waits
    }
}

/// The epochs that some fetcher has seen to their ends. One that was started later lacks the earlier ones.
#[derive(Debug, Default)]
pub struct KnownEpochs {
    pub epochs: BTreeMap<Epoch, EpochCounts>,
}

impl KnownEpochs {
    /// Adds what one fetcher knows.
    pub fn add(&mut self, summary: &FetcherSummary) {
        for counts in &summary.totals {
            let known = self.epochs.entry(counts.totals.epoch).or_insert(*counts);
            join(&mut known.totals, &counts.totals);
        }
    }
}

/// Adds what another fetcher knows of an epoch: the work is that of the whole job, of which one may have seen less,
/// and all ranks waited for those that waited longest.
fn join(known: &mut EpochTotals, other: &EpochTotals) {
    known.splits = known.splits.max(other.splits);
    known.times = known.times.most(other.times);
    known.stored_bytes = known.stored_bytes.max(other.stored_bytes);
    if other.waits.total() > known.waits.total() {
        known.waits = other.waits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};
    use std::time::Duration;

    /// The summary of a fetcher whose ranks waited for so many seconds in epoch 1.
    fn summary(compute_ms: u64, fetch: f64) -> FetcherSummary {
        let waits = json!({ "unclaimed": 0.5, "working": 0, "fetch": fetch, "decode": 0 });
        let epoch = json!({
            "epoch": 1, "batches": 5, "rows": 40, "skipped": 1, "left_out": 2, "splits": 3,
            "source_ms": 1, "compute_ms": compute_ms, "put_ms": 2, "stored_bytes": 9, "waits": waits,
        });
        from_value(json!({ "epochs": 2, "batches": 5, "closed": true, "totals": [epoch] })).unwrap()
    }

    #[test]
    fn fetchers_add_the_epochs_that_they_know() {
        let (one, two) = (summary(70, 1.0), summary(60, 2.0));
        assert!(one.closed);
        let none: FetcherSummary = from_value(json!({ "epochs": 2 })).unwrap();
        assert!(!none.closed && none.waits() == DeliveryWaits::default());
        let mut known = KnownEpochs::default();
        [&one, &two, &none].into_iter().for_each(|summary| known.add(summary));
        assert_eq!(known.epochs.keys().collect::<Vec<_>>(), [&1]);
        let EpochCounts { totals, left_out } = known.epochs[&1];
        assert_eq!((totals.rows, totals.skipped, totals.splits, left_out), (40, 1, 3, 2));
        assert_eq!((totals.times.compute_ms, totals.waits), (70, two.waits()));
        assert_eq!(one.waits().total(), Duration::from_millis(1500));
    }
}
