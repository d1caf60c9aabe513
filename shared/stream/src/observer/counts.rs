//! One epoch of a run.

use crate::{DeliveryWaits, EpochTotals, RankBatch};
use gristmill_model::splits::WorkerTimes;
use gristmill_model::wire::{CacheMode, EpochCacheMode};
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

/// The part of an epoch after its first second, some of which the start takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteadyPart {
    pub elements: u64,
    pub seconds: f64,
}

/// One epoch as its trainer experienced it.
#[derive(Debug, Clone, Default)]
pub struct EpochReport {
    /// The job's totals of it.
    pub known: EpochCounts,
    pub elements: u64,
    pub batches: u64,
    pub seconds: f64,
    pub waited_seconds: f64,
    pub workers_max: u32,
    pub time_to_first_batch_ms: f64,
    /// Its part after its first second, if it was longer.
    pub steady: Option<SteadyPart>,
    pub duplicates: u64,
    pub distinct: u64,
    /// The use of the pipeline's `autocache` points, if it has any.
    pub caching: Option<EpochCacheMode>,
    /// CPU time of worker processes while the epoch was delivered, in milliseconds.
    pub worker_cpu_ms: u64,
}

impl EpochReport {
    /// The mode of `autocache` points.
    pub fn mode(&self) -> CacheMode {
        self.caching.as_ref().map_or(CacheMode::Compute, |caching| caching.mode)
    }

    /// The reason for the mode, if there was a choice.
    pub fn reason(&self) -> Option<&str> {
        self.caching.as_ref().map(|caching| &*caching.reason)
    }

    /// Seconds of all workers for reading, computing and storing its splits.
    pub fn worker_seconds(&self) -> [f64; 3] {
        let totals = &self.known.totals;
        let WorkerTimes { source_ms, compute_ms, put_ms } = totals.times.plus(totals.local_times);
        [source_ms, compute_ms, put_ms].map(|ms| ms as f64 / 1e3)
    }

    /// All epochs as one. The profile of a job is of its first splits, so the mode is that of the first epoch.
    pub fn whole(epochs: &[Self]) -> Self {
        let mut whole = epochs.first().cloned().unwrap_or_default();
        for epoch in epochs.iter().skip(1) {
            whole.seconds += epoch.seconds;
            whole.waited_seconds += epoch.waited_seconds;
            whole.workers_max = whole.workers_max.max(epoch.workers_max);
            let (sum, totals) = (&mut whole.known.totals, &epoch.known.totals);
            sum.waits += totals.waits;
            sum.times = sum.times.plus(totals.times);
            sum.local_times = sum.local_times.plus(totals.local_times);
        }
        whole
    }

    /// Mean time from one batch to the next.
    pub fn batch_time_ms(&self) -> f64 {
        self.seconds * 1e3 / (self.batches.max(1) as f64)
    }

    /// Part of the epoch that the trainer spent waiting, from 0 to 1.
    pub fn stall_fraction(&self) -> f64 {
        if self.seconds > 0.0 { (self.waited_seconds / self.seconds).min(1.0) } else { 0.0 }
    }
}

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

/// Visits in one epoch: a bit per record and copy.
#[derive(Debug, Default)]
pub struct VisitCounter {
    files: BTreeMap<(u32, u32), Vec<u64>>,
    pub elements: u64,
    pub duplicates: u64,
}

impl VisitCounter {
    /// Counts the `__key__` and `__copy__` tensors of a batch: u64 and u32, little-endian.
    pub fn add(&mut self, keys: &[u8], copies: &[u8]) {
        let (keys, _) = keys.as_chunks::<8>();
        let (copies, _) = copies.as_chunks::<4>();
        for (key, copy) in keys.iter().zip(copies) {
            let key = gristmill_model::RecordKey::unpack(u64::from_le_bytes(*key));
            let words = self.files.entry((key.file, u32::from_le_bytes(*copy))).or_default();
            let (word, bit) = ((key.record / 64) as usize, 1 << (key.record % 64));
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            self.elements += 1;
            if words[word] & bit != 0 {
                self.duplicates += 1;
            }
            words[word] |= bit;
        }
    }

    /// Distinct records seen.
    pub fn distinct(&self) -> u64 {
        self.elements - self.duplicates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeliveredBatch, DeliveryWaits, MemoryShare};
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

    #[test]
    fn doubles_are_seen() {
        let mut recount = VisitCounter::default();
        let keys: Vec<u8> =
            [0u64, 1 << 32 | 200, 0, 64].iter().flat_map(|key| key.to_le_bytes()).collect();
        recount.add(&keys, &[0; 16]);
        assert_eq!((recount.elements, recount.duplicates, recount.distinct()), (4, 1, 3));
        recount.add(&keys[..8], &1_u32.to_le_bytes());
        assert_eq!(recount.distinct(), 4, "another visit of the same record");
    }
}
