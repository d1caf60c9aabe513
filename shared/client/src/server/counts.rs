//! Counts of the steps that the ranks of a fetcher were given, and of the epochs that it saw.

use crate::{EpochTotals, RankBatch, Waits, report::RankSteps};
use gristmill_model::Epoch;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{collections::BTreeMap, ops::Range, time::Duration};

/// One epoch of the job, as this fetcher saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochCounts {
    #[serde(flatten, with = "TotalsJson")]
    pub totals: EpochTotals,
    /// Last batches that no rank got.
    pub left_out: u64,
}

/// The fields of [`EpochTotals`] in the last frame of a fetcher.
#[derive(Serialize, Deserialize)]
#[serde(remote = "EpochTotals")]
struct TotalsJson {
    epoch: Epoch,
    batches: u64,
    rows: u64,
    skipped: u64,
    splits: u32,
    source_ms: u64,
    compute_ms: u64,
    put_ms: u64,
    stored_bytes: u64,
    #[serde(with = "WaitsJson")]
    waits: Waits,
}

/// The fields of [`Waits`], in seconds.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Waits")]
struct WaitsJson {
    #[serde(serialize_with = "write_seconds", deserialize_with = "read_seconds")]
    unclaimed: Duration,
    #[serde(serialize_with = "write_seconds", deserialize_with = "read_seconds")]
    working: Duration,
    #[serde(serialize_with = "write_seconds", deserialize_with = "read_seconds")]
    fetch: Duration,
    #[serde(serialize_with = "write_seconds", deserialize_with = "read_seconds")]
    decode: Duration,
}

fn write_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn read_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
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

    /// A step was released for the first time.
    pub(super) fn step(&mut self, batches: &[Option<RankBatch>]) {
        self.ranks.step(batches);
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

    #[test]
    fn an_epoch_is_the_same_in_the_last_frame() {
        let waits = Waits { unclaimed: Duration::from_millis(1500), ..Waits::default() };
        let totals =
            EpochTotals { epoch: 3, splits: 4, put_ms: 7, waits, ..EpochTotals::default() };
        let counts = EpochCounts { totals, left_out: 2 };
        let json = serde_json::to_value(counts).unwrap();
        assert_eq!((&json["epoch"], &json["waits"]["unclaimed"]), (&3.into(), &1.5.into()));
        assert_eq!(serde_json::from_value::<EpochCounts>(json).unwrap(), counts);
    }

    #[test]
    fn waits_of_an_epoch_that_ends_again_add_up() {
        let waits = Waits { fetch: Duration::from_secs(1), ..Waits::default() };
        let mut counts = ServedCounts::new(0..1);
        for _ in 0..2 {
            counts.end_epoch(&EpochTotals { rows: 5, waits, ..EpochTotals::default() }, 0);
        }
        let EpochTotals { rows, waits, .. } = counts.epochs[&0].totals;
        assert_eq!((rows, waits.fetch), (5, Duration::from_secs(2)));
    }
}
