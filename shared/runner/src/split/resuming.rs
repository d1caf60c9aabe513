//! Resumes a split from its cached output.

use super::{Begun, Extras, FinishedSplit, Task, TimedSplit, micros, run_error};
use crate::{LeaseError, Runner};
use bytes::Bytes;
use gristmill_executor::ResumeInput;
use gristmill_model::SkippedRecord;
use gristmill_model::wire::SkippedRecordLocation;
use gristmill_ports::{ObjectError, ObjectPath, get_long_range};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// Reads a stored part, given its key and size.
pub(super) async fn part(
    runner: &Runner,
    (key, bytes): &(String, u64),
) -> Result<Bytes, ObjectError> {
    let path = ObjectPath::new(&runner.config.bucket, key);
    get_long_range(&*runner.objects, &path, 0..*bytes, None).await
}

impl Task {
    /// Runs the pipeline after `point` over the parts, reading each while the one before runs.
    pub(super) async fn in_parts(
        self,
        runner: Runner,
        point: u32,
        first: Bytes,
        mut rest: VecDeque<(String, u64)>,
        mut extras: Extras,
    ) -> Result<TimedSplit, LeaseError> {
        let (mut object, mut begun, mut took) = (first, None, Duration::ZERO);
        let begun = loop {
            let is_last = rest.is_empty();
            let running = runner.compute.run({
                let (task, clock) = (self.clone(), Arc::clone(&runner.clock));
                move || {
                    let began = clock.monotonic();
                    let after = task.resume(point, object, begun, is_last)?;
                    Ok((after, clock.monotonic().saturating_sub(began)))
                }
            });
            let reading = async {
                let Some(next) = rest.pop_front() else { return Ok(None) };
                let began = runner.clock.monotonic();
                let read = part(&runner, &next).await.map_err(|error| match error {
                    // A part that is shorter than its index says is damaged.
                    ObjectError::NotFound(_) | ObjectError::Rejected(_) => {
                        LeaseError::BadCache(error.to_string())
                    }
                    error => error.into(),
                })?;
                extras.took.0 += read.len() as u64;
                extras.took.1 += micros(runner.clock.monotonic().saturating_sub(began));
                Ok(Some(read))
            };
            let ((after, computed), next) = tokio::try_join!(running, reading)?;
            took += computed;
            match next {
                Some(next) => (object, begun) = (next, Some(after)),
                None => break after,
            }
        };
        let task = self.clone();
        let finishing = move || task.finish_resumed(&extras, point, begun);
        Ok((runner.compute.run(finishing).await?, took))
    }

    /// Runs the pipeline after `point` over one part of a split, after those of `before`.
    pub(super) fn resume(
        &self,
        point: u32,
        object: Bytes,
        before: Option<Begun>,
        is_last: bool,
    ) -> Result<Begun, LeaseError> {
        let spec = &self.context.view.spec;
        let (epoch, seed, on_error) = (self.epoch, spec.seed, spec.settings.on_error);
        let input = ResumeInput { point, object, epoch, seed, on_error };
        let (mut scratch, before) = match before {
            Some(Begun { scratch, unfinished, .. }) => (scratch, Some(unfinished)),
            None => (self.context.take_scratch(), None),
        };
        let (program, cancelled) = (&self.context.program, &*self.cancelled);
        let resumed = program.resume_part(&mut scratch, before, &input, is_last, cancelled);
        let unfinished = resumed.map_err(|error| run_error(error, &|key| key.to_string()))?;
        Ok(Begun { scratch, unfinished, skipped: Vec::new() })
    }

    /// Ends a split after all parts were run.
    pub(super) fn finish_resumed(
        &self,
        extras: &Extras,
        point: u32,
        begun: Begun,
    ) -> Result<FinishedSplit, LeaseError> {
        let Begun { mut scratch, unfinished, .. } = begun;
        let output = self.context.program.end_resumed(&mut scratch, point, unfinished);
        self.context.return_scratch(scratch);
        let output = output.map_err(|error| run_error(error, &|key| key.to_string()))?;
        let located = |record: &SkippedRecord| SkippedRecordLocation {
            source: record.key.to_string(),
            record: record.clone(),
        };
        let skipped = output.skipped.iter().map(located).collect();
        Ok(self.finished(extras, output, skipped))
    }
}
