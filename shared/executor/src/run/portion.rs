//! Runs a split in portions and keeps its state between them, so that only some of its records are
//! in memory.

use super::{Run, Scratch, Terms};
use crate::{
    ExecError, OpMetrics, Program,
    capture::Capture,
    split::{Part, SplitInput, SplitOutput},
};
use bytes::Bytes;
use gristmill_model::{RecordKey, SkippedRecord};
use std::time::Instant;

/// Runs one portion of a split after those of `before`.
pub(crate) fn run_portion(
    program: &Program,
    (scratch, before): (&mut Scratch, Option<Unfinished>),
    input: &SplitInput<'_>,
    more: u32,
    cancelled: &dyn Fn() -> bool,
) -> Result<Unfinished, ExecError> {
    let zipped = input.zipped.iter().flat_map(|zipped| &zipped.parts);
    input.parts.iter().chain(zipped).try_for_each(Part::check)?;
    let left = input.n_records().saturating_sub(input.begin).saturating_add(more);
    let mut run = match before {
        Some(before) => Run::again(program, scratch, before.with_left(left), cancelled)?,
        None => {
            let SplitInput { epoch, seed, on_error, .. } = *input;
            let terms = Terms { epoch, seed, on_error };
            let point = input.put.map(|point| program.point(point)).transpose()?;
            let mut run = Run::new(program, scratch, terms, left, cancelled)?;
            let capture = |point| Capture::new(program, point, left, input.put_bytes);
            run.capture = point.map(capture);
            run.reserve(program.width);
            run
        }
    };
    run.records(input)?;
    Ok(run.suspend())
}

/// Ends a split after its last portion.
pub(crate) fn end(
    program: &Program,
    scratch: &mut Scratch,
    unfinished: Unfinished,
) -> Result<SplitOutput, ExecError> {
    Run::again(program, scratch, unfinished, &|| false)?.finish()
}

/// A split that is partly run. The rows of its open frame are in the scratch.
pub struct Unfinished {
    terms: Terms,
    metrics: Vec<OpMetrics>,
    skipped: Vec<SkippedRecord>,
    quarantined: Vec<(RecordKey, Bytes)>,
    capture: Option<Capture>,
    left: u32,
    ran: u32,
    open: bool,
    row: usize,
    batches: u32,
}

impl std::fmt::Debug for Unfinished {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unfinished { left, row, batches, .. } = self;
        let mut shown = out.debug_struct("Unfinished");
        shown.field("left", left).field("row", row).field("batches", batches);
        shown.finish_non_exhaustive()
    }
}

impl Unfinished {
    /// Records left out so far, in order.
    pub fn skipped(&self) -> &[SkippedRecord] {
        &self.skipped
    }

    /// Returns the complete parts of the capture, in order. Parts that are not taken end up in
    /// [`SplitOutput::cached_before`].
    pub fn take_cached(&mut self) -> Vec<Vec<u8>> {
        self.capture.as_mut().map_or(Vec::new(), Capture::take_parts)
    }

    /// Records of the last input that have been run: all, unless [`SplitInput::in_turns`] is set.
    pub fn ran(&self) -> u32 {
        self.ran
    }

    /// Sets the number of records, or elements of a cache, to come.
    pub(crate) fn with_left(self, left: u32) -> Self {
        Unfinished { left, ..self }
    }
}

impl<'a> Run<'a> {
    /// Continues a split.
    pub(crate) fn again(
        program: &'a Program,
        scratch: &'a mut Scratch,
        unfinished: Unfinished,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, ExecError> {
        if scratch.cells.len() != program.cells {
            return Err(ExecError::Pipeline("the scratch belongs to another program".into()));
        }
        let Unfinished {
            terms,
            metrics,
            skipped,
            quarantined,
            capture,
            left,
            ran,
            open,
            row,
            batches,
        } = unfinished;
        let (copy, lap) = (0, Instant::now());
        Ok(Run {
            program,
            scratch,
            terms,
            cancelled,
            metrics,
            skipped,
            quarantined,
            capture,
            left,
            ran,
            copy,
            open,
            row,
            batches,
            lap,
        })
    }

    pub(crate) fn suspend(self) -> Unfinished {
        let Run { terms, metrics, skipped, quarantined, capture, .. } = self;
        let Run { left, ran, open, row, batches, .. } = self;
        Unfinished { terms, metrics, skipped, quarantined, capture, left, ran, open, row, batches }
    }
}
