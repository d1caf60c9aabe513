//! Counts of the steps that the ranks of a fetcher were given, for its report.

use crate::{EpochTotals, RankBatch};
use gristmill_model::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The steps of one rank, each counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RankCounts {
    pub rank: u32,
    pub steps: u64,
    /// Steps with a batch that was given again, because the epoch had too few.
    pub repeats: u64,
}

/// One epoch of the job, as this fetcher saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochCounts {
    pub epoch: Epoch,
    pub batches: u64,
    pub rows: u64,
    /// Records that were skipped.
    pub skipped: u64,
    /// Last batches that no rank got.
    pub left_out: u64,
}

/// The steps of all ranks of a fetcher, and the epochs of the job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    pub ranks: Vec<RankCounts>,
    pub epochs: Vec<EpochCounts>,
}

/// Counts while a job is served.
#[derive(Debug, Default)]
pub(super) struct Counter {
    ranks: Vec<RankCounts>,
    epochs: BTreeMap<Epoch, EpochCounts>,
}

impl Counter {
    pub fn new(ranks: impl Iterator<Item = u32>) -> Self {
        let ranks = ranks.map(|rank| RankCounts { rank, ..RankCounts::default() }).collect();
        Self { ranks, epochs: BTreeMap::new() }
    }

    /// A step was released for the first time.
    pub fn step(&mut self, batches: &[Option<RankBatch>]) {
        for (counts, batch) in self.ranks.iter_mut().zip(batches) {
            let Some(batch) = batch else { continue };
            counts.steps += 1;
            counts.repeats += u64::from(batch.repeated_for.is_some());
        }
    }

    /// An epoch ended, maybe not for the first time.
    pub fn end_epoch(&mut self, totals: &EpochTotals, left_out: u64) {
        let EpochTotals { epoch, batches, rows, skipped, .. } = *totals;
        self.epochs.insert(epoch, EpochCounts { epoch, batches, rows, skipped, left_out });
    }

    pub fn counts(&self) -> Counts {
        Counts { ranks: self.ranks.clone(), epochs: self.epochs.values().copied().collect() }
    }
}
