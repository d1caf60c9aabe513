//! Captures elements at a cache point while they pass through the steps.
//!
//! The captured data must not depend on later steps. An element that fails after the cache point is
//! still captured, and so are further elements of its record, which then do not continue.

use crate::{
    CompiledPipeline, ExecError,
    cache_point::{CachePointField, CompiledCachePoint, REUSED_EPOCH, RefusedRecordTensors},
    element::ElementContext,
    run::{ElementFault, ExecutorScratch, SplitExecution},
};

use gristmill_chunk::{ChunkFormatError, ChunkFrameKind, ChunkWriter};
use gristmill_kernel::CellStorage;
use gristmill_model::{Epoch, RecordKey, SkippedRecord};
use std::sync::Arc;

/// Size at which a frame ends. A reader can check and use such a frame while it is in the
/// processor's cache. Ragged values are collected outside the object and take at most this much
/// memory. A larger element is a frame of its own.
const FRAME_BYTES: usize = 2 << 20;

/// Elements of one split that are being written to the cache.
pub(crate) struct CacheCapture {
    point: Arc<CompiledCachePoint>,
    /// Number of elements still expected, to plan frames.
    expected: usize,
    /// Position of the current record in the split.
    record: u32,
    frame: OpenFrame,
    /// Error of the current record after the cache point.
    failed: Option<ElementFault>,
    /// Records refused before the cache point, each with its position in the split.
    refused: Vec<(u32, SkippedRecord)>,
    /// Complete parts. `bytes` counts the elements of the current part.
    parts: Vec<Vec<u8>>,
    bytes: usize,
    part_bytes: usize,
}

/// The frame being filled. `planned` is 0 if no frame is open.
#[derive(Clone, Copy, Default)]
struct OpenFrame {
    planned: usize,
    rows: usize,
    bytes: usize,
}

impl CacheCapture {
    /// Captures `records` records of `program` at `point`, in parts of about `part_bytes`.
    pub(crate) fn new(
        program: &CompiledPipeline,
        point: &Arc<CompiledCachePoint>,
        records: u32,
        part_bytes: usize,
    ) -> Self {
        let before = program.steps[..point.step].iter();
        let width = before.fold(1_u32, |n, step| n.saturating_mul(step.action.width()));
        // Lists may have 65,536 items, but few have more than 64.
        let expected = (records as usize).saturating_mul(width.min(64) as usize);
        let (frame, failed, refused) = (OpenFrame::default(), None, Vec::new());
        let (point, parts) = (Arc::clone(point), Vec::new());
        CacheCapture {
            point,
            expected,
            record: 0,
            frame,
            failed,
            refused,
            parts,
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
        let (copy, row) = (self.copy, self.split.row);
        let Some(capture) = &mut self.split.capture else { return Ok(0) };
        let ExecutorScratch { cells, writer, cache, .. } = &mut *self.scratch;
        let point = Arc::clone(&capture.point);
        begin(capture, cache).map_err(|error| capture.fault(error))?;
        let at = capture.frame.rows;
        for field in &point.fields {
            let cell = &cells[field.cell];
            let value = match (&cell.place, field.row) {
                (CellStorage::Row, Some(tensor)) => writer.row_mut(tensor, row)?,
                _ => cell.value(element.record, &[]),
            };
            store_field(field, cache, at, value).map_err(|error| capture.fault(error))?;
            if let (Some(size), Some(sizes)) = (field.size, point.sizes) {
                let row = cache.row_mut(sizes, at).map_err(|error| capture.fault(error))?;
                for (slot, side) in row[size * 8..].as_chunks_mut::<4>().0.iter_mut().zip(cell.size)
                {
                    // Image sides are far below this limit.
                    *slot = u32::try_from(side).unwrap_or(u32::MAX).to_le_bytes();
                }
            }
        }
        let origin = point.origin;
        let numbers =
            [(origin.copy, element.copy), (origin.record, capture.record), (origin.repeat, copy)];
        let mut number = |tensor, bytes: &[u8]| -> Result<(), ChunkFormatError> {
            cache.row_mut(tensor, at)?.copy_from_slice(bytes);
            Ok(())
        };
        number(origin.key, &element.key.packed().to_le_bytes())?;
        for (tensor, value) in numbers {
            number(tensor, &value.to_le_bytes())?;
        }
        let bytes = point.element_bytes(cells);
        capture.frame.rows += 1;
        capture.frame.bytes += bytes;
        capture.bytes += bytes;
        if capture.frame.rows == capture.frame.planned || capture.frame.bytes >= FRAME_BYTES {
            end(capture, cache).map_err(|error| capture.fault(error))?;
        }
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

fn store_field(
    field: &CachePointField,
    cache: &mut ChunkWriter,
    row: usize,
    value: &[u8],
) -> Result<(), ChunkFormatError> {
    if field.ragged {
        return cache.push_ragged(field.tensor, value);
    }
    let to = cache.row_mut(field.tensor, row)?;
    if to.len() != value.len() {
        let (name, is, wanted) = (&field.name, value.len(), to.len());
        let what = format!("`{name}` has {is} bytes, not {wanted}: please report this");
        return Err(ChunkFormatError::invalid(what));
    }
    to.copy_from_slice(value);
    Ok(())
}

fn begin(capture: &mut CacheCapture, cache: &mut ChunkWriter) -> Result<(), ChunkFormatError> {
    if capture.frame.planned == 0 {
        let most = (FRAME_BYTES / capture.point.row_bytes.max(1)).max(1);
        let planned = capture.expected.clamp(1, most);
        cache.begin_frame(&capture.point.schema, planned)?;
        capture.frame = OpenFrame { planned, ..OpenFrame::default() };
    }
    Ok(())
}

fn end(capture: &mut CacheCapture, cache: &mut ChunkWriter) -> Result<(), ChunkFormatError> {
    let OpenFrame { planned, rows, .. } = std::mem::take(&mut capture.frame);
    capture.expected = capture.expected.saturating_sub(rows);
    match planned {
        0 => Ok(()),
        _ => cache.end_frame(ChunkFrameKind::Batch, rows),
    }
}

fn end_object(
    capture: &mut CacheCapture,
    cache: &mut ChunkWriter,
) -> Result<Vec<u8>, ChunkFormatError> {
    end(capture, cache)?;
    if !capture.refused.is_empty() {
        let tensors = RefusedRecordTensors::new()?;
        cache.begin_frame(&tensors.schema, capture.refused.len())?;
        for (row, (record, refused)) in capture.refused.iter().enumerate() {
            let SkippedRecord { key, op, reason } = refused;
            cache.row_mut(tensors.key, row)?.copy_from_slice(&key.packed().to_le_bytes());
            cache.row_mut(tensors.record, row)?.copy_from_slice(&record.to_le_bytes());
            cache.push_ragged(tensors.op, op.as_bytes())?;
            cache.push_ragged(tensors.reason, reason.as_bytes())?;
        }
        cache.end_frame(ChunkFrameKind::Remainder, capture.refused.len())?;
        capture.refused.clear();
    }
    cache.finish()
}
