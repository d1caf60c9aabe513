//! Runs the rest of a pipeline over elements that were captured at a cache point.

use crate::{
    CompiledPipeline, ExecError, ExecutorScratch, OpMetrics, SplitOutput,
    cache_point::{CachePointField, CompiledCachePoint, OriginTensors, RefusedRecordTensors},
    element::ElementContext,
    run::{ElementFault, SplitExecution, SplitParameters, UnfinishedSplit},
};

use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkFrame, ChunkLimits, FrameSchema, TensorView};
use gristmill_kernel::CellStorage;
use gristmill_model::{Epoch, ErrorPolicy, RecordKey, SkippedRecord};
use std::{iter::Peekable, ops::Range, time::Instant, vec::IntoIter};

/// Name of reading elements from a cache in metrics.
const CACHE: &str = "cache";

/// A split, or a part of it, to resume from its cache object.
#[derive(Clone, Debug)]
pub struct ResumeInput {
    /// Cache point of the capture: its index among those of the pipeline.
    pub point: u32,
    /// [`SplitOutput::cached`] of the run that captured it, or one of
    /// [`SplitOutput::cached_before`].
    pub object: Bytes,
    pub epoch: Epoch,
    pub seed: u64,
    pub on_error: ErrorPolicy,
}

/// Maximum length in bytes of the reason for a skipped record; operators give one line.
const MAX_REASON_BYTES: usize = 4096;

/// Records refused before the cache point, in order, each with its position in the split.
type RefusedRecords = Peekable<IntoIter<(u32, SkippedRecord)>>;

impl CompiledPipeline {
    /// Runs the rest of the pipeline over a split that [`run_split`](Self::run_split) captured at a
    /// cache point. The object and the list of skipped records are the same as from the records
    /// themselves. The cache has no payloads of skipped records, so `quarantined` is empty. Calls
    /// `cancelled` before each element.
    ///
    /// # Errors
    /// [`ExecError::Cache`] if `input.object` is damaged or of another pipeline; else as
    /// [`run_split`](Self::run_split).
    pub fn resume_split(
        &self,
        scratch: &mut ExecutorScratch,
        input: &ResumeInput,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<SplitOutput, ExecError> {
        let all = self.resume_part(scratch, None, input, true, cancelled)?;
        self.end_resumed(scratch, input.point, all)
    }

    /// Like [`resume_split`](Self::resume_split) for a split that was captured in parts: runs the
    /// part in `input` after those of `before`. [`end_resumed`](Self::end_resumed) returns the
    /// result of all parts.
    ///
    /// # Errors
    /// As [`resume_split`](Self::resume_split).
    pub fn resume_part(
        &self,
        scratch: &mut ExecutorScratch,
        before: Option<UnfinishedSplit>,
        input: &ResumeInput,
        is_last: bool,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<UnfinishedSplit, ExecError> {
        let point = self.point(input.point)?;
        let chunk = Chunk::open(input.object.clone(), &ChunkLimits::default());
        let chunk = chunk.map_err(|error| point.error(error))?;
        let frames = 0..chunk.remainder().unwrap_or(chunk.frames().len());
        // Elements get numbers of type `u32`, like records.
        let rows = chunk.frames()[frames.clone()].iter().map(|frame| u64::from(frame.rows));
        let rows: u64 = rows.sum();
        let left = u32::try_from(rows);
        let left = left.map_err(|_| point.error(format!("it has {rows} elements")))?;
        // Other parts may have enough elements for one more batch.
        let left = left.saturating_add(if is_last { 0 } else { self.batching.size });
        let refused = refused(&chunk, point)?;
        let run = match before {
            Some(before) => {
                SplitExecution::again(self, scratch, UnfinishedSplit { left, ..before }, cancelled)?
            }
            None => {
                let ResumeInput { epoch, seed, on_error, .. } = *input;
                let terms = SplitParameters { epoch, seed, on_error };
                let mut run = SplitExecution::new(self, scratch, terms, left, cancelled)?;
                run.split.metrics[0] = OpMetrics::new(CACHE, None);
                let after = self.steps[point.step..].iter();
                run.reserve(after.fold(1, |width, step| width.saturating_mul(step.action.width())));
                run
            }
        };
        let mut resumed = Resumed { run, point, refused, reached: 0, left_out: None };
        for frame in frames {
            resumed.frame(&chunk.tensors(frame).map_err(|error| point.error(error))?)?;
        }
        resumed.refuse_before(None)?;
        Ok(resumed.run.split)
    }

    /// Ends a split after its last part was resumed from cache point `point`. Needs the scratch of
    /// the parts.
    ///
    /// # Errors
    /// [`ExecError::Output`] if the object gets too large.
    pub fn end_resumed(
        &self,
        scratch: &mut ExecutorScratch,
        point: u32,
        unfinished: UnfinishedSplit,
    ) -> Result<SplitOutput, ExecError> {
        let step = self.point(point)?.step;
        let mut run = SplitExecution::again(self, scratch, unfinished, &|| false)?;
        run.split.metrics.drain(1..=step + 1);
        run.finish()
    }
}

/// A split that is being resumed.
struct Resumed<'a> {
    run: SplitExecution<'a>,
    point: &'a CompiledCachePoint,
    refused: RefusedRecords,
    /// Position in the split of the current record.
    reached: u32,
    /// The record whose remaining elements are skipped, because one of them failed.
    left_out: Option<u32>,
}

/// Tensors of one frame, whose order may differ from the program's.
struct Elements<'f> {
    bytes: &'f [u8],
    fields: Vec<TensorView<'f>>,
    sizes: Option<TensorView<'f>>,
    origin: [TensorView<'f>; 4],
}

impl<'f> Elements<'f> {
    /// Returns `None` if the frame has another schema than the cache point.
    fn new(frame: &'f ChunkFrame, point: &CompiledCachePoint) -> Option<Self> {
        let known: &FrameSchema = &point.schema;
        if frame.schema() != known {
            return None;
        }
        let view = |tensor: usize| frame.get(&known.tensors().get(tensor)?.name);
        let OriginTensors { key, copy, record, repeat } = point.origin;
        let fields = point.fields.iter().map(|field| view(field.tensor)).collect::<Option<_>>()?;
        let sizes = match point.sizes {
            Some(sizes) => Some(view(sizes)?),
            None => None,
        };
        let origin = [view(key)?, view(copy)?, view(record)?, view(repeat)?];
        Some(Elements { bytes: frame.bytes(), fields, sizes, origin })
    }

    /// Height and width of a field that is in the sizes tensor.
    fn size(&self, row: usize, size: usize) -> [usize; 2] {
        let sizes = self.sizes.and_then(|sizes| sizes.row(row)).unwrap_or_default();
        let at = |side: usize| number(sizes.get(size * 8 + side * 4..)) as usize;
        [at(0), at(1)]
    }
}

/// The first u32 of `bytes`, or 0 if they are too few.
fn number(bytes: Option<&[u8]>) -> u32 {
    bytes.and_then(<[u8]>::first_chunk::<4>).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn key(bytes: Option<&[u8]>) -> RecordKey {
    let packed = bytes.and_then(<[u8]>::first_chunk::<8>);
    RecordKey::unpack(packed.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

impl Resumed<'_> {
    fn frame(&mut self, frame: &ChunkFrame) -> Result<(), ExecError> {
        let elements = Elements::new(frame, self.point).ok_or_else(|| {
            self.point.error("the cached split has other fields: it belongs to another pipeline")
        })?;
        let [keys, copies, records, repeats] = elements.origin;
        for row in 0..frame.rows() {
            let record = number(records.row(row));
            self.refuse_before(Some(record))?;
            if self.left_out != Some(record) {
                self.run.copy = number(repeats.row(row));
                let origin = (key(keys.row(row)), number(copies.row(row)));
                self.element(&elements, row, record, origin)?;
            }
            self.run.split.left -= 1;
        }
        Ok(())
    }

    /// Runs one element, and applies the error policy if it is bad.
    fn element(
        &mut self,
        elements: &Elements<'_>,
        row: usize,
        record: u32,
        (key, copy): (RecordKey, u32),
    ) -> Result<(), ExecError> {
        if (self.run.cancelled)() {
            return Err(ExecError::Cancelled);
        }
        self.run.lap = Instant::now();
        let point = self.point;
        let outcome = self.run.begin_frame().and_then(|()| {
            self.run.guarded(|run, at| {
                let bytes = run.load(point, elements, row)?;
                let active_ns = run.lap();
                run.split.metrics[0].add(active_ns, 1, bytes, bytes);
                run.scratch.places.clear();
                let element = ElementContext { key, record: elements.bytes, copy, level: 0 };
                run.steps(point.step + 1, element, at)
            })
        });
        match outcome {
            Ok(()) => Ok(()),
            Err(ElementFault::Cancelled) => Err(ExecError::Cancelled),
            Err(ElementFault::Fatal(error)) => Err(error),
            Err(ElementFault::Record { op, reason }) => {
                self.left_out = Some(record);
                self.run.bad_record(SkippedRecord { key, op: op.to_owned(), reason }, None)
            }
        }
    }

    /// Reports the records that were refused before the cache point, up to `record` or to the end.
    fn refuse_before(&mut self, record: Option<u32>) -> Result<(), ExecError> {
        let is_before = |at: u32| record.is_none_or(|record| at < record);
        while let Some((at, refused)) = self.refused.next_if(|(at, _)| is_before(*at)) {
            if self.left_out != Some(at) {
                self.run.bad_record(refused, None)?;
            }
        }
        let last = std::mem::replace(&mut self.reached, record.unwrap_or(u32::MAX));
        if last <= self.reached {
            Ok(())
        } else {
            Err(self.point.error("the elements of the cached split are not in order"))
        }
    }
}

impl SplitExecution<'_> {
    /// Loads an element's fields into their cells. Final values go to their rows. Returns the
    /// element's bytes.
    fn load(
        &mut self,
        point: &CompiledCachePoint,
        elements: &Elements<'_>,
        row: usize,
    ) -> Result<usize, ElementFault> {
        let ExecutorScratch { cells, writer, .. } = &mut *self.scratch;
        for cell in cells.iter_mut() {
            cell.place = CellStorage::Record(0..0);
        }
        for (field, view) in point.fields.iter().zip(&elements.fields) {
            let cell = &mut cells[field.cell];
            let range = view.row_range(row).unwrap_or_default();
            if let Some(size) = field.size {
                cell.size = elements.size(row, size);
                check_size(field, &range, cell.size)
                    .map_err(|why| ElementFault::Fatal(point.error(why)))?;
            }
            cell.place = match field.row {
                None => CellStorage::Record(range),
                Some(tensor) => {
                    let to = writer.row_mut(tensor, self.split.row)?;
                    let value = elements.bytes.get(range).filter(|value| value.len() == to.len());
                    let value = value
                        .ok_or_else(|| ElementFault::Fatal(point.error("a row is too short")))?;
                    to.copy_from_slice(value);
                    CellStorage::Row
                }
            };
        }
        Ok(point.element_bytes(cells))
    }
}

/// Checks that the length of a value that varies in several dimensions matches its size. Operators
/// on images rely on it.
fn check_size(
    field: &CachePointField,
    range: &Range<usize>,
    size: [usize; 2],
) -> Result<(), String> {
    let schema = &field.schema;
    if schema.is_sequence() {
        return Ok(());
    }
    let known = schema.shape.iter().flatten().map(|dim| *dim as usize);
    let unknown = schema.shape.iter().filter(|dim| dim.is_none()).count();
    let sides: &[usize] = match (unknown, schema.shape.first()) {
        (1, Some(None)) => &size[..1],
        (1, _) => &size[1..],
        _ => &size,
    };
    let value_bytes = schema.dtype.size_bytes().map_or(1, |bytes| bytes as usize);
    let bytes = known.chain(sides.iter().copied()).try_fold(value_bytes, usize::checked_mul);
    if bytes == Some(range.len()) && !range.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "`{}` of what was cached has {} bytes, an image of {} x {} of {schema} has others",
            field.name,
            range.len(),
            size[0],
            size[1]
        ))
    }
}

/// Reads the records refused before the cache point, in the order of the split.
fn refused(chunk: &Chunk, point: &CompiledCachePoint) -> Result<RefusedRecords, ExecError> {
    let Some(last) = chunk.remainder() else { return Ok(Vec::new().into_iter().peekable()) };
    let wrong = || point.error("the cached split's list of skipped records is invalid");
    let frame = chunk.tensors(last).map_err(|error| point.error(error))?;
    let tensors = RefusedRecordTensors::new()?;
    if *frame.schema() != tensors.schema {
        return Err(wrong());
    }
    let view = |tensor: usize| frame.get(&tensors.schema.tensors()[tensor].name).ok_or_else(wrong);
    let (keys, records) = (view(tensors.key)?, view(tensors.record)?);
    let (ops, reasons) = (view(tensors.op)?, view(tensors.reason)?);
    let mut refused = Vec::with_capacity(frame.rows());
    for row in 0..frame.rows() {
        let text = |view: TensorView<'_>| {
            let text = str::from_utf8(view.row(row).unwrap_or_default()).map_err(|_| wrong())?;
            if text.len() > MAX_REASON_BYTES {
                return Err(wrong());
            }
            // People read it as one line.
            Ok(text.replace(char::is_control, " "))
        };
        let record =
            SkippedRecord { key: key(keys.row(row)), op: text(ops)?, reason: text(reasons)? };
        refused.push((number(records.row(row)), record));
    }
    if refused.is_sorted_by(|(one, _), (next, _)| one < next) {
        Ok(refused.into_iter().peekable())
    } else {
        Err(wrong())
    }
}
