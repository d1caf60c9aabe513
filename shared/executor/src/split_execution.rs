//! Runs one split, record by record, straight into the rows of its batches.

#[cfg(test)]
mod tests;

use crate::{
    CompiledPipeline, ExecError, OpMetrics,
    cached_split::CacheCapture,
    element::ElementContext,
    program::DeliveredField,
    split::{InputRange, InputRecord, SplitInput, SplitOutput, records},
    staging::{BatchStaging, RowRefusal},
    zip,
};

use bytes::Bytes;
use gristmill_chunk::{ChunkFormatError, ChunkFrameKind, ChunkWriter, FrameCodec};
use gristmill_kernel::{CellStorage, FieldCell, KernelScratch};
use gristmill_model::{Epoch, ErrorPolicy, RecordKey, SkippedRecord};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

/// Name of reading and parsing a record in errors and metrics.
const SOURCE: &str = "source";

/// Buffers of one thread. They grow to the size of the largest element and are reused.
pub struct ExecutorScratch {
    pub(crate) cells: Vec<FieldCell>,
    /// Place and size of every field when an element became several; each of them starts from these.
    /// Further levels append to the list.
    pub(crate) places: Vec<(CellStorage, [usize; 2])>,
    pub(crate) tools: KernelScratch,
    pub(crate) writer: ChunkWriter,
    /// Writes the cache object.
    pub(crate) cache: ChunkWriter,
    staging: BatchStaging,
}

impl ExecutorScratch {
    pub(crate) fn new(program: &CompiledPipeline) -> Self {
        ExecutorScratch {
            cells: (0..program.cells).map(|_| FieldCell::default()).collect(),
            places: Vec::new(),
            tools: KernelScratch::default(),
            staging: BatchStaging::default(),
            writer: ChunkWriter::new(FrameCodec::Stored),
            cache: ChunkWriter::new(FrameCodec::Stored),
        }
    }

    /// Sets how frames are stored in the objects of the next split.
    pub fn set_codec(&mut self, codec: FrameCodec) {
        self.writer.set_codec(codec);
        self.cache.set_codec(codec);
    }

    /// Takes back the memory of a finished object, to reuse it for the next one.
    pub fn recycle(&mut self, object: Vec<u8>) {
        self.writer.recycle(object);
    }
}

/// Reason why an element was not finished.
pub(crate) enum ElementFault {
    Cancelled,
    /// The record is bad: the job's error policy applies.
    Record {
        op: &'static str,
        reason: String,
    },
    Fatal(ExecError),
}

impl From<ChunkFormatError> for ElementFault {
    fn from(error: ChunkFormatError) -> Self {
        ElementFault::Fatal(error.into())
    }
}

/// Parameters that are the same for all records of a split.
#[derive(Clone, Copy)]
pub(crate) struct SplitParameters {
    pub(crate) epoch: Epoch,
    pub(crate) seed: u64,
    pub(crate) on_error: ErrorPolicy,
    /// See [`SplitInput::ends_at_bad`].
    pub(crate) ends_at_bad: bool,
}

pub(crate) struct SplitExecution<'a> {
    pub(crate) program: &'a CompiledPipeline,
    pub(crate) scratch: &'a mut ExecutorScratch,
    pub(crate) cancelled: &'a dyn Fn() -> bool,
    pub(crate) split: UnfinishedSplit,
    /// Occurrence of the current record in the epoch, from 0.
    pub(crate) copy: u32,
    /// End of the last timed interval, which is the start of the next.
    pub(crate) lap: Instant,
}

impl<'a> SplitExecution<'a> {
    pub(crate) fn new(
        program: &'a CompiledPipeline,
        scratch: &'a mut ExecutorScratch,
        terms: SplitParameters,
        left: u32,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, ExecError> {
        // A run before may have stopped half-way.
        scratch.writer.reset();
        scratch.cache.reset();
        scratch.staging.reset();
        let mut metrics = vec![OpMetrics::new(SOURCE, None)];
        for step in &program.steps {
            metrics.push(OpMetrics::new(step.name, Some(step.stage)));
        }
        let (batch, stage) = program.batch_op;
        metrics.push(OpMetrics::new(batch, Some(stage)));
        let split = UnfinishedSplit {
            terms,
            metrics,
            skipped: Vec::new(),
            quarantined: Vec::new(),
            capture: None,
            left,
            ran: 0,
            resumed: None,
            open: false,
            row: 0,
            batches: 0,
        };
        Self::again(program, scratch, split, cancelled)
    }

    /// Reserves memory for the rows of all remaining records, each of which can become `width`
    /// rows.
    pub(crate) fn reserve(&mut self, width: u32) {
        let rows = (self.split.left as usize).saturating_mul(width.min(64) as usize);
        // Headers and the footer take a little more; a small split can afford to grow once.
        self.scratch.writer.reserve(rows.saturating_mul(self.program.row_bytes) + (64 << 10));
    }

    fn records(&mut self, input: &SplitInput<'_>) -> Result<(), ExecError> {
        let mut zipped = zip::besides(self.program, input)?;
        let records = records(&input.parts, input.picks.as_deref(), input.copy);
        self.split.ran = input.n_records();
        for (ran, record) in (1..).zip(records) {
            let others =
                zipped.iter_mut().map(zip::ZippedRecords::next).collect::<Result<Vec<_>, _>>()?;
            if ran <= input.begin {
                continue;
            }
            if self.split.has_ended() {
                self.split.left -= 1;
                continue;
            }
            self.one(&record?, &others)?;
            if input.in_turns && self.split.capture.as_ref().is_some_and(CacheCapture::has_parts) {
                self.split.ran = ran;
                break;
            }
        }
        Ok(())
    }

    /// Runs one record and its zipped records. Applies the error policy if one of them is bad.
    fn one(
        &mut self,
        record: &InputRecord<'_>,
        others: &[zip::ZippedRecord<'_>],
    ) -> Result<(), ExecError> {
        if (self.cancelled)() {
            return Err(ExecError::Cancelled);
        }
        let InputRecord { key, stored, copy, .. } = *record;
        self.copy = copy;
        self.lap = Instant::now();
        match self.record(record, others) {
            Ok(()) => {}
            Err(ElementFault::Cancelled) => return Err(ExecError::Cancelled),
            Err(ElementFault::Fatal(error)) => return Err(error),
            Err(ElementFault::Record { op, reason }) => {
                self.bad_record(SkippedRecord { key, op: op.to_owned(), reason }, Some(stored))?;
                if self.split.terms.on_error == ErrorPolicy::Quarantine {
                    self.split.quarantined.extend(others.iter().map(zip::ZippedRecord::raw));
                }
            }
        }
        self.split.left -= 1;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<SplitOutput, ExecError> {
        self.lap = Instant::now();
        let mut remainder_rows = self.split.row as u32;
        let staged_rows = self.program.stages().then(|| self.scratch.staging.rows());
        match (self.split.open, self.split.row) {
            (true, 0) => self.scratch.writer.abandon_frame(),
            (true, _) => self.end_frame(ChunkFrameKind::Remainder)?,
            (false, _) => {
                let ExecutorScratch { staging, writer, .. } = &mut *self.scratch;
                let (batches, rows) = staging.finish(self.program, writer)?;
                self.split.batches += batches;
                remainder_rows = rows;
                self.count_batches(u64::from(batches) + u64::from(rows > 0), 0);
            }
        }
        let mut capture = self.split.capture.take();
        let cached = capture.as_mut().map(|capture| self.end_capture(capture)).transpose()?;
        let cached_before = capture.map_or(Vec::new(), |mut capture| capture.take_parts());
        let SplitExecution { program, scratch, split, .. } = self;
        let UnfinishedSplit { skipped, quarantined, mut metrics, batches, resumed, .. } = split;
        if let Some(step) = resumed {
            // The steps up to the cache point did not run.
            metrics.drain(1..=step + 1);
        }
        let object = scratch.writer.finish()?;
        let batched = batches.saturating_mul(program.batching.size);
        let rows = staged_rows.unwrap_or_else(|| batched.saturating_add(remainder_rows));
        Ok(SplitOutput {
            object,
            rows,
            batches,
            remainder_rows,
            skipped,
            quarantined,
            metrics,
            cached_before,
            cached,
        })
    }

    /// Opens a frame for the next rows if none is open.
    pub(crate) fn begin_frame(&mut self) -> Result<(), ElementFault> {
        if self.split.open || self.program.stages() {
            return Ok(());
        }
        let size = self.program.batching.size as usize;
        let rows =
            if self.program.is_one_to_one() { size.min(self.split.left as usize) } else { size };
        self.scratch.writer.begin_frame(&self.program.schema, rows)?;
        (self.split.open, self.split.row) = (true, 0);
        Ok(())
    }

    fn end_frame(&mut self, kind: ChunkFrameKind) -> Result<(), ChunkFormatError> {
        self.scratch.writer.end_frame(kind, self.split.row)?;
        self.count_batches(1, self.split.row * self.program.row_bytes);
        (self.split.open, self.split.row) = (false, 0);
        Ok(())
    }

    fn count_batches(&mut self, batches: u64, bytes_produced: usize) {
        let active_ns = self.lap();
        if let Some(batch) = self.split.metrics.last_mut() {
            batch.add(active_ns, batches, 0, bytes_produced);
        }
    }

    /// Applies the job's error policy to a failed record. Its unfinished row will be overwritten;
    /// its finished rows stay. `stored` is `None` for a record that comes from a cache.
    pub(crate) fn bad_record(
        &mut self,
        record: SkippedRecord,
        stored: Option<&[u8]>,
    ) -> Result<(), ExecError> {
        if self.split.open {
            self.scratch.writer.truncate_ragged(self.split.row)?;
        }
        match self.split.terms.on_error {
            _ if self.split.terms.ends_at_bad => {}
            ErrorPolicy::Fail => return Err(ExecError::Record(record)),
            ErrorPolicy::Skip => {}
            ErrorPolicy::Quarantine => {
                // A copy: a slice would keep the whole split's bytes alive.
                let raw = stored.map(|stored| self.program.reader.raw(stored));
                let raw = raw.map(|raw| (record.key, Bytes::copy_from_slice(raw)));
                self.split.quarantined.extend(raw);
            }
        }
        self.split.skipped.push(record);
        Ok(())
    }

    /// Turns one record and its zipped records into rows.
    fn record(
        &mut self,
        input: &InputRecord<'_>,
        others: &[zip::ZippedRecord<'_>],
    ) -> Result<(), ElementFault> {
        let InputRecord { key, stored, .. } = *input;
        self.begin_frame()?;
        let outcome = self.guarded(|run, at| {
            let bad = |reason| ElementFault::Record { op: SOURCE, reason };
            let read = input.read(&run.program.reader, &mut run.scratch.cells);
            let (record, mut kept_bytes) = read.map_err(bad)?;
            let mut stored_bytes = stored.len();
            for other in others {
                kept_bytes += other.read(&mut run.scratch.cells).map_err(bad)?;
                stored_bytes += other.stored_bytes();
            }
            let active_ns = run.lap();
            run.split.metrics[0].add(active_ns, 1, stored_bytes, kept_bytes);
            run.scratch.places.clear();
            run.steps(0, ElementContext { key, record, copy: 0, level: 0 }, at)
        });
        match &mut self.split.capture {
            Some(capture) => {
                let outcome = capture.end_record(key, outcome);
                self.end_part()?;
                outcome
            }
            None => outcome,
        }
    }

    /// Runs `work` on one record. Turns a panic into an error of that record, and blames the
    /// operator that `work` reached.
    pub(crate) fn guarded(
        &mut self,
        work: impl FnOnce(&mut Self, &mut &'static str) -> Result<(), ElementFault>,
    ) -> Result<(), ElementFault> {
        let mut at = SOURCE;
        // The next element overwrites a half-written row.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self, &mut at)));
        outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let text: String = text.unwrap_or("").chars().take(160).collect();
            let reason = format!("the operator panicked: {}", text.replace(char::is_control, " "));
            // The panic may have left the tools in a broken state.
            self.scratch.tools = KernelScratch::default();
            Err(ElementFault::Record { op: at, reason })
        })
    }

    /// Writes the finished element as a row, which may complete a batch.
    pub(crate) fn emit(&mut self, element: ElementContext<'_>) -> Result<(), ElementFault> {
        let copy = self.copy.checked_mul(self.program.width);
        let copy = copy.and_then(|first| first.checked_add(element.copy));
        let copy = copy.ok_or_else(|| too_many(self.program.batch_op.0))?;
        if self.program.stages() {
            return self.stage(element, copy);
        }
        let copied_bytes = self.stack(element, copy)?;
        self.split.row += 1;
        let active_ns = self.lap();
        if let Some(batch) = self.split.metrics.last_mut() {
            batch.add(active_ns, 0, copied_bytes + 12, 0);
        }
        if self.split.row == self.program.batching.size as usize {
            self.end_frame(ChunkFrameKind::Batch)?;
            self.split.batches += 1;
        }
        Ok(())
    }

    /// Copies the fields that no operator wrote to their rows, and writes key and copy. Returns the
    /// bytes copied.
    fn stack(&mut self, element: ElementContext<'_>, copy: u32) -> Result<usize, ElementFault> {
        let ExecutorScratch { cells, writer, .. } = &mut *self.scratch;
        let op = self.program.batch_op.0;
        let mut copied_bytes = 0;
        for field in self.program.delivered.iter().filter(|field| field.copied) {
            let value = cells[field.cell].value(element.record, &[]);
            copied_bytes += value.len();
            if let Some(sequence) = &field.sequence {
                let items = value.len() / sequence.item_bytes;
                let fits = self.program.batching.padded_length(&field.name, items);
                fits.map_err(|reason| ElementFault::Record { op, reason })?;
                writer.push_ragged(field.tensor, value)?;
                if let Some((tensor, shape)) = field.shapes {
                    let mut unknown = cells[field.cell].size.into_iter();
                    let row = writer.row_mut(tensor, self.split.row)?.as_chunks_mut::<8>().0;
                    for (to, side) in row.iter_mut().zip(shape) {
                        let side = side.map(|side| side as usize).or_else(|| unknown.next());
                        *to = (side.unwrap_or(0) as i64).to_le_bytes();
                    }
                }
                continue;
            }
            let row = writer.row_mut(field.tensor, self.split.row)?;
            if row.len() != value.len() {
                let (name, is, wanted) = (&field.name, value.len(), row.len());
                let reason = format!("`{name}` has {is} bytes, not {wanted}: please report this");
                return Err(ElementFault::Record { op, reason });
            }
            row.copy_from_slice(value);
        }
        let packed = element.key.packed().to_le_bytes();
        writer.row_mut(self.program.key_tensor, self.split.row)?.copy_from_slice(&packed);
        writer
            .row_mut(self.program.copy_tensor, self.split.row)?
            .copy_from_slice(&copy.to_le_bytes());
        Ok(copied_bytes)
    }

    /// Stages the element until its batch is full.
    fn stage(&mut self, element: ElementContext<'_>, copy: u32) -> Result<(), ElementFault> {
        let ExecutorScratch { cells, writer, staging, .. } = &mut *self.scratch;
        let value = |field: &DeliveredField| cells[field.cell].value(element.record, &[]);
        let bytes_in: usize = self.program.delivered.iter().map(|field| value(field).len()).sum();
        let origin = (element.key.packed(), copy);
        let full =
            staging.push(self.program, writer, origin, value).map_err(|error| match error {
                RowRefusal::Row(reason) => {
                    ElementFault::Record { op: self.program.batch_op.0, reason }
                }
                RowRefusal::Fatal(error) => ElementFault::Fatal(error.into()),
            })?;
        self.split.batches += u32::from(full);
        let active_ns = self.lap();
        if let Some(batch) = self.split.metrics.last_mut() {
            batch.add(active_ns, u64::from(full), bytes_in + 12, 0);
        }
        Ok(())
    }

    /// Returns the nanoseconds since the last lap.
    pub(crate) fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let lap = now.duration_since(self.lap);
        self.lap = now;
        u64::try_from(lap.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Error of a record that becomes more elements than a `u32` can number.
pub(crate) fn too_many(op: &'static str) -> ElementFault {
    ElementFault::Record { op, reason: "it becomes more elements than can be numbered".into() }
}

// Runs a split in portions and keeps its state between them, so that only some of its records are
// in memory.

impl CompiledPipeline {
    /// Runs the pipeline over the records of one split. Calls `cancelled` before each element.
    ///
    /// # Errors
    /// [`ExecError::Cancelled`] when asked to stop, [`ExecError::Record`] for a bad record under
    /// [`ErrorPolicy::Fail`](gristmill_model::ErrorPolicy::Fail), [`ExecError::Source`] if `data`
    /// is not the byte range of the records, [`ExecError::Output`] if the object gets too large.
    pub fn run_split(
        &self,
        scratch: &mut ExecutorScratch,
        input: &SplitInput<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<SplitOutput, ExecError> {
        let all = self.run_portion(scratch, None, input, 0, cancelled)?;
        self.end_split(scratch, all)
    }

    /// Runs a split whose records are read in several portions: those of `input` after those of
    /// `before`; `more` records follow in later portions. The inputs differ only in their records.
    /// [`UnfinishedSplit::ran`] returns how many records of the input have run if
    /// [`SplitInput::in_turns`] is set. [`end_split`](Self::end_split) returns the result of all
    /// portions.
    pub fn run_portion(
        &self,
        scratch: &mut ExecutorScratch,
        before: Option<UnfinishedSplit>,
        input: &SplitInput<'_>,
        more: u32,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<UnfinishedSplit, ExecError> {
        let zipped = input.zipped.iter().flat_map(|zipped| &zipped.parts);
        input.parts.iter().chain(zipped).try_for_each(InputRange::check)?;
        let left = input.n_records().saturating_sub(input.begin).saturating_add(more);
        let mut run = match before {
            Some(before) => {
                SplitExecution::again(self, scratch, UnfinishedSplit { left, ..before }, cancelled)?
            }
            None => {
                let SplitInput { epoch, seed, on_error, ends_at_bad, .. } = *input;
                let terms = SplitParameters { epoch, seed, on_error, ends_at_bad };
                let point = input.put.map(|point| self.point(point)).transpose()?;
                let mut run = SplitExecution::new(self, scratch, terms, left, cancelled)?;
                let capture = |point| CacheCapture::new(self, point, left, input.put_bytes);
                run.split.capture = point.map(capture);
                run.reserve(self.width);
                run
            }
        };
        run.records(input)?;
        Ok(run.split)
    }

    /// Ends a split after its last portion. Needs the scratch of the portions.
    ///
    /// # Errors
    /// [`ExecError::Output`] if the object gets too large.
    pub fn end_split(
        &self,
        scratch: &mut ExecutorScratch,
        unfinished: UnfinishedSplit,
    ) -> Result<SplitOutput, ExecError> {
        SplitExecution::again(self, scratch, unfinished, &|| false)?.finish()
    }
}

/// A split that is partly run. The rows of its open frame are in the scratch.
pub struct UnfinishedSplit {
    pub(crate) terms: SplitParameters,
    /// One entry for the source, one per step, and one for the batch.
    pub(crate) metrics: Vec<OpMetrics>,
    pub(crate) skipped: Vec<SkippedRecord>,
    pub(crate) quarantined: Vec<(RecordKey, Bytes)>,
    /// Present when elements are captured for the cache.
    pub(crate) capture: Option<CacheCapture>,
    /// Records, or elements of a cache, that have not started yet.
    pub(crate) left: u32,
    /// Records of the input that have been run.
    pub(crate) ran: u32,
    /// The step of the cache point that the split is resumed from, if it is.
    pub(crate) resumed: Option<usize>,
    /// True while a frame is open; `row` counts its rows. Staged batches do not use it.
    pub(crate) open: bool,
    pub(crate) row: usize,
    pub(crate) batches: u32,
}

impl UnfinishedSplit {
    /// Records left out so far, in order.
    pub fn skipped(&self) -> &[SkippedRecord] {
        &self.skipped
    }

    /// Whether the split ends before a record that was bad.
    pub(crate) fn has_ended(&self) -> bool {
        self.terms.ends_at_bad && !self.skipped.is_empty()
    }

    /// Returns the complete parts of the capture, in order. Parts that are not taken end up in
    /// [`SplitOutput::cached_before`].
    pub fn take_cached(&mut self) -> Vec<Vec<u8>> {
        self.capture.as_mut().map_or(Vec::new(), CacheCapture::take_parts)
    }

    /// Records of the last input that have been run: all, unless [`SplitInput::in_turns`] is set.
    pub fn ran(&self) -> u32 {
        self.ran
    }
}

impl<'a> SplitExecution<'a> {
    /// Continues a split.
    pub(crate) fn again(
        program: &'a CompiledPipeline,
        scratch: &'a mut ExecutorScratch,
        split: UnfinishedSplit,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, ExecError> {
        if scratch.cells.len() != program.cells {
            return Err(ExecError::Pipeline("the scratch belongs to another program".into()));
        }
        Ok(SplitExecution { program, scratch, cancelled, split, copy: 0, lap: Instant::now() })
    }
}
