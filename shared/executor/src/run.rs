//! Running one split: record by record, straight into the rows of its batches.

use crate::{
    ExecError, OpMetrics, Program,
    cell::{Cell, Place},
    ops,
    random::DrawKey,
    sources::FileIndex,
    step::{Action, Made, Step, Tools, View},
};
use bytes::Bytes;
use gristmill_format::{ChunkWriter, Codec, FrameKind};
use gristmill_types::{Epoch, ErrorPolicy, RecordKey, SkippedRecord};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

#[cfg(test)]
mod tests;

/// What errors and metrics call reading and parsing a record.
const SOURCE: &str = "source";

/// One split to run.
#[derive(Clone, Debug)]
pub struct SplitInput<'a> {
    pub epoch: Epoch,
    pub seed: u64,
    pub on_error: ErrorPolicy,
    /// Which of the epoch's visits of these records, from 0: each draws anew.
    pub copy: u32,
    /// First record of the split.
    pub first: RecordKey,
    pub n_records: u32,
    /// The bytes of these records, framing included: [`FileIndex::byte_range`] of the file.
    pub data: Bytes,
    /// The index of the file they are in.
    pub index: &'a FileIndex,
}

/// What a split became.
#[derive(Clone, Debug)]
pub struct SplitOutput {
    /// The chunk object: full batches, then at most one remainder frame. Without any row it is an
    /// object without frames.
    pub object: Vec<u8>,
    /// Rows in all, those of the remainder included.
    pub rows: u32,
    /// Full batches.
    pub batches: u32,
    /// Rows of the remainder frame; 0 if there is none.
    pub remainder_rows: u32,
    /// Records left out, in order.
    pub skipped: Vec<SkippedRecord>,
    /// Payloads of the records left out, under [`ErrorPolicy::Quarantine`].
    pub quarantined: Vec<(RecordKey, Bytes)>,
    /// The source, then every operator in the order of the pipeline.
    pub metrics: Vec<OpMetrics>,
}

/// What one thread works with: buffers that grow to what the largest element needs, and stay.
pub struct Scratch {
    cells: Vec<Cell>,
    tools: Tools,
    writer: ChunkWriter,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Scratch").field("fields", &self.cells.len()).finish_non_exhaustive()
    }
}

impl Scratch {
    pub(crate) fn new(fields: usize) -> Self {
        Scratch {
            cells: (0..fields).map(|_| Cell::default()).collect(),
            tools: Tools::default(),
            // What batches of pixels lose to zstd is not worth its time.
            writer: ChunkWriter::new(Codec::Stored),
        }
    }

    /// Gives back the memory of an object that is done with, for the next one.
    pub fn recycle(&mut self, object: Vec<u8>) {
        self.writer.recycle(object);
    }
}

/// Why an element was not finished.
enum Fault {
    Cancelled,
    /// The record is to blame.
    Record {
        op: &'static str,
        reason: String,
    },
    Fatal(ExecError),
}

impl From<gristmill_format::FormatError> for Fault {
    fn from(error: gristmill_format::FormatError) -> Self {
        Fault::Fatal(error.into())
    }
}

pub(crate) fn run(
    program: &Program,
    scratch: &mut Scratch,
    input: &SplitInput<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<SplitOutput, ExecError> {
    scratch.writer.reset();
    if scratch.cells.len() != program.tensors.len() {
        return Err(ExecError::Pipeline("the scratch belongs to another program".into()));
    }
    let expected = input.index.byte_range(input.first.record, input.n_records);
    let expected = expected.ok_or_else(|| {
        let SplitInput { first, n_records, index, .. } = input;
        let records = index.len();
        ExecError::Source(format!(
            "{first} and {n_records} on are not in the index of a file of {records} records"
        ))
    })?;
    let data_bytes = input.data.len() as u64;
    if data_bytes != expected.end - expected.start {
        return Err(ExecError::Source(format!(
            "bytes {}..{} of the file were read as {data_bytes} bytes",
            expected.start, expected.end
        )));
    }
    let outcome = Run::new(program, scratch, input, cancelled).split();
    if outcome.is_err() {
        scratch.writer.reset();
    }
    outcome
}

struct Run<'a> {
    program: &'a Program,
    scratch: &'a mut Scratch,
    input: &'a SplitInput<'a>,
    cancelled: &'a dyn Fn() -> bool,
    metrics: Vec<OpMetrics>,
    skipped: Vec<SkippedRecord>,
    quarantined: Vec<(RecordKey, Bytes)>,
    /// Rows of the open frame.
    row: usize,
    batches: u32,
    /// The end of the last thing timed and so the start of the next.
    lap: Instant,
}

impl<'a> Run<'a> {
    fn new(
        program: &'a Program,
        scratch: &'a mut Scratch,
        input: &'a SplitInput<'a>,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Self {
        let mut metrics = vec![OpMetrics::new(SOURCE, None)];
        for (stage, step) in (0..).zip(&program.steps) {
            metrics.push(OpMetrics::new(step.name, Some(stage)));
        }
        metrics.push(OpMetrics::new("batch", Some(program.batch_stage)));
        Run {
            program,
            scratch,
            input,
            cancelled,
            metrics,
            skipped: Vec::new(),
            quarantined: Vec::new(),
            row: 0,
            batches: 0,
            lap: Instant::now(),
        }
    }

    fn split(mut self) -> Result<SplitOutput, ExecError> {
        let SplitInput { first, n_records, ref data, index, .. } = *self.input;
        let row_bytes = self.program.row_bytes;
        // Headers and footer take a little more; growing once for a small split is no harm.
        self.scratch.writer.reserve((n_records as usize).saturating_mul(row_bytes) + (64 << 10));
        let mut open = false;
        let mut start = 0;
        for (i, stored_bytes) in (0..n_records).zip(index.sizes(first.record, n_records)) {
            if (self.cancelled)() {
                return Err(ExecError::Cancelled);
            }
            if !open {
                let left = (n_records - i) as usize;
                let rows = self.program.batch_size.min(left);
                self.scratch.writer.begin_frame(&self.program.schema, rows)?;
                open = true;
            }
            // All of them together are as long as `data`, which was checked.
            let end = start + stored_bytes as usize;
            let key = RecordKey { file: first.file, record: first.record + i };
            self.lap = Instant::now();
            let stored = data.get(start..end).unwrap_or_default();
            match self.element(key, stored) {
                Ok(()) => self.row += 1,
                Err(Fault::Cancelled) => return Err(ExecError::Cancelled),
                Err(Fault::Fatal(error)) => return Err(error),
                Err(Fault::Record { op, reason }) => self.bad_record(key, op, reason, stored)?,
            }
            start = end;
            if self.row == self.program.batch_size {
                self.end_frame(FrameKind::Batch)?;
                self.row = 0;
                self.batches += 1;
                open = false;
            }
        }
        match (open, self.row) {
            (true, 0) => self.scratch.writer.abandon_frame(),
            (true, _) => self.end_frame(FrameKind::Remainder)?,
            (false, _) => {}
        }
        self.finish()
    }

    fn end_frame(&mut self, kind: FrameKind) -> Result<(), ExecError> {
        self.lap = Instant::now();
        self.scratch.writer.end_frame(kind, self.row)?;
        let active_ns = self.lap();
        if let Some(batch) = self.metrics.last_mut() {
            batch.add(active_ns, 0, self.row * self.program.row_bytes);
        }
        Ok(())
    }

    fn finish(self) -> Result<SplitOutput, ExecError> {
        let Run { program, scratch, skipped, quarantined, metrics, row, batches, .. } = self;
        let object = scratch.writer.finish()?;
        // A batch has at least one row, and there are no more rows than records.
        let batched = batches.saturating_mul(program.batch_size as u32);
        let remainder_rows = row as u32;
        let rows = batched.saturating_add(remainder_rows);
        Ok(SplitOutput { object, rows, batches, remainder_rows, skipped, quarantined, metrics })
    }

    /// Applies the job's policy to a record that failed. Its half-written row is written again.
    fn bad_record(
        &mut self,
        key: RecordKey,
        op: &'static str,
        reason: String,
        stored: &[u8],
    ) -> Result<(), ExecError> {
        let record = SkippedRecord { key, op: op.to_owned(), reason };
        match self.input.on_error {
            ErrorPolicy::Fail => return Err(ExecError::Record(record)),
            ErrorPolicy::Skip => {}
            ErrorPolicy::Quarantine => {
                // A copy: a slice would keep the whole split's bytes alive.
                let raw = self.program.reader.raw(stored);
                self.quarantined.push((key, Bytes::copy_from_slice(raw)));
            }
        }
        self.skipped.push(record);
        Ok(())
    }

    /// One record into row `self.row`. A panic on the way is that record's error.
    fn element(&mut self, key: RecordKey, stored: &[u8]) -> Result<(), Fault> {
        let mut at = SOURCE;
        // What a panic leaves half-written is written anew by the next element.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.steps(key, stored, &mut at)));
        outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let text: String = text.unwrap_or("").chars().take(160).collect();
            let reason = format!("the operator panicked: {}", text.replace(char::is_control, " "));
            // A broken operator may also have broken the tools it was given.
            self.scratch.tools = Tools::default();
            Err(Fault::Record { op: at, reason })
        })
    }

    fn steps(&mut self, key: RecordKey, stored: &[u8], at: &mut &'static str) -> Result<(), Fault> {
        let source = |reason| Fault::Record { op: SOURCE, reason };
        let program = self.program;
        let read = program.reader.read(stored, &mut self.scratch.cells);
        let (record, kept_bytes) = read.map_err(source)?;
        let active_ns = self.lap();
        self.metrics[0].add(active_ns, stored.len(), kept_bytes);
        for (i, step) in program.steps.iter().enumerate() {
            *at = step.name;
            let SplitInput { seed, epoch, copy, .. } = *self.input;
            let ordinal = step.ordinal;
            let draw = DrawKey { seed, epoch, record: key, repeat: copy, copy: 0, ordinal };
            let (bytes_in, bytes_out) =
                self.act(step, record, &draw).map_err(|fault| match fault {
                    Fault::Record { reason, .. } => Fault::Record { op: step.name, reason },
                    other => other,
                })?;
            let active_ns = self.lap();
            self.metrics[i + 1].add(active_ns, bytes_in, bytes_out);
        }
        *at = "batch";
        self.stack(key, record)
    }

    /// Does what a step does; returns the bytes read and written.
    fn act(&mut self, step: &Step, record: &[u8], draw: &DrawKey) -> Result<(usize, usize), Fault> {
        let Scratch { cells, tools, writer } = &mut *self.scratch;
        let bad = |reason| Fault::Record { op: "", reason };
        match &step.action {
            Action::Transform { field, kernel, to_row } => {
                let row = match to_row {
                    true => Some(writer.row_mut(self.program.tensors[*field], self.row)?),
                    false => None,
                };
                let cell = &mut cells[*field];
                let size = step.size.unwrap_or(cell.size);
                let (bytes, output) = cell.split(record, row).map_err(bad)?;
                let bytes_in = bytes.len();
                let made = kernel.run(View { bytes, size }, output, tools, &mut draw.draw());
                let Made { bytes, size } = made.map_err(bad)?;
                cell.moved(*to_row, bytes);
                cell.size = size;
                Ok((bytes_in, bytes))
            }
            Action::InPlace { field, kernel } => {
                let cell = &mut cells[*field];
                let size = step.size.unwrap_or(cell.size);
                let row = match cell.place {
                    Place::Row => writer.row_mut(self.program.tensors[*field], self.row)?,
                    _ => &mut [],
                };
                let value = cell.value_mut(row);
                let value = value.ok_or_else(|| bad("the record itself cannot change".into()))?;
                kernel.run(value, size, &mut draw.draw());
                Ok((value.len(), value.len()))
            }
            Action::Wait(duration) => match ops::sleep(*duration, self.cancelled) {
                true => Ok((0, 0)),
                false => Err(Fault::Cancelled),
            },
            Action::Nothing => Ok((0, 0)),
        }
    }

    /// Copies the fields that no operator wrote to their rows, and says where they came from.
    fn stack(&mut self, key: RecordKey, record: &[u8]) -> Result<(), Fault> {
        let Scratch { cells, writer, .. } = &mut *self.scratch;
        let bad = |reason| Fault::Record { op: "batch", reason };
        let mut copied_bytes = 0;
        for (field, cell) in cells.iter_mut().enumerate() {
            if self.program.copied[field] {
                let row = writer.row_mut(self.program.tensors[field], self.row)?;
                let (value, output) = cell.split(record, Some(row)).map_err(bad)?;
                output.take(value.len()).map_err(bad)?.copy_from_slice(value);
                copied_bytes += value.len();
            }
        }
        let packed = key.packed().to_le_bytes();
        writer.row_mut(self.program.key_tensor, self.row)?.copy_from_slice(&packed);
        writer
            .row_mut(self.program.copy_tensor, self.row)?
            .copy_from_slice(&self.input.copy.to_le_bytes());
        let active_ns = self.lap();
        if let Some(batch) = self.metrics.last_mut() {
            batch.active_ns += active_ns;
            batch.bytes_in += (copied_bytes + 12) as u64;
        }
        Ok(())
    }

    /// Nanoseconds since the last lap.
    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let lap = now.duration_since(self.lap);
        self.lap = now;
        u64::try_from(lap.as_nanos()).unwrap_or(u64::MAX)
    }
}
