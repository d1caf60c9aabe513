//! The synthetic trainer: takes batches, normalises pixels, and waits for its step time.

use super::{TrainOptions, progress::Progress, sink::Sink};
use gristmill_chunk::{DType, Frame, Limits};
use gristmill_client::{
    Batch, Failure, Fetcher, Snapshot, StepDelivery, Steps,
    report::{Observable, Observed, Observer},
    waiting::{Link, Waiting, while_saying},
};
use gristmill_model::Epoch;
use gristmill_operators::Normalise;
use gristmill_pipeline::Pipeline;
use std::time::{Duration, Instant};

/// Time between updates of the progress line.
pub(super) const REDRAW: Duration = Duration::from_millis(200);

/// The view of a run for people and reports.
pub struct RunView {
    epochs: Epoch,
    pub(super) progress: Progress,
    pub(super) observer: Observer,
}

impl RunView {
    pub fn new(epochs: Epoch, progress: Progress, observer: Observer) -> Self {
        Self { epochs, progress, observer }
    }

    /// Waits for the next delivery, and shows progress meanwhile.
    pub(super) async fn wait(
        &mut self,
        steps: &mut Steps,
        link: &Link,
    ) -> Result<StepDelivery, Failure> {
        let watcher = steps.fetcher().watcher();
        loop {
            let next = tokio::time::timeout(REDRAW, steps.next()).await;
            let fetcher = steps.fetcher();
            if let Some(snapshot) = self.observer.look(fetcher) {
                self.redraw(fetcher, &snapshot);
            }
            match next {
                Ok(delivery) => {
                    self.progress.came();
                    return Ok(delivery?);
                }
                Err(_) => {
                    self.progress.waiting(fetcher.present_wait(), &link.or(watcher.waiting()));
                }
            }
        }
    }

    /// Closes the job after its last batch.
    pub(super) async fn close(self, fetcher: Fetcher, link: &Link) -> Result<Observed, Failure> {
        fetcher.checkpointed_epochs(self.epochs);
        let view = fetcher.view();
        let watcher = fetcher.watcher();
        let closing = || match link.or(watcher.waiting()) {
            fault if fault.is_fault => Some(fault),
            _ => Some(Waiting::patiently("the service to close the job")),
        };
        let finished = while_saying(fetcher.finish(), closing, |what| self.progress.say(what));
        let last = finished.await?;
        self.progress.end();
        Ok(self.observer.finish(&last, view))
    }

    /// Shows the progress of `run`.
    pub(super) fn redraw(&self, run: &impl Observable, snapshot: &Snapshot) {
        if self.progress.is_waiting() {
            return;
        }
        let Some(view) = run.view() else { return };
        let Some(plan) = view.plan else {
            return self.progress.indexing(snapshot.indexed_files, view.n_files);
        };
        let (batches, seconds) = self.observer.pace();
        let rate = batches as f64 / seconds.max(1e-3);
        let per_split = u64::from(plan.split_records / plan.batch_size.max(1)).max(1);
        let splits = (batches / per_split, plan.n_splits);
        self.progress.training(self.observer.epoch(), splits, rate, snapshot);
    }
}

/// The work of one rank with a batch, as a model's would take time.
#[derive(Clone)]
pub struct StandIn {
    step_time: Duration,
    /// Discards batches.
    drain: bool,
    /// Normalisation of pixels delivered as u8.
    normalise: Option<Normalise>,
    sink: Option<Sink>,
    pixels: Vec<f32>,
}

impl StandIn {
    pub fn new(options: &TrainOptions, pipeline: &Pipeline, sink: Option<Sink>) -> Self {
        Self {
            step_time: options.step_time,
            drain: options.drain,
            normalise: pipeline
                .deliver()
                .normalise
                .as_ref()
                .and_then(|op| op.downcast_ref().cloned()),
            sink,
            pixels: Vec::new(),
        }
    }

    /// Stores the batch, and works on it until the step time after `began`.
    pub(super) async fn step(&mut self, batch: &Batch, began: Instant) -> Result<(), Failure> {
        if let Some(sink) = self.sink.as_ref().filter(|_| !self.drain) {
            sink.write(batch)?;
        }
        self.compute(batch, began).await
    }

    /// Works on a batch until the step time after `began`.
    pub(super) async fn compute(&mut self, batch: &Batch, began: Instant) -> Result<(), Failure> {
        if self.drain {
            return Ok(());
        }
        self.normalise(batch)?;
        if let Some(rest) = self.step_time.checked_sub(began.elapsed()) {
            tokio::time::sleep(rest).await;
        }
        Ok(())
    }

    /// Normalises u8 pixels as a trainer's first step would, (x / 255 - mean) / std, into a buffer
    /// of its own.
    fn normalise(&mut self, batch: &Batch) -> Result<(), Failure> {
        let Some(Normalise { field, mean, std }) = &self.normalise else { return Ok(()) };
        let frame =
            Frame::parse(batch.frame.clone(), &Limits::default()).map_err(Failure::failed)?;
        let tensor = frame.get(field).filter(|t| t.spec().dtype == DType::U8);
        let Some(tensor) = tensor else { return Ok(()) };
        let values = tensor.values();
        self.pixels.resize(values.len(), 0.0);
        // Greyscale has one number for all three channels.
        let scale: [f32; 3] = std::array::from_fn(|c| (1.0 / (255.0 * std[c % std.len()])) as f32);
        let shift: [f32; 3] =
            std::array::from_fn(|c| (-mean[c % mean.len()] / std[c % std.len()]) as f32);
        let (pixels, _) = values.as_chunks::<3>();
        let (normalised, _) = self.pixels.as_chunks_mut::<3>();
        for (pixel, out) in pixels.iter().zip(normalised) {
            for c in 0..3 {
                out[c] = f32::from(pixel[c]) * scale[c] + shift[c];
            }
        }
        std::hint::black_box(&self.pixels);
        Ok(())
    }
}
