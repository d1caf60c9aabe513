//! The synthetic trainer: takes batches, normalises pixels, takes its step time, and counts.

use super::{
    measure::Usage,
    progress::Progress,
    recount::Recount,
    report::EpochReport,
    sink::Sink,
    timeline::{Recorded, Recorder},
};
use crate::{args::TrainArgs, attach::Stack, failure::Failure};
use gristmill_chunk::{DType, Frame, Limits};
use gristmill_client::{
    Batch, Delivery, EpochTotals, Fetcher,
    waiting::{Link, Waiting, while_saying},
};
use gristmill_model::wire::ScaleDecision;
use gristmill_pipeline::{COPY_FIELD, KEY_FIELD, Pipeline, ops::Normalise};
use std::time::{Duration, Instant};

/// How often the progress line is brought up to date.
const REDRAW: Duration = Duration::from_millis(200);

/// What training came to.
#[derive(Debug, Default)]
pub struct Trained {
    pub epochs: Vec<EpochReport>,
    pub elements_expected: u64,
    /// Records of last batches that were left out because the pipeline says so.
    pub dropped: u64,
    pub scaling: Vec<ScaleDecision>,
    pub recorded: Recorded,
    /// BLAKE3 over all batches in order, as the sink's files hold them.
    pub batches_blake3: String,
    /// Why there was not one batch, if there was none.
    pub empty: Option<String>,
}

/// A trainer and what it has seen.
pub struct Trainer {
    step_time: Duration,
    /// Count rows and nothing else.
    drain: bool,
    epochs: u32,
    /// Every record becomes one element.
    one_to_one: bool,
    /// For pixels delivered as u8.
    normalise: Option<Normalise>,
    sink: Option<Sink>,
    progress: Progress,
    hasher: blake3::Hasher,
    pixels: Vec<f32>,
    /// When the run, or the epoch, began.
    epoch_began: Instant,
    /// When the last batch was asked for, or the run began.
    asked: Instant,
    epoch: EpochReport,
    recount: Recount,
    scaling: Vec<ScaleDecision>,
    recorder: Recorder,
    /// Batches taken, and seconds waited for them, over all epochs.
    taken: u64,
    waited_s: f64,
    /// Why the latest epoch had no batch, if it had none.
    empty: Option<String>,
    redrawn: Instant,
}

impl Trainer {
    pub fn new(
        args: &TrainArgs,
        pipeline: &Pipeline,
        sink: Option<Sink>,
        progress: Progress,
        began: Instant,
    ) -> Self {
        Self {
            step_time: args.step_time,
            drain: args.drain,
            epochs: args.epochs,
            one_to_one: pipeline.is_one_to_one(),
            normalise: pipeline.deliver().normalise.clone(),
            sink,
            progress,
            hasher: blake3::Hasher::new(),
            pixels: Vec::new(),
            epoch_began: began,
            asked: began,
            epoch: EpochReport::default(),
            recount: Recount::default(),
            scaling: Vec::new(),
            recorder: Recorder::new(began),
            taken: 0,
            waited_s: 0.0,
            empty: None,
            redrawn: began,
        }
    }

    /// Trains to the end of the job.
    pub async fn train(mut self, mut fetcher: Fetcher, stack: &Stack) -> Result<Trained, Failure> {
        let mut used = Usage::now(stack).await;
        let mut epochs = Vec::new();
        loop {
            let delivery = self.wait(&mut fetcher, &stack.link).await?;
            match delivery {
                Delivery::Batch(batch) => {
                    self.step(&batch).await?;
                    fetcher.checkpointed(batch.epoch, batch.g);
                }
                Delivery::EpochEnd(totals) => {
                    let mut epoch = self.end_epoch(&totals, &fetcher);
                    let now = Usage::now(stack).await;
                    epoch.worker_cpu_ms = now.since(&used).worker_cpu_ms;
                    used = now;
                    epochs.push(epoch);
                }
                Delivery::End => break,
            }
        }
        fetcher.checkpointed_epochs(self.epochs);
        let view = fetcher.view();
        let watcher = fetcher.watcher();
        let closing = || match stack.link.or(watcher.waiting()) {
            fault if fault.is_fault => Some(fault),
            _ => Some(Waiting::patiently("the service to close the job")),
        };
        let finished = while_saying(fetcher.finish(), closing, |what| self.progress.say(what));
        let snapshot = finished.await.map_err(Failure::failed)?;
        self.note_scaling(&snapshot.scale.log);
        // A short epoch may end before a report has seen its workers.
        let most = self.scaling.iter().map(|decision| decision.workers).max().unwrap_or(0);
        for epoch in epochs.iter_mut().filter(|epoch: &&mut EpochReport| epoch.workers_max == 0) {
            epoch.workers_max = most;
        }
        self.progress.end();
        let plan = view.and_then(|view| view.plan);
        let sum = |of: fn(&EpochReport) -> u64| epochs.iter().map(of).sum::<u64>();
        // Where elements are as many as records, the plan says how many there are; else those do who
        // made them.
        let elements_expected = match self.one_to_one {
            true => plan.map_or(0, |plan| plan.records) * u64::from(self.epochs),
            false => sum(|epoch| epoch.rows + epoch.skipped),
        };
        let dropped = plan.filter(|plan| plan.drop_last).map_or(0, |plan| {
            epochs.iter().map(|epoch| epoch.rows % u64::from(plan.batch_size)).sum()
        });
        Ok(Trained {
            epochs,
            elements_expected,
            dropped,
            scaling: self.scaling,
            recorded: self.recorder.finish(),
            batches_blake3: self.hasher.finalize().to_string(),
            empty: self.empty.filter(|_| self.taken == 0),
        })
    }

    /// Waits for the next delivery, showing where things stand meanwhile.
    async fn wait(&mut self, fetcher: &mut Fetcher, link: &Link) -> Result<Delivery, Failure> {
        self.asked = Instant::now();
        let watcher = fetcher.watcher();
        loop {
            let redraw = tokio::time::timeout(REDRAW, fetcher.next()).await;
            self.redraw(fetcher);
            if redraw.is_err() {
                self.progress.waiting(self.asked.elapsed(), &link.or(watcher.waiting()));
            }
            if let Ok(delivery) = redraw {
                self.progress.came();
                let waited_s = self.asked.elapsed().as_secs_f64();
                self.epoch.waited_seconds += waited_s;
                self.waited_s += waited_s;
                return delivery.map_err(Failure::failed);
            }
        }
    }

    async fn step(&mut self, batch: &Batch) -> Result<(), Failure> {
        let began = Instant::now();
        if self.epoch.batches == 0 {
            self.epoch.time_to_first_batch_ms = self.epoch_began.elapsed().as_secs_f64() * 1e3;
        }
        self.epoch.batches += 1;
        self.taken += 1;
        if self.drain {
            self.recount.elements += u64::from(batch.rows);
            return Ok(());
        }
        self.hasher.update(&batch.frame);
        let frame =
            Frame::parse(batch.frame.clone(), &Limits::default()).map_err(Failure::failed)?;
        let keys = (frame.get(KEY_FIELD), frame.get(COPY_FIELD));
        match keys {
            (Some(keys), Some(copies)) => self.recount.add(keys.values(), copies.values()),
            _ => return Err(Failure::failed("a batch has no record keys")),
        }
        if let Some(sink) = &self.sink {
            sink.write(batch)?;
        }
        self.normalise(&frame);
        if let Some(rest) = self.step_time.checked_sub(began.elapsed()) {
            tokio::time::sleep(rest).await;
        }
        Ok(())
    }

    /// What a trainer does first with u8 pixels: (x / 255 - mean) / std, into memory of its own.
    fn normalise(&mut self, frame: &Frame) {
        let Some(Normalise { field, mean, std }) = &self.normalise else { return };
        let Some(tensor) = frame.get(field).filter(|t| t.spec().dtype == DType::U8) else { return };
        let values = tensor.values();
        self.pixels.resize(values.len(), 0.0);
        // One number of grey serves all three.
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
    }

    fn end_epoch(&mut self, totals: &EpochTotals, fetcher: &Fetcher) -> EpochReport {
        let mut epoch = std::mem::take(&mut self.epoch);
        let recount = std::mem::take(&mut self.recount);
        epoch.epoch = totals.epoch;
        epoch.elements = recount.elements;
        epoch.duplicates = recount.duplicates;
        epoch.distinct = recount.distinct();
        epoch.skipped = totals.skipped;
        let plan = fetcher.view().and_then(|view| view.plan);
        self.empty = plan.and_then(|plan| totals.why_empty(&plan));
        epoch.rows = totals.rows;
        epoch.splits = totals.splits;
        let [source, compute, put] = [totals.source_ms, totals.compute_ms, totals.put_ms];
        epoch.waits = totals.waits;
        epoch.stored_bytes = totals.stored_bytes;
        epoch.worker_seconds = [source, compute, put].map(|ms| ms as f64 / 1e3);
        let caching = fetcher.view().and_then(|view| view.caching);
        if let Some(mode) = caching.as_ref().and_then(|caching| caching.of(totals.epoch)) {
            epoch.mode = mode.mode;
            epoch.reason = Some(mode.reason.clone());
        }
        epoch.seconds = self.epoch_began.elapsed().as_secs_f64();
        self.epoch_began = Instant::now();
        epoch
    }

    fn redraw(&mut self, fetcher: &Fetcher) {
        let snapshot = fetcher.snapshot();
        let started = snapshot.scale.outstanding.len();
        let workers = snapshot.active_workers.max(started);
        self.epoch.workers_max = self.epoch.workers_max.max(workers);
        if self.redrawn.elapsed() < REDRAW {
            return;
        }
        self.redrawn = Instant::now();
        let waited_s = self.waited_s + self.asked.elapsed().as_secs_f64();
        self.recorder.look(&snapshot, self.taken, waited_s);
        self.note_scaling(&snapshot.scale.log);
        if self.progress.is_waiting() {
            return;
        }
        let Some(view) = fetcher.view() else { return };
        let Some(plan) = view.plan else {
            return self.progress.indexing(snapshot.indexed_files, view.n_files);
        };
        let seconds = self.epoch_began.elapsed().as_secs_f64().max(1e-3);
        let rate = self.epoch.batches as f64 / seconds;
        let per_split = u64::from(plan.split_records / plan.batch_size.max(1)).max(1);
        let splits = (self.epoch.batches / per_split, plan.n_splits);
        let epoch = fetcher.last_batch().map_or(0, |(epoch, _)| epoch);
        self.progress.training(epoch, splits, rate, &snapshot);
    }

    /// The item keeps only the latest decisions; the report has them all, as far as they were seen.
    fn note_scaling(&mut self, log: &[ScaleDecision]) {
        let known = self.scaling.last().and_then(|last| log.iter().rposition(|d| d == last));
        let news = &log[known.map_or(0, |at| at + 1)..];
        self.recorder.decided(news);
        self.scaling.extend_from_slice(news);
    }
}
