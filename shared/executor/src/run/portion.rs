//! Runs a split in portions and keeps its state between them, so that only some of its records are
//! in memory.

use super::{ExecutorScratch, SplitExecution, SplitParameters};
use crate::{
    CompiledPipeline, ExecError, OpMetrics,
    capture::CacheCapture,
    split::{InputRange, SplitInput, SplitOutput},
};
use bytes::Bytes;
use gristmill_model::{RecordKey, SkippedRecord};
use std::time::Instant;

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
    ///
    /// # Errors
    /// As [`run_split`](Self::run_split).
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
                let SplitInput { epoch, seed, on_error, .. } = *input;
                let terms = SplitParameters { epoch, seed, on_error };
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
    /// True while a frame is open; `row` counts its rows. Staged batches do not use it.
    pub(crate) open: bool,
    pub(crate) row: usize,
    pub(crate) batches: u32,
}

impl std::fmt::Debug for UnfinishedSplit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let UnfinishedSplit { left, row, batches, .. } = self;
        let mut shown = out.debug_struct("Unfinished");
        shown.field("left", left).field("row", row).field("batches", batches);
        shown.finish_non_exhaustive()
    }
}

impl UnfinishedSplit {
    /// Records left out so far, in order.
    pub fn skipped(&self) -> &[SkippedRecord] {
        &self.skipped
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
