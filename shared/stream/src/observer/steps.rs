//! The steps of ranks: of all, or of those of one fetcher.

use crate::{DeliveryWaits, RankBatch};
use serde::Serialize;
use std::ops::Range;

/// The steps of one rank in all runs of a training, each counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RankCounts {
    pub rank: u32,
    pub steps: u64,
    /// Steps with a batch that was given again, because the epoch had too few.
    pub repeats: u64,
    /// Its waits, if a fetcher of another process measured them; else it waited as all ranks did together.
    #[serde(skip)]
    pub waits: Option<DeliveryWaits>,
}

/// Steps of each rank, and those of each run of a training.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankSteps {
    ranks: Vec<RankCounts>,
    runs: Vec<Vec<u64>>,
}

impl RankSteps {
    /// A run begins with these ranks; all runs have the same first one.
    pub fn begin_run(&mut self, ranks: Range<u32>) {
        self.runs.push(vec![0; ranks.len()]);
        let new = ranks.skip(self.ranks.len());
        self.ranks.extend(new.map(|rank| RankCounts { rank, steps: 0, repeats: 0, waits: None }));
    }

    /// The ranks of the current run were given the batches of a step.
    pub fn step(&mut self, batches: &[Option<RankBatch>]) {
        let Some(run) = self.runs.last_mut() else { return };
        for ((counts, steps), batch) in self.ranks.iter_mut().zip(run).zip(batches) {
            let Some(batch) = batch else { continue };
            *steps += 1;
            counts.steps += 1;
            counts.repeats += u64::from(batch.repeated_for.is_some());
        }
    }

    /// The fetcher of `rank` measured these waits in an epoch.
    pub fn waited(&mut self, rank: u32, waits: DeliveryWaits) {
        if let Some(counts) = self.ranks.iter_mut().find(|counts| counts.rank == rank) {
            *counts.waits.get_or_insert_default() += waits;
        }
    }

    /// Each rank, in order.
    pub fn iter(&self) -> impl Iterator<Item = &RankCounts> {
        self.ranks.iter()
    }

    /// Steps of each rank in each run, in order.
    pub fn runs(&self) -> &[Vec<u64>] {
        &self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeliveredBatch, MemoryShare};
    use std::time::Duration;

    fn given(repeated_for: Option<u64>) -> Option<RankBatch> {
        let frame = bytes::Bytes::new();
        let batch = DeliveredBatch {
            epoch: 0,
            batch_index: 0,
            rows: 8,
            frame,
            room: MemoryShare::default(),
        };
        Some(RankBatch { batch, repeated_for })
    }

    #[test]
    fn runs_of_other_numbers_of_ranks_add_up() {
        let mut steps = RankSteps::default();
        steps.begin_run(4..6);
        steps.step(&[given(None), given(None)]);
        steps.begin_run(4..7);
        steps.step(&[given(None), None, given(Some(2))]);
        assert_eq!(steps.runs(), [vec![1, 1], vec![1, 0, 1]]);
        let counts: Vec<_> = steps.iter().map(|c| (c.rank, c.steps, c.repeats)).collect();
        assert_eq!(counts, [(4, 2, 0), (5, 1, 0), (6, 1, 1)]);
    }

    #[test]
    fn waits_of_a_rank_add_up() {
        let mut steps = RankSteps::default();
        steps.begin_run(0..2);
        let fetch = Duration::from_secs(2);
        (0..2).for_each(|_| steps.waited(1, DeliveryWaits { fetch, ..DeliveryWaits::default() }));
        let waits: Vec<_> = steps.iter().map(|counts| counts.waits).collect();
        assert_eq!(
            waits,
            [None, Some(DeliveryWaits { fetch: 2 * fetch, ..DeliveryWaits::default() })]
        );
    }
}
