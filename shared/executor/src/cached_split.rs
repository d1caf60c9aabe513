//! A split out to a cache point's object and in from it: what is captured while a split runs, and how a split is
//! resumed from it.
//!
//! A cache object is a chunk object. Its batch frames hold the elements that reached the cache point, one per row, as
//! an [`ElementExchange`] stores them. An optional remainder frame lists the records that were refused before it.
//!
//! The captured data must not depend on later steps. An element that fails after the cache point is
//! still captured, and so are further elements of its record, which then do not continue.

use crate::{
    CompiledPipeline, ExecError, OpMetrics, SplitOutput,
    element::ElementContext,
    exchange::{
        ElementExchange, ElementFrames, ElementOrigin, FrameElements, key, number, refused_schema,
    },
    split_execution::{
        ElementFault, ExecutorScratch, SplitExecution, SplitParameters, UnfinishedSplit,
    },
};

use bytes::Bytes;
use gristmill_chunk::{
    Chunk, ChunkFormatError, ChunkFrame, ChunkFrameKind, ChunkLimits, ChunkWriter, TensorView,
};
use gristmill_model::{Epoch, ErrorPolicy, RecordKey, SkippedRecord};
use std::{iter::Peekable, sync::Arc, time::Instant, vec::IntoIter};

/// Epoch with which operators before a cache point draw during a capture, in any epoch.
const REUSED_EPOCH: Epoch = gristmill_pipeline::CachePoint::DRAWN_EPOCH;

/// Elements of one split that are being written to the cache.
pub(crate) struct CacheCapture {
    point: Arc<ElementExchange>,
    /// Position of the current record in the split.
    record: u32,
    frames: ElementFrames,
    /// Error of the current record after the cache point.
    failed: Option<ElementFault>,
    /// Records refused before the cache point, each with its position in the split.
    refused: Vec<(u32, SkippedRecord)>,
    /// Complete parts. `bytes` counts the elements of the current part.
    parts: Vec<Vec<u8>>,
    bytes: usize,
    part_bytes: usize,
}

impl CacheCapture {
    /// Captures `records` records of `program` at `point`, in parts of about `part_bytes`.
    pub(crate) fn new(
        program: &CompiledPipeline,
        point: &Arc<ElementExchange>,
        records: u32,
        part_bytes: usize,
    ) -> Self {
        let before = program.steps[..point.step].iter();
        let width = before.fold(1_u32, |n, step| n.saturating_mul(step.action.width()));
        // Lists may have 65,536 items, but few have more than 64.
        let expected = (records as usize).saturating_mul(width.min(64) as usize);
        CacheCapture {
            point: Arc::clone(point),
            record: 0,
            frames: ElementFrames::new(expected),
            failed: None,
            refused: Vec::new(),
            parts: Vec::new(),
            bytes: 0,
            part_bytes,
        }
    }

    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns the complete parts.
    pub(crate) fn take_parts(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.parts)
    }

    /// Ends a record. `outcome` is its result before the cache point; returns the result of the
    /// whole record.
    pub(crate) fn end_record(
        &mut self,
        key: RecordKey,
        outcome: Result<(), ElementFault>,
    ) -> Result<(), ElementFault> {
        if let Err(ElementFault::Record { op, reason }) = &outcome {
            let record = SkippedRecord { key, op: (*op).to_owned(), reason: reason.clone() };
            self.refused.push((self.record, record));
        }
        self.record += 1;
        // The earlier failure counts, as in a run that captures nothing.
        match (self.failed.take(), outcome) {
            (Some(failed), Ok(()) | Err(ElementFault::Record { .. })) => Err(failed),
            (_, outcome) => outcome,
        }
    }

    fn fault(&self, error: ChunkFormatError) -> ElementFault {
        ElementFault::Fatal(self.point.error(error))
    }
}

impl SplitExecution<'_> {
    /// Whether elements are captured at step `i`.
    pub(crate) fn is_captured(&self, i: usize) -> bool {
        self.split.capture.as_ref().is_some_and(|capture| capture.point.step == i)
    }

    /// The epoch with which step `i` draws.
    pub(crate) fn drawn_epoch(&self, i: usize) -> Epoch {
        match &self.split.capture {
            Some(capture) if i < capture.point.step => REUSED_EPOCH,
            _ => self.split.terms.epoch,
        }
    }

    /// Captures an element at step `i`, then runs the remaining steps.
    pub(crate) fn put(
        &mut self,
        i: usize,
        element: ElementContext<'_>,
    ) -> Result<(), ElementFault> {
        let bytes = self.store(element)?;
        let active_ns = self.lap();
        self.split.metrics[i + 1].add(active_ns, 1, bytes, bytes);
        if self.split.capture.as_ref().is_some_and(|capture| capture.failed.is_some()) {
            return Ok(());
        }
        match self.guarded(|run, at| run.steps(i + 1, element, at)) {
            Err(fault @ ElementFault::Record { .. }) => {
                if let Some(capture) = &mut self.split.capture {
                    capture.failed = Some(fault);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Copies an element into the cache's frame. Returns its bytes.
    fn store(&mut self, element: ElementContext<'_>) -> Result<usize, ElementFault> {
        let Some(capture) = &mut self.split.capture else { return Ok(0) };
        let ElementContext { key, copy, .. } = element;
        let origin = ElementOrigin { key, copy, record: capture.record, repeat: self.copy };
        let CacheCapture { point, frames, .. } = capture;
        let bytes = frames.put(point, self.scratch, self.split.row, element, origin)?;
        capture.bytes += bytes;
        Ok(bytes)
    }

    /// Ends the current part if it is large enough. Called after each record.
    pub(crate) fn end_part(&mut self) -> Result<(), ElementFault> {
        let Some(capture) = &mut self.split.capture else { return Ok(()) };
        if capture.bytes >= capture.part_bytes {
            let part = end_object(capture, &mut self.scratch.cache);
            capture.parts.push(part.map_err(|error| capture.fault(error))?);
            capture.bytes = 0;
        }
        Ok(())
    }

    /// Ends the capture and returns its last part.
    pub(crate) fn end_capture(&mut self, capture: &mut CacheCapture) -> Result<Vec<u8>, ExecError> {
        let object = end_object(capture, &mut self.scratch.cache);
        let object = object.map_err(|error| capture.point.error(error))?;
        let active_ns = self.lap();
        self.split.metrics[capture.point.step + 1].add(active_ns, 0, 0, 0);
        Ok(object)
    }
}

fn end_object(
    capture: &mut CacheCapture,
    cache: &mut ChunkWriter,
) -> Result<Vec<u8>, ChunkFormatError> {
    capture.frames.end(cache)?;
    if !capture.refused.is_empty() {
        cache.begin_frame(&refused_schema()?, capture.refused.len())?;
        for (row, (record, refused)) in capture.refused.iter().enumerate() {
            let SkippedRecord { key, op, reason } = refused;
            cache.row_mut(0, row)?.copy_from_slice(&key.packed().to_le_bytes());
            cache.row_mut(1, row)?.copy_from_slice(&record.to_le_bytes());
            cache.push_ragged(2, op.as_bytes())?;
            cache.push_ragged(3, reason.as_bytes())?;
        }
        cache.end_frame(ChunkFrameKind::Remainder, capture.refused.len())?;
        capture.refused.clear();
    }
    cache.finish()
}

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
    /// As [`SplitInput::ends_at_bad`](crate::SplitInput::ends_at_bad).
    pub ends_at_bad: bool,
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
        self.end_split(scratch, all)
    }

    /// Like [`resume_split`](Self::resume_split) for a split that was captured in parts: runs the
    /// part in `input` after those of `before`. [`end_split`](Self::end_split) returns the result of
    /// all parts.
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
                let ResumeInput { epoch, seed, on_error, ends_at_bad, .. } = *input;
                let terms = SplitParameters { epoch, seed, on_error, ends_at_bad };
                let mut run = SplitExecution::new(self, scratch, terms, left, cancelled)?;
                run.split.metrics[0] = OpMetrics::new(CACHE, None);
                run.split.resumed = Some(point.step);
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
}

/// A split that is being resumed.
struct Resumed<'a> {
    run: SplitExecution<'a>,
    point: &'a ElementExchange,
    refused: RefusedRecords,
    /// Position in the split of the current record.
    reached: u32,
    /// The record whose remaining elements are skipped, because one of them failed.
    left_out: Option<u32>,
}

impl Resumed<'_> {
    fn frame(&mut self, frame: &ChunkFrame) -> Result<(), ExecError> {
        let elements = FrameElements::new(frame, self.point).ok_or_else(|| {
            self.point.error("the cached split has other fields: it belongs to another pipeline")
        })?;
        for row in 0..frame.rows() {
            let origin = elements.origin(row);
            self.refuse_before(Some(origin.record))?;
            if self.left_out != Some(origin.record) && !self.run.split.has_ended() {
                self.element(&elements, row, origin)?;
            }
            self.run.split.left -= 1;
        }
        Ok(())
    }

    /// Runs one element, and applies the error policy if it is bad.
    fn element(
        &mut self,
        elements: &FrameElements<'_>,
        row: usize,
        origin: ElementOrigin,
    ) -> Result<(), ExecError> {
        let ElementOrigin { key, copy, record, repeat } = origin;
        self.run.copy = repeat;
        if (self.run.cancelled)() {
            return Err(ExecError::Cancelled);
        }
        self.run.lap = Instant::now();
        let point = self.point;
        let outcome = self.run.begin_frame().and_then(|()| {
            self.run.guarded(|run, at| {
                let bytes = elements.load(point, run.scratch, run.split.row, row)?;
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

/// Reads the records refused before the cache point, in the order of the split.
fn refused(chunk: &Chunk, point: &ElementExchange) -> Result<RefusedRecords, ExecError> {
    let Some(last) = chunk.remainder() else { return Ok(Vec::new().into_iter().peekable()) };
    let wrong = || point.error("the cached split's list of skipped records is invalid");
    let frame = chunk.tensors(last).map_err(|error| point.error(error))?;
    let schema = refused_schema()?;
    if *frame.schema() != schema {
        return Err(wrong());
    }
    let view = |tensor: usize| frame.get(&schema.tensors()[tensor].name).ok_or_else(wrong);
    let (keys, records, ops, reasons) = (view(0)?, view(1)?, view(2)?, view(3)?);
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
