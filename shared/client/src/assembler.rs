//! Assembles splits into batches: whole batches pass through unchanged, leftover rows are joined, and every
//! batch gets its number.

use crate::{
    Batch, EpochTotals, FetchError, OwnRanks,
    downloader::{Arrival, Content},
    progress::Progress,
    rows::Rows,
    start::{Start, add, counts, cut},
    waits::{Stage, StageClock},
};
use bytes::Bytes;
use gristmill_chunk::{Chunk, FormatError, Frame, Limits};
use gristmill_executor::{Finisher, Program};
use gristmill_model::Epoch;
use gristmill_model::splits::batches::{Batch as PlannedBatch, Joiner, Source};
use gristmill_model::splits::{Cursor, Place, SplitKind};
use gristmill_model::wire::{Plan, ReadySplit};
use gristmill_ports::{BufferPool, Clock};
use std::{ops::Range, sync::Arc};
use tokio::sync::mpsc;

pub(crate) enum Assembled {
    Batch {
        batch: Batch,
        /// First split that a restart at this batch needs.
        resume_place: Place,
    },
    /// Batches of other readers, from `first` up to `next`.
    OfOthers {
        first: Cursor,
        next: Cursor,
        /// First split that a restart at `first` needs.
        resume_place: Place,
    },
    EpochEnd(EpochTotals),
    /// Explicit, because a failed stream closes its queue too.
    End,
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
    /// The ranks served here, if other readers serve the rest.
    part: Option<OwnRanks>,
    /// Batches of other readers, not yet reported to the trainer.
    others: Option<Range<Cursor>>,
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
        (resume, part): (Cursor, Option<OwnRanks>),
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
            part,
            others: None,
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
        if !self.tell_of_others(resume_place).await {
            return Ok(false);
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
        Ok(self.tell_of_others(resume_place).await && self.end_epoch().await?)
    }

    /// Tells the trainer of batches that other readers take; returns false if the trainer is gone.
    async fn tell_of_others(&mut self, resume_place: Place) -> bool {
        let Some(Range { start: first, end: next }) = self.others.take() else { return true };
        self.queue.send(Assembled::OfOthers { first, next, resume_place }).await.is_ok()
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
        let at = Cursor::new(epoch, batch_index);
        if at < self.resume {
            return Ok(true);
        }
        if self.part.is_some_and(|own| !own.takes(at).is_some_and(|(_, is_own)| is_own)) {
            let first = self.others.take().map_or(at, |others| others.start);
            self.others = Some(first..at.next());
            return Ok(true);
        }
        // The trainer learns from the number of this batch that those before it exist.
        self.others = None;
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
    use crate::samples::entry;

    #[test]
    fn an_object_holds_what_its_entry_promises() {
        let mut writer = gristmill_chunk::ChunkWriter::new(gristmill_chunk::Codec::Stored);
        let chunk = Chunk::open(writer.finish().unwrap().into(), &Limits::default()).unwrap();
        assert!(check_counts(&entry(0, 0, 0), &chunk, 8).is_ok());
        let error = check_counts(&entry(0, 0, 4), &chunk, 8).unwrap_err();
        assert!(error.to_string().contains("other batches than were committed"), "{error}");
    }
}
