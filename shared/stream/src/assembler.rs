//! Assembles splits into batches: whole batches pass through unchanged, leftover rows are joined, and every
//! batch gets its number.

use crate::{
    DeliveredBatch, EpochTotals, FetchError,
    batch_source::{StreamStart, add, beyond},
    delivery_waits::BatchStage,
    downloader::{ArrivingSplit, MemoryBudget, MemoryShare},
    served_ranks::PickedBatches,
    waiting::StreamState,
};
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkFrame, ChunkLimits, join_rows};
use gristmill_executor::{BatchFinisher, CompiledPipeline};
use gristmill_model::splits::batches::{BatchLocation, PlannedBatch, SplitRows};
use gristmill_model::splits::{Cursor, SplitKind, SplitPlace};
use gristmill_model::wire::{EpochPlan, ReadySplit};
use gristmill_model::{Epoch, Position};
use gristmill_ports::BufferPool;
use std::{
    collections::BTreeMap,
    ops::{Range, RangeInclusive},
    sync::Arc,
};
use tokio::sync::mpsc;

pub(crate) enum AssembledItem {
    Batch {
        batch: DeliveredBatch,
        /// First split that a restart at this batch needs; none if a batch of others is repeated.
        resume_place: Option<SplitPlace>,
    },
    /// Batches of other readers, from `first` up to `next`.
    OfOthers {
        first: Cursor,
        next: Cursor,
        /// First split that a restart at `first` needs.
        resume_place: SplitPlace,
    },
    EpochEnd(EpochTotals),
    /// Explicit, because a failed stream closes its queue too.
    End,
}

/// The shares of objects in the memory budget, by split.
type Rooms = BTreeMap<Position, MemoryShare>;

/// Joins splits into batches, epoch after epoch.
pub(crate) struct BatchAssembler {
    /// Decides how batches are padded.
    program: Arc<CompiledPipeline>,
    /// Runs the work that workers leave to the fetcher, on every batch.
    finisher: Option<BatchFinisher>,
    plan: EpochPlan,
    /// Rows that whole batches may have.
    sizes: RangeInclusive<u32>,
    epochs: Epoch,
    /// The batch that the stream begins with.
    from: Cursor,
    totals: EpochTotals,
    rows: LeftoverRows,
    buffers: BufferPool,
    queue: mpsc::Sender<AssembledItem>,
    state: StreamState,
}

impl BatchAssembler {
    /// An assembler that begins at `start`, with batches that `finisher` completes if workers left it work.
    pub fn new(
        program: Arc<CompiledPipeline>,
        finisher: Option<BatchFinisher>,
        plan: EpochPlan,
        epochs: Epoch,
        start: &StreamStart,
        queue: mpsc::Sender<AssembledItem>,
        state: StreamState,
    ) -> Self {
        let buffers = BufferPool::default();
        Self {
            sizes: program.batch_rows(),
            program,
            finisher,
            rows: LeftoverRows::new(plan.batch_size, buffers.clone()),
            plan,
            epochs,
            from: start.at,
            totals: start.totals,
            buffers,
            queue,
            state,
        }
    }

    /// Consumes splits until the last one of the last epoch. Returns without an error if the queue is closed,
    /// because the trainer is then gone.
    pub async fn run(
        mut self,
        mut arrivals: mpsc::Receiver<ArrivingSplit>,
        budget: &MemoryBudget,
    ) -> Result<(), FetchError> {
        if self.plan.n_splits == 0 {
            for epoch in self.totals.epoch..self.epochs {
                self.totals = EpochTotals { epoch, ..EpochTotals::default() };
                let _ = self.end_epoch().await?;
            }
        }
        loop {
            self.enter(BatchStage::Commit);
            budget.await_next();
            let Some(arrival) = arrivals.recv().await else { break };
            let ArrivingSplit { entry, is_whole, picked, contents } = arrival;
            if !contents.is_empty() {
                self.enter(BatchStage::Fetch);
            }
            let mut chunks = SplitChunks::new();
            let mut rooms = Rooms::new();
            for content in contents {
                let gone = |_| FetchError::BadObject("a download was cut off".into());
                let chunk = content.chunk.await.map_err(gone)??;
                check_counts(&content.entry, &chunk, &self.sizes)?;
                chunks.insert(content.entry.place.position, chunk);
                rooms.insert(content.entry.place.position, content.room);
            }
            self.enter(BatchStage::Decode);
            if !self.take_in(&entry, picked, &chunks, &rooms).await? {
                return Ok(());
            }
            // Leftover rows count as delivered: otherwise splits smaller than a batch would block the
            // window.
            if is_whole {
                self.state.progress.acks().note_passed(entry.place.next(self.plan.n_splits));
            }
        }
        if self.totals.epoch >= self.epochs {
            let _ = self.queue.send(AssembledItem::End).await;
        }
        Ok(())
    }

    fn enter(&self, stage: BatchStage) {
        self.state.stages.enter(stage, self.state.clock.monotonic());
    }

    /// Consumes one split; returns false if the trainer is gone.
    async fn take_in(
        &mut self,
        entry: &ReadySplit,
        picked: PickedBatches,
        chunks: &SplitChunks,
        rooms: &Rooms,
    ) -> Result<bool, FetchError> {
        let PickedBatches { resume_place, .. } = picked;
        if !picked.is_passed {
            add(&mut self.totals, entry);
        }
        for batch in picked.batches {
            if !self.deliver(batch, entry, chunks, rooms, Some(resume_place)).await? {
                return Ok(false);
            }
        }
        if let Some(Range { start: first, end: next }) = picked.others {
            let others = AssembledItem::OfOthers { first, next, resume_place };
            if self.queue.send(others).await.is_err() {
                return Ok(false);
            }
        }
        for batch in picked.repeats {
            if !self.deliver(batch, entry, chunks, rooms, None).await? {
                return Ok(false);
            }
        }
        if let Some(left) = &picked.left {
            self.rows.keep_rows(left, chunks).map_err(|error| bad(entry, &error))?;
        }
        self.rows.forget_before(picked.needed);
        let Some(batches) = picked.epoch_end else { return Ok(true) };
        self.totals.batches = batches;
        self.rows.clear();
        self.end_epoch().await
    }

    /// Delivers one batch; returns false if the trainer is gone.
    async fn deliver(
        &mut self,
        batch: PlannedBatch,
        entry: &ReadySplit,
        chunks: &SplitChunks,
        rooms: &Rooms,
        resume_place: Option<SplitPlace>,
    ) -> Result<bool, FetchError> {
        let PlannedBatch { batch_index, mut rows, source } = batch;
        let epoch = entry.place.epoch;
        // Reserve room first: a joined batch that waits would exceed the memory budget.
        let Ok(room) = self.queue.reserve().await else { return Ok(false) };
        // Joined rows are copies.
        let mut held = MemoryShare::default();
        let frame = match source {
            BatchLocation::Whole { position, frame } => {
                let lacks = || bad(entry, &"it has no content");
                let chunk = chunks.get(&position).ok_or_else(lacks)?;
                rows = chunk.frames().get(frame as usize).map_or(rows, |frame| frame.rows);
                held = rooms.get(&position).cloned().unwrap_or_default();
                let (take, lend) = (|bytes| self.buffers.take(bytes), |raw| self.buffers.lend(raw));
                let frame = chunk.frame_with(frame as usize, take, lend);
                frame.and_then(|frame| {
                    if self.program.pads_late() { self.padded(frame) } else { Ok(frame) }
                })
            }
            BatchLocation::Joined(pieces) => {
                let joined = self.rows.join(&pieces, chunks);
                joined.and_then(|joined| self.padded(joined))
            }
        };
        let frame = frame.map_err(|error| bad(entry, &error))?;
        let finisher = self.finisher.as_mut();
        let frame = finished(finisher, &self.buffers, frame).map_err(|error| bad(entry, &error))?;
        let batch = DeliveredBatch { epoch, batch_index, rows, frame, room: held };
        room.send(AssembledItem::Batch { batch, resume_place });
        Ok(true)
    }

    /// Pads the sequences of joined rows, as a batch needs.
    fn padded(&self, joined: Bytes) -> Result<Bytes, ChunkFormatError> {
        if !self.program.pads() {
            return Ok(joined);
        }
        let frame = ChunkFrame::parse(joined, &ChunkLimits::default())?;
        let padded =
            self.program.pad(&frame, &ChunkLimits::default(), |bytes| self.buffers.take(bytes));
        Ok(self.buffers.lend(padded?))
    }

    async fn end_epoch(&mut self) -> Result<bool, FetchError> {
        let next = self.totals.epoch + 1;
        let fresh = EpochTotals { epoch: next, ..EpochTotals::default() };
        let totals = std::mem::replace(&mut self.totals, fresh);
        self.state.progress.acks().note_passed(SplitPlace::start_of(next));
        let end = Cursor::new(totals.epoch, totals.batches);
        if self.from.batch_index > 0 && end <= self.from {
            // Its splits were made again, to learn where it ends. The trainer has it.
            return if end == self.from {
                Ok(true)
            } else {
                Err(beyond(self.from, &format!("the epoch has {} batches", totals.batches)))
            };
        }
        Ok(self.queue.send(AssembledItem::EpochEnd(totals)).await.is_ok())
    }
}

/// Runs the work that workers left to the fetcher.
fn finished(
    finisher: Option<&mut BatchFinisher>,
    buffers: &BufferPool,
    frame: Bytes,
) -> Result<Bytes, ChunkFormatError> {
    let Some(finisher) = finisher else { return Ok(frame) };
    let frame = ChunkFrame::parse(frame, &ChunkLimits::default())?;
    let finished = finisher.finish(&frame, &ChunkLimits::default(), |bytes| buffers.take(bytes))?;
    Ok(buffers.lend(finished))
}

/// Checks the object's counts against its entry: a difference would shift batch numbers.
fn check_counts(
    entry: &ReadySplit,
    chunk: &Chunk,
    sizes: &RangeInclusive<u32>,
) -> Result<(), FetchError> {
    let remainder = chunk.remainder().map_or(0, |i| chunk.frames()[i].rows);
    let batches = chunk.frames().len() - usize::from(chunk.remainder().is_some());
    let promised = entry.outcome.kind != SplitKind::Poison
        && chunk.frames()[..batches].iter().all(|frame| sizes.contains(&frame.rows))
        && batches == entry.outcome.batches as usize
        && remainder == entry.outcome.remainder_rows;
    if promised { Ok(()) } else { Err(bad(entry, &"it holds other batches than were committed")) }
}

fn bad(entry: &ReadySplit, error: &dyn std::fmt::Display) -> FetchError {
    let SplitPlace { epoch, position } = entry.place;
    FetchError::BadObject(format!("split {position} of epoch {epoch}: {error}"))
}

/// Objects in memory, or frames of them, by split.
pub(crate) type SplitChunks = BTreeMap<Position, Chunk>;

/// Rows of one split, copied out of its object so that the object can be freed.
struct Kept {
    /// Index in the split of the first row.
    first: u32,
    frame: ChunkFrame,
}

/// Leftover rows of splits that later batches need.
pub(crate) struct LeftoverRows {
    /// Rows per batch.
    size: u32,
    kept: BTreeMap<Position, Kept>,
    buffers: BufferPool,
}

impl LeftoverRows {
    /// An empty store for batches of `size` rows.
    pub fn new(size: u32, buffers: BufferPool) -> Self {
        Self { size, kept: BTreeMap::new(), buffers }
    }

    /// Joins the rows of `pieces` into one frame; rows of splits that were not kept come from `chunks`.
    pub fn join(
        &self,
        pieces: &[SplitRows],
        chunks: &SplitChunks,
    ) -> Result<Bytes, ChunkFormatError> {
        let mut parts: Vec<(ChunkFrame, Range<usize>)> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(Kept { first, frame }) = self.kept.get(&piece.position) else {
                let missing = || ChunkFormatError::invalid("rows of an earlier split are missing");
                let chunk = chunks.get(&piece.position).ok_or_else(missing)?;
                self.find(chunk, &piece.rows, &mut parts)?;
                continue;
            };
            let missing = || ChunkFormatError::invalid("rows of an earlier split were not kept");
            let start = piece.rows.start.checked_sub(*first).ok_or_else(missing)? as usize;
            parts.push((frame.clone(), start..start + piece.len() as usize));
        }
        let parts: Vec<_> = parts.iter().map(|(frame, rows)| (frame, rows.clone())).collect();
        let joined = join_rows(&parts, &ChunkLimits::default(), |bytes| self.buffers.take(bytes))?;
        Ok(self.buffers.lend(joined))
    }

    /// Keeps rows of a split in `chunks` for later.
    pub fn keep_rows(
        &mut self,
        piece: &SplitRows,
        chunks: &SplitChunks,
    ) -> Result<(), ChunkFormatError> {
        let frame = self.join(std::slice::from_ref(piece), chunks)?;
        let frame = ChunkFrame::parse(frame, &ChunkLimits::default())?;
        self.kept.insert(piece.position, Kept { first: piece.rows.start, frame });
        Ok(())
    }

    /// Drops splits before `position`.
    pub fn forget_before(&mut self, position: Position) {
        self.kept = self.kept.split_off(&position);
    }

    /// Drops all rows.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// The parts of frames that hold the given rows of the split in `chunk`, counted across its frames.
    fn find(
        &self,
        chunk: &Chunk,
        rows: &Range<u32>,
        parts: &mut Vec<(ChunkFrame, Range<usize>)>,
    ) -> Result<(), ChunkFormatError> {
        let mut row = rows.start;
        while row < rows.end {
            let (index, first) = (row / self.size, row - row % self.size);
            let end = rows.end.min(first.saturating_add(self.size));
            let frame = chunk.tensors(index as usize)?;
            parts.push((frame, (row - first) as usize..(end - first) as usize));
            row = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::entry;

    #[test]
    fn an_object_holds_what_its_entry_promises() {
        let mut writer = gristmill_chunk::ChunkWriter::new(gristmill_chunk::FrameCodec::Stored);
        let chunk = Chunk::open(writer.finish().unwrap().into(), &ChunkLimits::default()).unwrap();
        assert!(check_counts(&entry(0, 0, 0), &chunk, &(8..=8)).is_ok());
        let error = check_counts(&entry(0, 0, 4), &chunk, &(8..=8)).unwrap_err();
        assert!(error.to_string().contains("other batches than were committed"), "{error}");
    }
}
