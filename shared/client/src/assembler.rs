//! Assembles splits into batches: whole batches pass through unchanged, leftover rows are joined, and every
//! batch gets its number.

use crate::{
    Batch, EpochTotals, FetchError,
    downloader::{Arrival, Content},
    ledger::Ledger,
    progress::Progress,
    rows::Rows,
    waits::{Stage, StageClock},
};
use bytes::Bytes;
use gristmill_chunk::{Chunk, FormatError, Frame, Limits};
use gristmill_executor::{Finisher, Program};
use gristmill_model::Epoch;
use gristmill_model::splits::batches::{Batch as PlannedBatch, Counts, Cut, Joiner, Source};
use gristmill_model::splits::{Cursor, Place, SplitKind};
use gristmill_model::wire::{Plan, ReadySplit};
use gristmill_ports::{BufferPool, Clock};
use std::sync::Arc;
use tokio::sync::mpsc;

pub(crate) enum Assembled {
    Batch {
        batch: Batch,
        /// First split that a restart at this batch needs.
        resume_place: Place,
    },
    EpochEnd(EpochTotals),
    /// Explicit, because a failed stream closes its queue too.
    End,
}

/// The start of a stream: a joiner that has counted up to the batch to resume at.
pub(crate) struct Start {
    /// The batch to resume at. After the last batch of an epoch, that is the first of the next epoch.
    pub at: Cursor,
    pub joiner: Joiner,
    pub totals: EpochTotals,
    /// The first split whose object is needed.
    pub place: Place,
}

impl Start {
    /// Counts the batches before `at` from the entries of its epoch's splits.
    ///
    /// # Errors
    /// [`FetchError::Misplaced`] if there is no such batch, or if earlier batches were never made, so that no
    /// trainer can have received them.
    pub async fn seek(
        ledger: &Ledger,
        plan: &Plan,
        epochs: Epoch,
        at: Cursor,
    ) -> Result<Self, FetchError> {
        let Cursor { epoch, batch_index } = at;
        let beyond = |has: String| {
            FetchError::Misplaced(format!(
                "there is no {at} to continue at: {has}; the position belongs to another job or is damaged: \
                 start without it"
            ))
        };
        if epoch > epochs || epoch == epochs && batch_index > 0 {
            return Err(beyond(format!("the job has {epochs} epochs, numbered from 0")));
        }
        let Self { mut joiner, mut totals, .. } = Self::of_epoch(plan, epoch);
        // Splits after the last batch may complete no batch; an epoch with only such splits left is over.
        while batch_index > 0 && joiner.position() < plan.n_splits {
            let made = joiner.batch_index();
            let entry = match ledger.peek(Place::new(epoch, joiner.position())).await? {
                Some(entry) => entry,
                None if made == batch_index => break,
                None => {
                    return Err(beyond(format!(
                        "only {made} of its batches have been produced so far"
                    )));
                }
            };
            let mut ahead = joiner.clone();
            ahead.push(counts(&entry), |_| {});
            // The stream always consumes the last split: it may leave a last batch, and it ends the epoch.
            let is_last = ahead.position() == plan.n_splits;
            let has = ahead.batch_index() + u64::from(is_last && ahead.clone().finish().is_some());
            if is_last && has < batch_index {
                return Err(beyond(format!("the epoch has {has} batches")));
            }
            if is_last && has == batch_index {
                return Ok(Self::of_epoch(plan, epoch + 1));
            }
            // Stop before the split that completes batch `at`: it is the first one the stream consumes.
            if is_last || ahead.batch_index() > batch_index {
                break;
            }
            joiner = ahead;
            add(&mut totals, &entry);
        }
        if plan.n_splits == 0 && batch_index > 0 {
            return Err(beyond("the epoch has no batches".to_owned()));
        }
        // Without splits, everything is made before the job begins.
        let has_begun = plan.n_splits > 0 || at > Cursor::default() || ledger.is_done();
        if has_begun && is_end(ledger, plan, epochs, (epoch, &joiner)).await? {
            return Ok(Self::of_epoch(plan, epochs));
        }
        totals.batches = joiner.batch_index();
        let place = Place::new(epoch, joiner.first_needed());
        ledger.forget_before(place);
        Ok(Self { at, joiner, totals, place })
    }

    fn of_epoch(plan: &Plan, epoch: Epoch) -> Self {
        let totals = EpochTotals { epoch, ..EpochTotals::default() };
        let joiner = Joiner::new(cut(plan));
        Self { at: Cursor::start_of(epoch), joiner, totals, place: Place::start_of(epoch) }
    }
}

/// Whether the rest of `epoch` after `joiner`, and all later epochs, are complete and contain no batch.
async fn is_end(
    ledger: &Ledger,
    plan: &Plan,
    epochs: Epoch,
    (begins, joiner): (Epoch, &Joiner),
) -> Result<bool, FetchError> {
    for epoch in begins..epochs {
        let fresh = || Joiner::new(cut(plan));
        let mut ahead = if epoch == begins { joiner.clone() } else { fresh() };
        let before = ahead.batch_index();
        while ahead.position() < plan.n_splits {
            let Some(entry) = ledger.peek(Place::new(epoch, ahead.position())).await? else {
                return Ok(false);
            };
            ahead.push(counts(&entry), |_| {});
            if ahead.batch_index() > before {
                return Ok(false);
            }
        }
        if ahead.finish().is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How an epoch's rows are cut into batches.
pub(crate) fn cut(plan: &Plan) -> Cut {
    Cut { size: plan.batch_size, drop_last: plan.drop_last, in_order: plan.in_order }
}

pub(crate) fn counts(entry: &ReadySplit) -> Counts {
    entry.outcome.counts()
}

fn add(totals: &mut EpochTotals, entry: &ReadySplit) {
    totals.rows += u64::from(entry.outcome.rows);
    totals.skipped += u64::from(entry.outcome.skipped_records);
    totals.splits += 1;
    totals.source_ms += u64::from(entry.times.source_ms);
    totals.compute_ms += u64::from(entry.times.compute_ms);
    totals.put_ms += u64::from(entry.times.put_ms);
    totals.stored_bytes += entry.outcome.object_bytes;
}

/// Joins splits into batches, epoch after epoch.
pub(crate) struct Assembler {
    /// Decides how batches are padded.
    program: Arc<Program>,
    /// Runs the work that workers leave to the fetcher, on every batch.
    finisher: Option<Finisher>,
    plan: Plan,
    epochs: Epoch,
    resume: Cursor,
    joiner: Joiner,
    totals: EpochTotals,
    rows: Rows,
    /// Buffers of batches joined here.
    buffers: BufferPool,
    queue: mpsc::Sender<Assembled>,
    progress: Arc<Progress>,
    /// Records the stage of the next batch.
    stages: (Arc<StageClock>, Arc<dyn Clock>),
}

impl Assembler {
    pub fn new(
        (program, finisher): (Arc<Program>, Option<Finisher>),
        plan: Plan,
        epochs: Epoch,
        resume: Cursor,
        start: Start,
        (queue, progress): (mpsc::Sender<Assembled>, Arc<Progress>),
        stages: (Arc<StageClock>, Arc<dyn Clock>),
    ) -> Self {
        let Start { joiner, totals, .. } = start;
        let buffers = BufferPool::default();
        Self {
            program,
            finisher,
            rows: Rows::new(plan.batch_size, buffers.clone()),
            plan,
            epochs,
            resume,
            joiner,
            totals,
            buffers,
            queue,
            progress,
            stages,
        }
    }

    /// Consumes splits until the last one of the last epoch. Returns without an error if the queue is closed,
    /// because the trainer is then gone.
    pub async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>) -> Result<(), FetchError> {
        if self.plan.n_splits == 0 {
            for epoch in self.resume.epoch..self.epochs {
                self.totals = EpochTotals { epoch, ..EpochTotals::default() };
                let _ = self.end_epoch().await?;
            }
        }
        loop {
            self.enter(Stage::Commit);
            let Some(Arrival { entry, content }) = arrivals.recv().await else { break };
            let chunk = match content {
                Content::Nothing => None,
                Content::Pending(chunk) => {
                    self.enter(Stage::Fetch);
                    let gone = |_| FetchError::BadObject("a download was cut off".into());
                    Some(chunk.await.map_err(gone)??)
                }
            };
            self.enter(Stage::Decode);
            if !self.take_in(&entry, chunk.as_ref()).await? {
                return Ok(());
            }
            // Leftover rows count as delivered: otherwise splits smaller than a batch would block the
            // window.
            self.progress.passed(entry.place.next(self.plan.n_splits));
        }
        if self.totals.epoch >= self.epochs {
            let _ = self.queue.send(Assembled::End).await;
        }
        Ok(())
    }

    fn enter(&self, stage: Stage) {
        let (stages, clock) = &self.stages;
        stages.enter(stage, clock.monotonic());
    }

    /// Consumes one split; returns false if the trainer is gone.
    async fn take_in(
        &mut self,
        entry: &ReadySplit,
        chunk: Option<&Chunk>,
    ) -> Result<bool, FetchError> {
        if let Some(chunk) = chunk {
            check_counts(entry, chunk, self.plan.batch_size)?;
        }
        // After a resume, splits before the joiner's position only supply leftover rows.
        if entry.place.position < self.joiner.position() {
            self.keep(entry, chunk)?;
            return Ok(true);
        }
        let resume_place = Place::new(entry.place.epoch, self.joiner.first_needed());
        let mut planned = Vec::new();
        self.joiner.push(counts(entry), |batch| planned.push(batch));
        add(&mut self.totals, entry);
        for batch in planned {
            if !self.deliver(batch, entry, chunk, resume_place).await? {
                return Ok(false);
            }
        }
        self.keep(entry, chunk)?;
        self.rows.forget_before(self.joiner.first_needed());
        if self.joiner.position() < self.plan.n_splits {
            return Ok(true);
        }
        let fresh = Joiner::new(cut(&self.plan));
        let last = std::mem::replace(&mut self.joiner, fresh).finish();
        if let Some(batch) = last
            && !self.deliver(batch, entry, None, resume_place).await?
        {
            return Ok(false);
        }
        self.rows.clear();
        self.end_epoch().await
    }

    /// Keeps the rows of this split that a later batch needs, if there are any.
    fn keep(&mut self, entry: &ReadySplit, chunk: Option<&Chunk>) -> Result<(), FetchError> {
        let piece = self.joiner.carry().find(|piece| piece.position == entry.place.position);
        let (Some(piece), Some(chunk)) = (piece, chunk) else { return Ok(()) };
        self.rows.keep(piece, chunk).map_err(|error| bad(entry, &error))
    }

    async fn deliver(
        &mut self,
        batch: PlannedBatch,
        entry: &ReadySplit,
        chunk: Option<&Chunk>,
        resume_place: Place,
    ) -> Result<bool, FetchError> {
        let PlannedBatch { batch_index, rows, source } = batch;
        let epoch = entry.place.epoch;
        self.totals.batches = batch_index + 1;
        if Cursor::new(epoch, batch_index) < self.resume {
            return Ok(true);
        }
        // Reserve room first: a joined batch that waits would exceed the memory budget.
        let Ok(room) = self.queue.reserve().await else { return Ok(false) };
        let frame = match (source, chunk) {
            (Source::Whole { frame, .. }, Some(chunk)) => {
                let (take, lend) = (|bytes| self.buffers.take(bytes), |raw| self.buffers.lend(raw));
                let frame = chunk.frame_with(frame as usize, take, lend);
                let padded = frame.and_then(|frame| match self.program.pads_late() {
                    true => self.padded(frame),
                    false => Ok(frame),
                });
                padded.map_err(|error| bad(entry, &error))?
            }
            (Source::Whole { .. }, None) => return Err(bad(entry, &"it has no content")),
            (Source::Joined(pieces), _) => {
                let joined = self.rows.join(&pieces, chunk);
                let padded = joined.and_then(|joined| self.padded(joined));
                padded.map_err(|error| bad(entry, &error))?
            }
        };
        let finisher = self.finisher.as_mut();
        let frame = finished(finisher, &self.buffers, frame).map_err(|error| bad(entry, &error))?;
        let batch = Batch { epoch, batch_index, rows, frame };
        room.send(Assembled::Batch { batch, resume_place });
        Ok(true)
    }

    /// Pads the sequences of joined rows, as a batch needs.
    fn padded(&self, joined: Bytes) -> Result<Bytes, FormatError> {
        if !self.program.pads() {
            return Ok(joined);
        }
        let frame = Frame::parse(joined, &Limits::default())?;
        let padded = self.program.pad(&frame, &Limits::default(), |bytes| self.buffers.take(bytes));
        Ok(self.buffers.lend(padded?))
    }

    async fn end_epoch(&mut self) -> Result<bool, FetchError> {
        let next = self.totals.epoch + 1;
        let fresh = EpochTotals { epoch: next, ..EpochTotals::default() };
        let totals = std::mem::replace(&mut self.totals, fresh);
        self.progress.passed(Place::start_of(next));
        Ok(self.queue.send(Assembled::EpochEnd(totals)).await.is_ok())
    }
}

/// Runs the work that workers left to the fetcher.
fn finished(
    finisher: Option<&mut Finisher>,
    buffers: &BufferPool,
    frame: Bytes,
) -> Result<Bytes, FormatError> {
    let Some(finisher) = finisher else { return Ok(frame) };
    let frame = Frame::parse(frame, &Limits::default())?;
    let finished = finisher.finish(&frame, &Limits::default(), |bytes| buffers.take(bytes))?;
    Ok(buffers.lend(finished))
}

/// Checks the object's counts against its entry: a difference would shift batch numbers.
fn check_counts(entry: &ReadySplit, chunk: &Chunk, size: u32) -> Result<(), FetchError> {
    let remainder = chunk.remainder().map_or(0, |i| chunk.frames()[i].rows);
    let batches = chunk.frames().len() - usize::from(chunk.remainder().is_some());
    let promised = entry.outcome.kind != SplitKind::Poison
        && chunk.frames()[..batches].iter().all(|frame| frame.rows == size)
        && batches == entry.outcome.batches as usize
        && remainder == entry.outcome.remainder_rows;
    match promised {
        true => Ok(()),
        false => Err(bad(entry, &"it holds other batches than were committed")),
    }
}

fn bad(entry: &ReadySplit, error: &dyn std::fmt::Display) -> FetchError {
    let Place { epoch, position } = entry.place;
    FetchError::BadObject(format!("split {position} of epoch {epoch}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Folders,
        samples::{batch, entry, polled, split, view},
    };

    /// A ledger with `n` committed splits of four batches; the next one is not committed.
    fn ledger(n: u32) -> (Ledger, Plan) {
        let ledger = Ledger::new(view(), split(0, 0), Folders::default());
        let entries: Vec<_> = (0..n).map(|position| entry(0, position, 4)).collect();
        ledger.merge(polled(&entries), split(0, 0));
        ledger.merge(polled(&[]), split(0, n));
        (ledger, view().plan.unwrap())
    }

    #[tokio::test]
    async fn a_trainer_begins_with_the_split_that_completes_its_batch() {
        let (ledger, plan) = ledger(3);
        let start = Start::seek(&ledger, &plan, 1, batch(0, 5)).await.unwrap();
        assert_eq!((start.at, start.place), (batch(0, 5), split(0, 1)));
        assert_eq!(start.joiner.position(), 1);
        assert_eq!((start.totals.batches, start.totals.splits, start.totals.rows), (4, 1, 32));
    }

    #[tokio::test]
    async fn a_trainer_without_a_checkpoint_begins_with_the_first_split() {
        let (ledger, plan) = ledger(3);
        let start = Start::seek(&ledger, &plan, 1, batch(0, 0)).await.unwrap();
        assert_eq!((start.at, start.place), (batch(0, 0), split(0, 0)));
    }

    #[tokio::test]
    async fn a_batch_that_was_never_made_is_refused() {
        let (ledger, plan) = ledger(3);
        let refused = async |at| match Start::seek(&ledger, &plan, 1, at).await {
            Err(FetchError::Misplaced(why)) => why,
            Err(error) => panic!("{error}"),
            Ok(start) => panic!("it begins at {:?}", start.at),
        };
        assert!(refused(batch(0, 100)).await.contains("only 12 of its batches"));
        assert!(refused(batch(1, 3)).await.contains("the job has 1 epochs"));
        assert!(refused(batch(7, 0)).await.contains("the job has 1 epochs"));
    }

    #[tokio::test]
    async fn behind_the_last_batch_of_an_epoch_comes_the_next_epoch() {
        let (ledger, plan) = ledger(20);
        let start = Start::seek(&ledger, &plan, 1, batch(0, 80)).await.unwrap();
        assert_eq!((start.at, start.place), (batch(1, 0), split(1, 0)));
    }

    #[test]
    fn an_object_holds_what_its_entry_promises() {
        let mut writer = gristmill_chunk::ChunkWriter::new(gristmill_chunk::Codec::Stored);
        let chunk = Chunk::open(writer.finish().unwrap().into(), &Limits::default()).unwrap();
        assert!(check_counts(&entry(0, 0, 0), &chunk, 8).is_ok());
        let error = check_counts(&entry(0, 0, 4), &chunk, 8).unwrap_err();
        assert!(error.to_string().contains("other batches than were committed"), "{error}");
    }
}
