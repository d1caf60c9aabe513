//! Counts and times the deliveries to a trainer during a run.

mod counts;

use crate::{
    DeliveredBatch, EpochTotals, FetchError, Fetcher, JobStatistics, StepDelivery, distinct_batches,
};
use counts::VisitCounter;
pub use counts::{EpochCounts, EpochReport, RankCounts, RankSteps, SteadyPart};
use futures::future::BoxFuture;
use gristmill_chunk::{ChunkFrame, ChunkLimits};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::{EpochPlan, JobStatus, JobView, MetricsOrigin, ScaleDecision};
use gristmill_model::{Epoch, ErrorPolicy};
use gristmill_pipeline::{COPY_FIELD, KEY_FIELD, Pipeline};
use gristmill_report::{TimelineDecision, TimelineSample};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Interval between samples of a run.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After so much of an epoch its start is over.
const SETTLES: Duration = Duration::from_secs(1);

/// All deliveries to a trainer in a run.
#[derive(Debug)]
pub struct RunObservations {
    pub pipeline: Pipeline,
    pub epochs: Vec<EpochReport>,
    /// The first batch delivered.
    pub began: Cursor,
    /// Elements of the whole job; none if the run did not begin with the job, or they depend on totals that are
    /// not known.
    pub elements_expected: Option<u64>,
    /// Records of incomplete last batches, dropped as the pipeline requests, and of batches left out.
    pub dropped: u64,
    /// Last batches of epochs, too few for a step of all ranks.
    pub left_out_batches: u64,
    /// Batches delivered again, after a trainer went back.
    pub repeated_batches: u64,
    /// Splits that were computed again because their objects were missing or damaged.
    pub recomputed_splits: u32,
    pub scaling: Vec<ScaleDecision>,
    /// Whether the scaling rested on what earlier jobs measured.
    pub metrics: MetricsOrigin,
    pub recorded: RunRecording,
    /// BLAKE3 over the frames of all batches in order, those left out included.
    pub batches_blake3: String,
    /// Why there was no batch at all, if so.
    pub empty: Option<String>,
}

/// Reads the CPU time, in milliseconds, that worker processes have used so far; 0 where nothing counts it.
pub type WorkerCpuMeter = Box<dyn Fn() -> BoxFuture<'static, u64> + Send + Sync>;

/// Watches the deliveries of one run.
pub struct RunObserver {
    worker_cpu: WorkerCpuMeter,
    pipeline: Pipeline,
    /// Whether other fetchers deliver the rest of the job: what is missing here is not lost.
    pub is_part: bool,
    /// Whether to read batches, for record keys and a hash; otherwise only rows are counted, so that the fetcher alone
    /// is measured.
    pub reads_content: bool,
    hasher: blake3::Hasher,
    began: Option<Cursor>,
    /// The first batch not delivered yet; earlier ones are repeats.
    next: Cursor,
    repeated_batches: u64,
    epoch_began: Instant,
    epoch: EpochReport,
    /// When the epoch's first second had passed, at a batch; and the elements until then.
    settled: Option<(Instant, u64)>,
    /// Elements of the epoch so far.
    rows: u64,
    recount: VisitCounter,
    epochs: Vec<EpochReport>,
    scaling: Vec<ScaleDecision>,
    recorder: RunRecorder,
    /// Batches taken over all epochs.
    taken: u64,
    /// Batches that no rank got, and their rows.
    left_out: (u64, u64),
    /// Whether the totals of some epoch are not known.
    lacks_totals: bool,
    /// Whether the rows of batches that no rank got are not known.
    lacks_rows: bool,
    /// The trainer's waits up to the last delivery.
    waited: Duration,
    /// Why the latest epoch had no batch, if it had none.
    empty: Option<String>,
    looked: Instant,
    /// CPU time of worker processes when the epoch began, in milliseconds.
    worker_cpu_ms: u64,
}

impl RunObserver {
    /// Observes `run`, which began at `began`.
    pub async fn new(worker_cpu: WorkerCpuMeter, run: &impl ObservableRun, began: Instant) -> Self {
        Self {
            worker_cpu_ms: worker_cpu().await,
            worker_cpu,
            pipeline: run.pipeline().clone(),
            is_part: false,
            reads_content: true,
            hasher: blake3::Hasher::new(),
            began: None,
            next: Cursor::default(),
            repeated_batches: 0,
            epoch_began: began,
            epoch: EpochReport::default(),
            settled: None,
            rows: 0,
            recount: VisitCounter::default(),
            epochs: Vec::new(),
            scaling: Vec::new(),
            recorder: RunRecorder::new(began),
            taken: 0,
            left_out: (0, 0),
            lacks_totals: false,
            lacks_rows: false,
            waited: Duration::ZERO,
            empty: None,
            looked: began,
        }
    }

    /// Batches of the current epoch so far, and seconds since it began.
    pub fn pace(&self) -> (u64, f64) {
        (self.epoch.batches, self.epoch_began.elapsed().as_secs_f64())
    }

    /// The epoch of the last batch.
    pub fn epoch(&self) -> Epoch {
        self.next.epoch
    }

    /// Records a delivery of `run`.
    pub async fn delivered(
        &mut self,
        delivery: &StepDelivery,
        run: &impl ObservableRun,
    ) -> Result<(), FetchError> {
        let waited = run.waited();
        let before = std::mem::replace(&mut self.waited, waited);
        self.epoch.waited_seconds += waited.saturating_sub(before).as_secs_f64();
        self.look(run);
        match delivery {
            StepDelivery::Step { batches, .. } => {
                for batch in distinct_batches(batches) {
                    self.count(batch)?;
                }
            }
            StepDelivery::EpochEnd { totals, left_out, left_batches } => {
                left_batches.iter().for_each(|batch| self.leave_out(batch));
                if let Some(mut epoch) = self.end_epoch(totals, run) {
                    epoch.known.left_out = *left_out;
                    let now_ms = (self.worker_cpu)().await;
                    epoch.worker_cpu_ms = now_ms.saturating_sub(self.worker_cpu_ms);
                    self.worker_cpu_ms = now_ms;
                    self.epochs.push(epoch);
                }
            }
            StepDelivery::End => {}
        }
        Ok(())
    }

    /// The training goes on with `run`.
    pub fn resumes(&mut self, run: &impl ObservableRun) {
        self.waited = run.waited();
    }

    /// Records a last batch of an epoch that no rank gets.
    fn leave_out(&mut self, batch: &DeliveredBatch) {
        let (batches, rows) = self.left_out;
        self.left_out = (batches + 1, rows + u64::from(batch.rows));
        self.next = batch.cursor().next();
        if self.reads_content {
            self.hasher.update(&batch.frame);
        }
    }

    /// Corrects epochs that ended before their totals were known. `plan` is the job's.
    pub fn amend(&mut self, known: &BTreeMap<Epoch, EpochCounts>, plan: Option<EpochPlan>) {
        for epoch in &mut self.epochs {
            let Some(counts) = known.get(&epoch.known.totals.epoch) else {
                self.lacks_totals = true;
                continue;
            };
            epoch.known = *counts;
            let EpochCounts { totals, left_out } = counts;
            // Batches of several sizes do not tell how many rows were in those that are missing.
            self.lacks_rows |= *left_out > 0 && self.pipeline.batching().has_sizes();
            let size = plan.map_or(0, |plan| u64::from(plan.batch_size));
            let taken = totals.batches.saturating_sub(*left_out) * size;
            let left_rows = totals.rows.min(totals.batches * size).saturating_sub(taken);
            let (batches, rows) = self.left_out;
            self.left_out = (batches + left_out, rows + left_rows);
        }
    }

    fn count(&mut self, batch: &DeliveredBatch) -> Result<(), FetchError> {
        let at = batch.cursor();
        self.began.get_or_insert(at);
        if at < self.next {
            self.repeated_batches += 1;
            return Ok(());
        }
        self.next = at.next();
        if self.epoch.batches == 0 {
            self.epoch.time_to_first_batch_ms = self.epoch_began.elapsed().as_secs_f64() * 1e3;
        }
        self.epoch.batches += 1;
        self.taken += 1;
        self.rows += u64::from(batch.rows);
        if self.settled.is_none() && self.epoch_began.elapsed() >= SETTLES {
            self.settled = Some((Instant::now(), self.rows));
        }
        if !self.reads_content {
            self.recount.elements += u64::from(batch.rows);
            return Ok(());
        }
        self.hasher.update(&batch.frame);
        let frame = ChunkFrame::parse(batch.frame.clone(), &ChunkLimits::default())
            .map_err(|error| FetchError::BadObject(error.to_string()))?;
        match (frame.get(KEY_FIELD), frame.get(COPY_FIELD)) {
            (Some(keys), Some(copies)) => self.recount.add(keys.values(), copies.values()),
            _ => return Err(FetchError::BadObject("a batch has no record keys".to_owned())),
        }
        Ok(())
    }

    /// The report of an ended epoch; none if it had already ended and its trainer went back.
    fn end_epoch(&mut self, totals: &EpochTotals, run: &impl ObservableRun) -> Option<EpochReport> {
        if self.epochs.iter().any(|known| known.known.totals.epoch == totals.epoch) {
            return None;
        }
        let mut epoch = std::mem::take(&mut self.epoch);
        let recount = std::mem::take(&mut self.recount);
        epoch.elements = recount.elements;
        epoch.duplicates = recount.duplicates;
        epoch.distinct = recount.distinct();
        epoch.known.totals = *totals;
        let view = run.view();
        let plan = view.as_ref().and_then(|view| view.plan);
        self.empty = plan.and_then(|plan| totals.why_empty(&plan));
        let caching = view.and_then(|view| view.caching);
        epoch.caching = caching.as_ref().and_then(|caching| caching.mode_at(totals.epoch)).cloned();
        epoch.seconds = self.epoch_began.elapsed().as_secs_f64();
        let rows = std::mem::take(&mut self.rows);
        epoch.steady = self.settled.take().and_then(|(since, before)| {
            let seconds = since.elapsed().as_secs_f64();
            (rows > before).then_some(SteadyPart { elements: rows - before, seconds })
        });
        self.epoch_began = Instant::now();
        Some(epoch)
    }

    /// Samples the run, unless the last sample is recent; returns the sample, if any.
    pub fn look(&mut self, run: &impl ObservableRun) -> Option<JobStatistics> {
        let snapshot = run.statistics();
        let started = snapshot.scale.outstanding.len();
        let workers = snapshot.active_workers.max(started);
        self.epoch.workers_max = self.epoch.workers_max.max(workers);
        if self.looked.elapsed() < LOOK_EVERY {
            return None;
        }
        self.looked = Instant::now();
        self.recorder.look(&snapshot, self.taken, run.waited().as_secs_f64());
        self.note_scaling(&snapshot.scale.log);
        Some(snapshot)
    }

    /// Records new decisions; the job's item keeps only the latest.
    fn note_scaling(&mut self, log: &[ScaleDecision]) {
        let known = self.scaling.last().and_then(|last| log.iter().rposition(|d| d == last));
        let news = &log[known.map_or(0, |at| at + 1)..];
        self.recorder.decided(news);
        self.scaling.extend_from_slice(news);
    }

    /// Everything observed, once the job has ended. `last` is the last snapshot, `job` the job as it knew it.
    pub fn finish(mut self, last: &JobStatistics, job: Option<JobView>) -> RunObservations {
        self.note_scaling(&last.scale.log);
        // A short epoch may end before any report includes its workers.
        let most = self.scaling.iter().map(|decision| decision.workers).max().unwrap_or(0);
        let mut epochs = self.epochs;
        for epoch in epochs.iter_mut().filter(|epoch: &&mut EpochReport| epoch.workers_max == 0) {
            epoch.workers_max = most;
        }
        let plan = job.as_ref().and_then(|job| job.plan);
        let n_epochs = job.as_ref().map_or(0, |job| job.spec.epochs);
        let may_skip = job.is_some_and(|job| job.spec.settings.on_error != ErrorPolicy::Fail);
        let is_known = !self.lacks_totals || self.pipeline.is_one_to_one() && !may_skip;
        // A run that finds all its epochs delivered reads none.
        let is_from_start =
            !epochs.is_empty() && self.began.unwrap_or_default() == Cursor::default();
        let began = self.began.unwrap_or_default();
        let totals = || epochs.iter().map(|epoch| &epoch.known.totals);
        // If every record becomes one element, the plan gives their number; otherwise the workers do.
        let elements_expected = if self.pipeline.is_one_to_one() {
            plan.map_or(0, |plan| plan.records) * u64::from(n_epochs)
        } else {
            totals().map(|totals| totals.rows + totals.skipped).sum()
        };
        let dropped: u64 = plan.filter(|plan| plan.drop_last).map_or(0, |plan| {
            let size = u64::from(plan.batch_size);
            let has_sizes = self.pipeline.batching().has_sizes();
            totals().map(|all| if has_sizes { all.remainder_rows } else { all.rows } % size).sum()
        });
        let (left_out_batches, left_out_rows) = self.left_out;
        RunObservations {
            pipeline: self.pipeline,
            epochs,
            began,
            elements_expected: (is_from_start && is_known && !self.is_part && !self.lacks_rows)
                .then_some(elements_expected),
            dropped: dropped + left_out_rows,
            left_out_batches,
            repeated_batches: self.repeated_batches,
            recomputed_splits: last.healed,
            scaling: self.scaling,
            metrics: last.scale.metrics,
            recorded: self.recorder.recorded,
            batches_blake3: self.hasher.finalize().to_string(),
            empty: self.empty.filter(|_| self.taken == 0),
        }
    }
}

/// A run that can be observed: over the fetcher of this process, or over fetchers that are processes of
/// their own.
pub trait ObservableRun: Sync {
    /// The pipeline of the job.
    fn pipeline(&self) -> &Pipeline;

    /// The job's numbers, as last known.
    fn statistics(&self) -> JobStatistics;

    /// The job, as last known.
    fn view(&self) -> Option<JobView>;

    /// How long the trainer has waited for deliveries so far.
    fn waited(&self) -> Duration;
}

impl ObservableRun for Fetcher {
    fn pipeline(&self) -> &Pipeline {
        Fetcher::pipeline(self)
    }

    fn statistics(&self) -> JobStatistics {
        Fetcher::statistics(self)
    }

    fn view(&self) -> Option<JobView> {
        Fetcher::view(self)
    }

    fn waited(&self) -> Duration {
        Fetcher::waited(self)
    }
}

/// A job as the service reports it, and the waits of a trainer whose fetchers are other processes.
pub struct PolledJob {
    pipeline: Pipeline,
    view: JobView,
    snapshot: JobStatistics,
    /// Waits that are over, and the start of the present one.
    waited: Duration,
    waits_since: Option<Instant>,
}

impl PolledJob {
    /// A job of which no status has been read yet.
    pub fn new(pipeline: Pipeline, view: JobView) -> Self {
        let (snapshot, waited) = (JobStatistics::default(), Duration::ZERO);
        Self { pipeline, view, snapshot, waited, waits_since: None }
    }

    /// Takes the latest status.
    pub fn update(&mut self, status: JobStatus) {
        let JobStatus { job, active_workers, indexed_files, scale, .. } = status;
        self.view = job;
        self.snapshot.workers_max = self.snapshot.workers_max.max(active_workers);
        self.snapshot.active_workers = active_workers;
        self.snapshot.indexed_files = indexed_files;
        self.snapshot.scale = scale;
    }

    /// The trainer waits from now on, unless it does already.
    pub fn begin_wait(&mut self) {
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// The trainer has what it waited for.
    pub fn end_wait(&mut self) {
        self.waited += self.present_wait();
        self.waits_since = None;
    }

    /// How long the trainer has been waiting.
    pub fn present_wait(&self) -> Duration {
        self.waits_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl ObservableRun for PolledJob {
    fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    fn statistics(&self) -> JobStatistics {
        self.snapshot.clone()
    }

    fn view(&self) -> Option<JobView> {
        Some(self.view.clone())
    }

    fn waited(&self) -> Duration {
        self.waited + self.present_wait()
    }
}

/// Interval between samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// Samples and decisions of a run.
#[derive(Debug, Clone, Default)]
pub struct RunRecording {
    pub samples: Vec<TimelineSample>,
    pub decisions: Vec<TimelineDecision>,
}

/// Records samples at intervals.
pub struct RunRecorder {
    started: Instant,
    sampled: Option<Instant>,
    /// Batches and seconds of waiting at the last sample.
    last: (u64, f64),
    pub recorded: RunRecording,
}

impl RunRecorder {
    /// A recording of a run that began at `started`.
    pub fn new(started: Instant) -> Self {
        Self { started, sampled: None, last: (0, 0.0), recorded: RunRecording::default() }
    }

    /// Samples the run; `batches` were taken so far, and `waited_s` seconds spent waiting for them.
    pub fn look(&mut self, snapshot: &JobStatistics, batches: u64, waited_s: f64) {
        let since = self.sampled.map(|sampled| sampled.elapsed());
        if since.is_some_and(|since| since < SAMPLE_EVERY) {
            return;
        }
        self.sampled = Some(Instant::now());
        let (batches_before, waited_before_s) =
            std::mem::replace(&mut self.last, (batches, waited_s));
        let taken = batches.saturating_sub(batches_before) as f64;
        let JobStatistics { metrics, scale, active_workers, .. } = snapshot;
        // Without a batch there is no mean.
        let batch_time_s = since.filter(|_| taken > 0.0).map(|since| since.as_secs_f64() / taken);
        let stall_s = batch_time_s.map(|all_s| ((waited_s - waited_before_s) / taken).min(all_s));
        self.recorded.samples.push(TimelineSample {
            t_s: self.started.elapsed().as_secs_f64(),
            batches,
            batch_time_s,
            stall_s,
            step_s: batch_time_s.zip(stall_s).map(|(all_s, stall_s)| all_s - stall_s),
            workers: Some(f64::from(*active_workers)),
            target: (scale.target > 0).then_some(scale.target),
            outstanding: Some(scale.outstanding.len()),
            queue_batches: Some(f64::from(metrics.queue_batches)),
        });
    }

    /// Records new decisions.
    pub fn decided(&mut self, decisions: &[ScaleDecision]) {
        let t_s = self.started.elapsed().as_secs_f64();
        self.recorded.decisions.extend(decisions.iter().map(|decision| TimelineDecision {
            t_s,
            batch: decision.batch,
            workers: decision.workers,
            reason: decision.reason.clone(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::Fingerprint;
    use gristmill_model::wire::{JobSpec, JobState, ScaleState};

    const PIPELINE: &str =
        "source: { jsonl: x, features: { t: { dtype: i64 } } }\nops: [batch: { size: 8 }]";

    fn view(state: JobState) -> JobView {
        JobView {
            job: "j".parse().unwrap(),
            registered_ms: 1,
            spec: JobSpec::new("{}".to_owned()),
            dataset_version: Fingerprint([1; 32]),
            n_files: 1,
            state,
            plan: None,
            caching: None,
            changes: Vec::new(),
            resumed: 0,
        }
    }

    fn status(active_workers: u32, target: u32) -> JobStatus {
        JobStatus {
            job: view(JobState::Done),
            active_workers,
            indexed_files: 3,
            scale: ScaleState { target, ..ScaleState::default() },
            ..crate::samples::status()
        }
    }

    #[test]
    fn a_polled_job_is_as_the_last_status_says_with_the_most_workers_of_all() {
        let mut job =
            PolledJob::new(gristmill_operators::parse(PIPELINE).unwrap(), view(JobState::Running));
        assert_eq!(job.view().unwrap().state, JobState::Running);
        job.update(status(5, 6));
        job.update(status(2, 4));
        let JobStatistics { active_workers, workers_max, indexed_files, scale, .. } =
            job.statistics();
        assert_eq!((active_workers, workers_max, indexed_files, scale.target), (2, 5, 3, 4));
        assert_eq!(job.view().unwrap().state, JobState::Done);
    }

    #[test]
    fn waits_of_a_trainer_add_up() {
        let mut job =
            PolledJob::new(gristmill_operators::parse(PIPELINE).unwrap(), view(JobState::Running));
        let wait = Duration::from_millis(5);
        for round in 1..3 {
            job.begin_wait();
            std::thread::sleep(wait);
            // Asking again goes on with the same wait.
            job.begin_wait();
            assert!(job.present_wait() >= wait && job.waited() >= wait * round);
            job.end_wait();
        }
        let waited = job.waited();
        std::thread::sleep(wait);
        assert_eq!((job.present_wait(), job.waited()), (Duration::ZERO, waited));
    }
}
