//! The ranks of a training run: which batch each of them takes at each step.
//!
//! A step is as many consecutive batches of one epoch as there are data ranks: ranks, of which those that take the same
//! batches count once. The order of an epoch's
//! batches does not depend on the number of ranks, so a run with another number goes on at any
//! cursor.
//!
//! Ranks meet in a collective operation at each step. One that began a step which another lacks
//! would wait without end, so a step is released only when it is known which batches it has: all of
//! them are committed, or the end of the epoch is known. All ranks then decide on equal knowledge.

use crate::splits::Cursor;
use crate::splits::batches::BatchJoiner;
use crate::splits::readers::RankRange;
use crate::splits::replicas::RankReplicas;
use crate::words::words;
use crate::{Epoch, Position};
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32};

/// The ranks of one run of a training program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunRanks {
    /// Number of ranks, replicas included.
    pub count: NonZeroU32,
    /// The batch that rank 0 takes at the first step. Later epochs begin at batch 0.
    pub from: Cursor,
    pub tail: TailPolicy,
    /// Which of the ranks take the same batches.
    #[serde(default, skip_serializing_if = "RankReplicas::is_one")]
    pub replicas: RankReplicas,
}

impl fmt::Display for RunRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, from, tail, replicas } = self;
        write!(f, "{count} ranks from {from} with tail {tail}")?;
        if replicas.is_one() { Ok(()) } else { write!(f, " and replicas {replicas}") }
    }
}

/// Treatment of the last batches of an epoch when they are fewer than the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TailPolicy {
    /// No rank takes them; they are counted as left out.
    Drop,
    /// The ranks that would have none take batches of the same step again, marked as repeats.
    Repeat,
    /// The first ranks take them, and the others one step less: for evaluation without collective
    /// operations.
    Uneven,
}

impl TailPolicy {
    /// The treatment of a job whose user asks for none.
    pub const fn default_for(drops_remainder: bool) -> Self {
        if drops_remainder { Self::Drop } else { Self::Repeat }
    }
}

words!(TailPolicy, "a tail", Drop = "drop", Repeat = "repeat", Uneven = "uneven");

/// One step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrainingStep {
    pub epoch: Epoch,
    /// Number of the step within the run's part of the epoch, from 0.
    pub number: u64,
}

impl TrainingStep {
    /// The step after it in the same epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), ..self }
    }
}

/// The batches of an epoch that are known to exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct KnownBatches {
    pub count: u64,
    /// Whether the epoch has no others.
    pub is_all: bool,
}

impl KnownBatches {
    /// The batches that the splits pushed to `joiner` complete, in an epoch of `n_splits` splits.
    pub fn from_joiner(joiner: &BatchJoiner, n_splits: Position) -> Self {
        let is_all = joiner.position() >= n_splits;
        let has_last = is_all && joiner.clone().finish().is_some();
        Self { count: joiner.batch_index() + u64::from(has_last), is_all }
    }
}

/// The answer to a rank that is ready for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RankAssignment {
    /// It is not known yet whether every rank has a batch: ask again when more is committed.
    Wait,
    /// The rank takes this batch.
    Batch { batch_index: u64 },
    /// The rank takes this batch of the step again, in place of a batch `slot` that does not exist.
    Repeat { batch_index: u64, slot: u64 },
    /// The epoch has no such step for this rank.
    End,
}

impl RunRanks {
    /// One rank, which takes every batch from `from` on.
    pub fn one(from: Cursor) -> Self {
        Self::new(NonZeroU32::MIN, from, TailPolicy::Uneven)
    }

    /// Ranks each of which takes batches of its own.
    pub fn new(count: NonZeroU32, from: Cursor, tail: TailPolicy) -> Self {
        Self { count, from, tail, replicas: RankReplicas::default() }
    }

    /// Number of batches of a step. No run begins with replicas that do not divide the ranks.
    pub fn data_ranks(&self) -> u32 {
        self.replicas.data_ranks(self.count).unwrap_or(1).max(1)
    }

    /// The place of a rank's batch among those of a step. Replicas share it.
    pub fn data_rank(&self, rank: u32) -> u32 {
        rank / self.replicas.inner.get() % self.data_ranks()
    }

    /// Number of batches of a step that ranks in `range` take.
    pub fn data_ranks_in(&self, range: RankRange) -> u32 {
        let (first, last) = self.neighbours(range);
        (last - first + 1).min(self.data_ranks())
    }

    /// Whether a rank in `range` takes the batch of `data_rank`.
    pub fn takes(&self, range: RankRange, data_rank: u32) -> bool {
        let ((first, _), width) = (self.neighbours(range), self.data_ranks());
        (data_rank + width - first % width) % width < self.data_ranks_in(range)
    }

    /// The first and the last group of neighbours with one batch that have a rank in `range`.
    fn neighbours(&self, range: RankRange) -> (u32, u32) {
        let each = self.replicas.inner.get();
        (range.first / each, (range.end() - 1) / each)
    }

    /// The number of batches of a step, for arithmetic with batches.
    fn width(&self) -> u64 {
        u64::from(self.data_ranks())
    }

    fn first_batch(&self, epoch: Epoch) -> u64 {
        if epoch == self.from.epoch { self.from.batch_index } else { 0 }
    }

    /// The batch that rank 0 takes at `step`.
    pub fn first_of(&self, step: TrainingStep) -> u64 {
        self.first_batch(step.epoch).saturating_add(step.number.saturating_mul(self.width()))
    }

    /// The step at which some rank takes the batch at `cursor`; none if the run began after it.
    pub fn step_of(&self, cursor: Cursor) -> Option<TrainingStep> {
        let Cursor { epoch, batch_index } = cursor;
        let is_within = epoch >= self.from.epoch;
        let passed = batch_index.checked_sub(self.first_batch(epoch)).filter(|_| is_within)?;
        Some(TrainingStep { epoch, number: passed / self.width() })
    }

    /// Assigns `rank`, counted from 0, its batch at `step`: that of its replicas.
    ///
    /// The answer to one rank and step never changes once it is not [`RankAssignment::Wait`], and all
    /// ranks stop waiting for a step at the same knowledge.
    pub fn assign(&self, step: TrainingStep, rank: u32, known: KnownBatches) -> RankAssignment {
        let first = self.first_of(step);
        debug_assert!(rank < self.count.get(), "rank {rank} of {}", self.count);
        let rank = u64::from(self.data_rank(rank));
        let present = known.count.saturating_sub(first).min(self.width());
        let slot = first.saturating_add(rank);
        let is_whole = present == self.width();
        match self.tail {
            _ if !is_whole && !known.is_all => RankAssignment::Wait,
            _ if rank < present && (is_whole || self.tail != TailPolicy::Drop) => {
                RankAssignment::Batch { batch_index: slot }
            }
            // The nearest ranks are the likeliest to be on the same host, which has read their batches.
            TailPolicy::Repeat if present > 0 => {
                let nearest = present - 1 - (rank - present) % present;
                RankAssignment::Repeat { batch_index: first + nearest, slot }
            }
            TailPolicy::Drop | TailPolicy::Repeat | TailPolicy::Uneven => RankAssignment::End,
        }
    }

    /// The batches of `step` for all ranks, in order of rank; none while any of them must wait.
    pub fn assign_batches(
        &self,
        step: TrainingStep,
        known: KnownBatches,
    ) -> Option<Vec<RankAssignment>> {
        let ranks = 0..self.count.get();
        let assigned: Vec<_> = ranks.map(|rank| self.assign(step, rank, known)).collect();
        (!assigned.contains(&RankAssignment::Wait)).then_some(assigned)
    }

    /// The start of the next epoch, for a rank that goes on at `at` in an epoch that has ended at `ended` and has no batch for
    /// it any more; else `at`.
    pub fn past_end(&self, rank: u32, at: Cursor, ended: Cursor) -> Cursor {
        let known = KnownBatches { count: ended.batch_index, is_all: true };
        let of_epoch = self.step_of(at).filter(|step| step.epoch == ended.epoch);
        match of_epoch.map(|step| self.assign(step, rank, known)) {
            Some(RankAssignment::End) if at <= ended => {
                Cursor::start_of(at.epoch.saturating_add(1))
            }
            _ => at,
        }
    }

    /// Steps that rank 0 takes in an epoch of `batches` batches: with `drop` and `repeat`, as many
    /// as every rank.
    pub fn steps(&self, epoch: Epoch, batches: u64) -> u64 {
        let left = batches.saturating_sub(self.first_batch(epoch));
        match self.tail {
            TailPolicy::Drop => left / self.width(),
            TailPolicy::Repeat | TailPolicy::Uneven => left.div_ceil(self.width()),
        }
    }

    /// Batches of an epoch of `batches` batches that no rank takes.
    pub fn left_out(&self, epoch: Epoch, batches: u64) -> u64 {
        let left = batches.saturating_sub(self.first_batch(epoch));
        match self.tail {
            TailPolicy::Drop => left % self.width(),
            TailPolicy::Repeat | TailPolicy::Uneven => 0,
        }
    }

    /// The cursor of a checkpoint that every rank may save after `step`: after a step of which all
    /// ranks have a batch the next batch, even if there is none, and after the last batches of an
    /// epoch, which are fewer, the next epoch.
    ///
    /// It does not depend on whether the end of the epoch was known when the step was released, which
    /// differs between readers: all ranks save the same.
    pub fn cursor_after(&self, step: TrainingStep, known: KnownBatches) -> Cursor {
        let next = self.first_of(step.next());
        if known.count >= next {
            Cursor { epoch: step.epoch, batch_index: next }
        } else {
            Cursor::start_of(step.epoch.saturating_add(1))
        }
    }
}

#[cfg(test)]
mod tests;
