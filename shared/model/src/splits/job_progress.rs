//! The progress item: how far a job's training run is over all its ranks, its restart point, and
//! the horizon behind it up to which objects are collected.
//!
//! The collected horizon lives in the same item as the cursor it must not pass. So collecting and
//! restoring an old checkpoint exclude each other by compare-and-set on one item; were they two
//! items, a checkpoint could be accepted while its objects were being deleted.

use crate::splits::run::{PastRuns, TrainingRun};
use crate::splits::{TransitionOutcome, TransitionRefusal, invariants};
use crate::{Epoch, Position};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far a trainer is, in its own unit: the next batch. All earlier ones, and every earlier epoch, are behind it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Cursor {
    pub epoch: Epoch,
    /// Number of the batch in its epoch, from 0.
    pub batch_index: u64,
}

impl Cursor {
    /// The batch of that number.
    pub fn new(epoch: Epoch, batch_index: u64) -> Self {
        Self { epoch, batch_index }
    }

    /// The first batch of `epoch`.
    pub fn start_of(epoch: Epoch) -> Self {
        Self { epoch, batch_index: 0 }
    }

    /// The batch after this one, if the epoch has one.
    pub fn next(self) -> Self {
        Self { batch_index: self.batch_index.saturating_add(1), ..self }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {} of epoch {}", self.batch_index, self.epoch)
    }
}

/// The pseudo-epoch whose positions are the dataset's files and whose splits are their indices.
pub const INDEX_EPOCH: Epoch = Epoch::MAX;

/// A position in the order of an epoch's splits: the next split. Every one before it is behind.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct SplitPlace {
    pub epoch: Epoch,
    pub position: Position,
}

impl SplitPlace {
    /// The split at `position`.
    pub fn new(epoch: Epoch, position: Position) -> Self {
        Self { epoch, position }
    }

    /// The first split of `epoch`.
    pub fn start_of(epoch: Epoch) -> Self {
        Self { epoch, position: 0 }
    }

    /// The split after this one, when every epoch has `n_splits`.
    pub fn next(self, n_splits: u32) -> Self {
        if self.position + 1 < n_splits {
            Self { position: self.position + 1, ..self }
        } else {
            Self::start_of(self.epoch + 1)
        }
    }

    /// Its number when the positions of all epochs are counted through.
    pub fn linear(self, n_splits: u32) -> u64 {
        u64::from(self.epoch) * u64::from(n_splits) + u64::from(self.position)
    }

    /// The inverse of [`SplitPlace::linear`].
    pub fn from_linear(linear: u64, n_splits: u32) -> Self {
        let n = u64::from(n_splits.max(1));
        let epoch = Epoch::try_from(linear / n).unwrap_or(Epoch::MAX);
        Self { epoch, position: (linear % n) as Position }
    }
}

/// The progress of a job as the table holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct JobProgress {
    /// Which run of the trainer this is; larger ones fence smaller ones.
    pub generation: u64,
    /// The first split that the trainer's host has not taken in. Rows left over for a later batch
    /// count as taken in: otherwise splits smaller than a batch could hold the window shut.
    pub delivered: SplitPlace,
    /// The next batch a restart would need.
    pub durable: Cursor,
    /// Objects of splits before this one are not needed from `durable` on.
    pub durable_place: SplitPlace,
    /// The end of the last epoch that is known to have ended: the number of its batches. A rank may have saved the
    /// place behind its own last batch, which is before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Cursor>,
    /// Collected horizon: what a run that begins before this cursor needs is computed again.
    pub collected: Cursor,
    /// Objects of splits before this one may have been deleted.
    pub collected_place: SplitPlace,
    /// Splits that the trainer knows of and the table has lost, because a power cut took back its last writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacking: Option<LackingSplits>,
    pub heartbeat_ms: u64,
    /// Workers in the processes of the run's readers.
    #[serde(default)]
    pub local_workers: u32,
    /// None before the first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<TrainingRun>,
    /// Runs that were superseded.
    #[serde(default, skip_serializing_if = "PastRuns::is_empty")]
    pub past: PastRuns,
}

/// Splits to be made again: some from `from` up to `to` are not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LackingSplits {
    pub from: SplitPlace,
    pub to: SplitPlace,
}

/// The positions that the consumers of a job need: window, claims, kicks, collection and the closing of epochs go by
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The first split that is not made, of those that a consumer has yet to take in or that the table has lost.
    pub slowest: SplitPlace,
    /// The first split that no consumer has taken in.
    pub fastest: SplitPlace,
    /// The next batch a restart would need, of any consumer.
    pub durable: Cursor,
}

impl Horizon {
    /// Every epoch before this one is behind all consumers, and all its splits are made.
    pub fn passed_epochs(&self) -> Epoch {
        // Splits that are lacking may be of an epoch that is passed.
        if self.slowest < self.fastest {
            self.durable.epoch.min(self.slowest.epoch)
        } else {
            self.durable.epoch
        }
    }
}

impl JobProgress {
    /// The positions that the job's consumers need.
    pub fn horizon(&self) -> Horizon {
        let lacking = self.lacking.map_or(self.delivered, |lacking| lacking.from);
        let slowest = lacking.min(self.delivered);
        Horizon { slowest, fastest: self.delivered, durable: self.durable }
    }

    /// This progress when `more` is found to be lacking.
    #[must_use]
    pub fn with_lacking(self, more: Option<LackingSplits>) -> Self {
        let both = |one: LackingSplits, other: LackingSplits| LackingSplits {
            from: one.from.min(other.from),
            to: one.to.max(other.to),
        };
        Self { lacking: self.lacking.into_iter().chain(more).reduce(both), ..self }
    }
}

/// Progress of a trainer. Fenced by generation, monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProgressAck {
    /// Chosen by the trainer's host at its start, larger than any before.
    pub generation: u64,
    /// The generation that it takes over from, 0 if none. A registration that arrives late must not
    /// fence a run that has taken over since.
    pub over: u64,
    /// Everything before it has been handed to the trainer.
    pub delivered: SplitPlace,
    /// The next batch a restart would need: all before it is safe in a checkpoint.
    pub durable: Cursor,
    /// Objects of splits before it are not needed to replay from `durable`.
    pub durable_place: SplitPlace,
    /// The end of the epoch before `durable`, the number of its batches, if `durable` is in the epoch after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Cursor>,
    /// Workers in the process that reports.
    #[serde(default)]
    pub local_workers: u32,
}

impl ProgressAck {
    pub(super) fn check(&self) -> Result<(), TransitionRefusal> {
        let Self { delivered, durable, durable_place, .. } = self;
        if durable_place > delivered || durable.epoch > delivered.epoch {
            return Err(TransitionRefusal::Invalid { what: "durable is ahead of delivered" });
        }
        if durable_place.epoch != durable.epoch {
            let what = "durable batch and split are of two epochs";
            return Err(TransitionRefusal::Invalid { what });
        }
        Ok(())
    }
}

/// A run of the trainer starts at its checkpoint, which may lie behind what an earlier run acknowledged, and behind
/// what has been collected. Refuses with [`TransitionRefusal::Fenced`] for a generation older than
/// the current, or one that found another there, [`TransitionRefusal::Invalid`].
pub(super) fn begin(
    before: Option<&JobProgress>,
    from: &ProgressAck,
    run: TrainingRun,
    now_ms: u64,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    from.check()?;
    let collected = before.map(|b| (b.collected, b.collected_place)).unwrap_or_default();
    if let Some(before) = before {
        if from.generation == before.generation {
            return Ok(TransitionOutcome::AlreadyApplied(*before));
        }
        // The generation that it found may be newer than the one here: then the table has lost that one.
        if from.generation < before.generation || from.over < before.generation {
            return Err(TransitionRefusal::Fenced { generation: before.generation });
        }
    }
    let is_behind = from.durable < collected.0;
    // One cursor may be saved with different places: a split without rows moves the place but not
    // the cursor. Objects that are not needed from the horizon on are not needed from a later
    // cursor either.
    let durable_place =
        if is_behind { from.durable_place } else { from.durable_place.max(collected.1) };
    let past = before.map_or_else(PastRuns::default, |before| match before.run {
        Some(old) if run.token != old.token => before.past.with(old.token),
        _ => before.past,
    });
    let after = JobProgress {
        generation: from.generation,
        delivered: from.delivered.max(durable_place),
        durable: from.durable,
        durable_place,
        ended: from.ended.or(before.and_then(|before| before.ended)),
        collected: collected.0,
        collected_place: collected.1,
        lacking: before.and_then(|before| before.lacking),
        heartbeat_ms: now_ms,
        local_workers: from.local_workers,
        run: Some(run),
        past,
    };
    invariants::assert_holds(|| invariants::progress_step(before, &after));
    Ok(TransitionOutcome::Write(after))
}

/// ACK: progress of the current generation; never back. Refuses with [`TransitionRefusal::Fenced`]
/// for another generation than the current, [`TransitionRefusal::Invalid`].
pub fn ack(
    before: Option<&JobProgress>,
    command: &ProgressAck,
    now_ms: u64,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    let before = before.ok_or(TransitionRefusal::Invalid { what: "no run has joined" })?;
    if command.generation != before.generation {
        return Err(TransitionRefusal::Fenced { generation: before.generation });
    }
    command.check()?;
    let mut after = *before;
    after.delivered = before.delivered.max(command.delivered);
    after.durable = before.durable.max(command.durable);
    after.durable_place = before.durable_place.max(command.durable_place);
    after.ended = command.ended.or(before.ended);
    after.heartbeat_ms = before.heartbeat_ms.max(now_ms);
    after.local_workers = command.local_workers;
    invariants::assert_holds(|| invariants::progress_step(Some(before), &after));
    Ok(TransitionOutcome::new(Some(before), after))
}

/// MADE: every split from the head up to `made` is committed, so fewer are lacking.
pub fn made(before: Option<&JobProgress>, made: SplitPlace) -> TransitionOutcome<JobProgress> {
    let before = before.copied().unwrap_or_default();
    match before.lacking.filter(|lacking| lacking.from < made) {
        Some(LackingSplits { to, .. }) => {
            let lacking = (made < to).then_some(LackingSplits { from: made, to });
            TransitionOutcome::Write(JobProgress { lacking, ..before })
        }
        None => TransitionOutcome::AlreadyApplied(before),
    }
}

/// Moves the collected horizon up to the durable cursor. It is written before anything is deleted;
/// the written item alone decides what may be deleted (see [`crate::splits::collect`]). Refuses
/// with [`TransitionRefusal::Invalid`] when there is none: nothing is durable.
pub fn collected(
    before: Option<&JobProgress>,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    let before = before.ok_or(TransitionRefusal::Invalid { what: "no run has joined" })?;
    let mut after = *before;
    after.collected = before.collected.max(before.durable);
    after.collected_place = before.collected_place.max(before.durable_place);
    invariants::assert_holds(|| invariants::progress_step(Some(before), &after));
    Ok(TransitionOutcome::new(Some(before), after))
}

#[cfg(test)]
mod tests;
