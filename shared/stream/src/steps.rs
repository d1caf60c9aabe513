//! The batches of some or all ranks of a run: a step at a time, whole or not at all.

use crate::{
    DeliveredBatch, EpochTotals, FetchError, Fetcher, MemoryShare, ServedRanks, StreamDelivery,
};
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::{KnownBatches, RankAssignment, RunRanks, TrainingStep};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use std::collections::{BTreeSet, VecDeque};

/// A batch of one rank at one step.
#[derive(Debug, Clone)]
pub struct RankBatch {
    pub batch: DeliveredBatch,
    /// The number of the batch that the epoch lacks, if this one is given again in its place.
    pub repeated_for: Option<u64>,
}

/// The batches that the ranks of one step take, each once: without those that are given again, and without those of
/// further replicas.
pub fn distinct_batches(batches: &[Option<RankBatch>]) -> impl Iterator<Item = &DeliveredBatch> {
    let fresh = batches.iter().flatten().filter(|given| given.repeated_for.is_none());
    let mut seen = BTreeSet::new();
    fresh.map(|given| &given.batch).filter(move |batch| seen.insert(batch.batch_index))
}

/// The next item for the ranks of a run.
#[derive(Debug)]
pub enum StepDelivery {
    /// A whole step.
    Step {
        step: TrainingStep,
        /// One for each rank served here, in order of rank. With an uneven tail, the last ranks may have none at
        /// the last step of an epoch.
        batches: Vec<Option<RankBatch>>,
        /// Start of a later run that goes on after this step.
        next: Cursor,
    },
    EpochEnd {
        totals: EpochTotals,
        /// Last batches of the epoch, which are too few for a step and which no rank gets.
        left_out: u64,
        /// These batches, if all ranks are served here; else none.
        left_batches: Vec<DeliveredBatch>,
    },
    /// All epochs are delivered.
    End,
}

/// The steps of one run. No rank is given its batch before all batches of the step are here, or the end of the
/// epoch is known.
pub struct StepStream {
    fetcher: Fetcher,
    ranks: RunRanks,
    /// The ranks served here.
    range: RankRange,
    /// The next step.
    step: TrainingStep,
    /// Batches of its epoch that are known to exist.
    known: KnownBatches,
    /// Batches of the ranks served here that have arrived.
    arrived: VecDeque<DeliveredBatch>,
    /// Totals of the epoch, once all of it has arrived.
    totals: Option<EpochTotals>,
    ended: bool,
}

impl StepStream {
    /// The ranks that `fetcher` serves. It begins at the first batch of a step.
    pub fn new(fetcher: Fetcher) -> Self {
        let at = fetcher.begin();
        let ServedRanks { run: TrainingRun { ranks, .. }, range, .. } = fetcher.own();
        Self {
            fetcher,
            ranks,
            range,
            step: whole_step(&ranks, at),
            known: KnownBatches::default(),
            arrived: VecDeque::new(),
            totals: None,
            ended: false,
        }
    }

    /// The ranks of the run, those that others serve included.
    pub fn ranks(&self) -> &RunRanks {
        &self.ranks
    }

    /// The stream of the ranks served here.
    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// The stream of the ranks served here, once its steps are over.
    pub fn into_fetcher(self) -> Fetcher {
        self.fetcher
    }

    /// Begins again at the step that begins at `at`.
    ///
    /// # Errors
    /// [`FetchError::Misplaced`] if no step of the run begins there.
    pub async fn reopen(&mut self, at: Cursor) -> Result<(), FetchError> {
        let ranks = &self.ranks;
        if ranks.step_of(at).is_none_or(|step| ranks.first_of(step) != at.batch_index) {
            return Err(FetchError::Misplaced(format!(
                "no step of {ranks} begins at {at}: begin at the first batch of a step"
            )));
        }
        self.fetcher.reopen(at).await;
        // Unless batches are visited exactly once, one rank may go on later.
        self.begin_step_at(whole_step(&self.ranks, self.fetcher.begin()));
        Ok(())
    }

    /// `step` is the next one, and nothing of it has arrived.
    fn begin_step_at(&mut self, step: TrainingStep) {
        (self.step, self.known, self.totals) = (step, KnownBatches::default(), None);
        self.arrived.clear();
        self.ended = false;
    }

    /// Begins the run at batch `from`, where another fetcher has begun it, or a trainer that has not named it.
    pub async fn begin_run(&mut self, from: Cursor) {
        self.fetcher.begin_run(from).await;
        let from = self.fetcher.begin();
        self.ranks.from = from;
        self.begin_step_at(TrainingStep { epoch: from.epoch, number: 0 });
    }

    /// Records whether the ranks compute: time in which the next step arrives meanwhile is no wait.
    pub fn set_ranks_compute(&mut self, compute: bool) {
        self.fetcher.set_trainer_computes(compute);
    }

    /// The next step, the end of an epoch, or the end of the job. Cancel safe.
    pub async fn next(&mut self) -> Result<StepDelivery, FetchError> {
        self.prepare().await?;
        let Some(assigned) = self.ranks.assign_batches(self.step, self.known) else {
            return Ok(StepDelivery::End);
        };
        if assigned.iter().all(|assignment| *assignment == RankAssignment::End) {
            return Ok(self.end_epoch());
        }
        self.begin_step(&assigned)
    }

    /// Resolves once [`StepStream::next`] need not wait. Cancel safe.
    pub async fn prepare(&mut self) -> Result<(), FetchError> {
        while !self.ended && self.ranks.assign_batches(self.step, self.known).is_none() {
            match self.fetcher.next().await? {
                StreamDelivery::Batch(batch) => self.take_in(batch),
                StreamDelivery::OfOthers { next } => self.know(next),
                StreamDelivery::EpochEnd(totals) => {
                    self.enter(totals.epoch);
                    self.known = KnownBatches { count: totals.batches, is_all: true };
                    self.totals = Some(totals);
                }
                StreamDelivery::End => self.ended = true,
            }
        }
        Ok(())
    }

    fn take_in(&mut self, batch: DeliveredBatch) {
        self.know(batch.cursor().next());
        // A step that is larger than the memory budget must not wait for itself.
        let room = if self.ranks.count.get() == 1 { batch.room } else { MemoryShare::default() };
        self.arrived.push_back(DeliveredBatch { room, ..batch });
    }

    /// All batches before `next` exist.
    fn know(&mut self, next: Cursor) {
        self.enter(next.epoch);
        self.known.count = self.known.count.max(next.batch_index);
    }

    /// Goes on to `epoch`, if the stream began after the last batch of an earlier one.
    fn enter(&mut self, epoch: u32) {
        if epoch > self.step.epoch {
            (self.step, self.known) = (TrainingStep { epoch, number: 0 }, KnownBatches::default());
        }
    }

    fn begin_step(&mut self, assigned: &[RankAssignment]) -> Result<StepDelivery, FetchError> {
        let step = self.step;
        let find = |batch_index: u64, repeated_for| {
            let found = self.arrived.iter().find(|batch| batch.batch_index == batch_index);
            let lacks = || FetchError::BadObject(format!("batch {batch_index} did not arrive"));
            let batch = found.cloned().ok_or_else(lacks)?;
            Ok(Some(RankBatch { batch, repeated_for }))
        };
        let batch_of = |assignment: &RankAssignment| match *assignment {
            RankAssignment::Batch { batch_index } => find(batch_index, None),
            RankAssignment::Repeat { batch_index, slot } => find(batch_index, Some(slot)),
            RankAssignment::Wait | RankAssignment::End => Ok::<_, FetchError>(None),
        };
        let RankRange { first, count } = self.range;
        let own = assigned.iter().skip(first as usize).take(count.get() as usize);
        let batches = own.map(batch_of).collect::<Result<_, _>>()?;
        let later = self.ranks.first_of(step.next());
        self.arrived.retain(|batch| batch.batch_index >= later);
        let next = self.ranks.cursor_after(step, self.known);
        self.step = step.next();
        Ok(StepDelivery::Step { step, batches, next })
    }

    fn end_epoch(&mut self) -> StepDelivery {
        let epoch = self.step.epoch;
        let totals = self.totals.take().unwrap_or(EpochTotals { epoch, ..EpochTotals::default() });
        let left_out = self.ranks.left_out(epoch, totals.batches);
        let is_all = self.range == RankRange::all(self.ranks.count);
        let arrived = self.arrived.drain(..);
        let left_batches = arrived.filter(|_| is_all).collect();
        self.enter(epoch + 1);
        StepDelivery::EpochEnd { totals, left_out, left_batches }
    }

    /// Records that every rank's checkpoint goes on at `next` or later.
    pub fn checkpointed(&self, next: Cursor) {
        self.fetcher.checkpointed_before(next);
    }
}

/// The first step all of whose batches are in a stream that begins at `at`.
fn whole_step(ranks: &RunRanks, at: Cursor) -> TrainingStep {
    let first = TrainingStep { epoch: at.epoch, number: 0 };
    let step = ranks.step_of(at).unwrap_or(first);
    if ranks.first_of(step) < at.batch_index { step.next() } else { step }
}

#[cfg(test)]
mod tests;
