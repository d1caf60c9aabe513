//! The loop of the synthetic trainer: all ranks take a step, and meet at its end, as at a collective operation.

use crate::{BatchFileSink, SyntheticTraining, stand_ins::RankStandIns};
use gristmill_client::{JobHandle, ProgramFailure};
use gristmill_model::Checkpoint;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::replicas::RankReplicas;
use gristmill_model::wire::JobView;
use gristmill_stream::{
    JobStatistics, ObservableRun, RankBatch, RankSteps, RunObservations, RunObserver, StepDelivery,
    waiting::{WaitReason, WaitReportLimiter},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroU32,
    time::{Duration, Instant},
};

/// Time between updates of the progress line.
const REDRAW: Duration = Duration::from_millis(200);

/// A later run of a training.
pub struct LaterRun {
    pub ranks: NonZeroU32,
    pub replicas: RankReplicas,
    /// The text of the checkpoint that it begins at.
    pub checkpoint: String,
}

/// A source of the steps of a run.
pub trait StepSource: Sized {
    type Observed: ObservableRun;

    /// The run, as it is now.
    fn observed(&mut self) -> &Self::Observed;

    /// How long the ranks have been waiting for their next step, and for what.
    fn waiting(&self) -> (Duration, WaitReason);

    /// The next step, the end of an epoch, or the end of the job. Cancel safe.
    async fn next(&mut self) -> Result<StepDelivery, ProgramFailure>;

    /// Fetches the next step while the ranks work on the present one. Cancel safe.
    async fn prepare(&mut self) -> Result<(), ProgramFailure>;

    /// Everything before `next` is in the checkpoints of all ranks.
    async fn checkpointed(&mut self, next: Cursor);

    /// Ends this run, and begins `run`.
    async fn resume(self, run: LaterRun) -> Result<Self, ProgramFailure>;

    /// Closes the job after its last step, and adds to `view` what is known only then.
    async fn close(
        self,
        view: &mut TrainingView,
    ) -> Result<(JobStatistics, Option<JobView>), ProgramFailure>;
}

/// A training as people and reports see it.
pub struct TrainingView {
    pub progress: ProgressLine,
    pub observer: RunObserver,
    pub steps: RankSteps,
}

impl TrainingView {
    fn look(&mut self, run: &impl ObservableRun) {
        let Some(snapshot) = self.observer.look(run) else { return };
        // Further details of a wait that has been shown follow it.
        if self.progress.pace.has_said() {
            return;
        }
        let Some(view) = run.view() else { return };
        let Some(plan) = view.plan else {
            let (done, files) = (snapshot.indexed_files, view.n_files);
            let text = format!("indexing the dataset: {done} of {files} files");
            return self.progress.bar.set_message(text);
        };
        let (batches, seconds) = self.observer.pace();
        let rate = batches as f64 / seconds.max(1e-3);
        let per_split = u64::from(plan.split_records / plan.batch_size.max(1)).max(1);
        let splits = (batches / per_split, plan.n_splits);
        self.progress.training(self.observer.epoch(), splits, rate, &snapshot);
    }
}

/// The ranks of a training, and its runs.
pub struct SyntheticTrainer<'a> {
    job: &'a JobHandle,
    /// The resizes that are left, in order of their steps.
    resizes: VecDeque<RankResize>,
    /// Replicas after a resize that names none.
    replicas: RankReplicas,
    stand_ins: RankStandIns,
    view: TrainingView,
    /// Steps of the job so far.
    step: u64,
    /// Start of a later run.
    next: Cursor,
}

impl<'a> SyntheticTrainer<'a> {
    /// Trains over `source`, from `from` to the end of `job`. The first epoch began at `began`. Returns the steps of
    /// each rank as well.
    pub async fn train(
        training: &SyntheticTraining,
        job: &'a JobHandle,
        sink: Option<BatchFileSink>,
        from: Cursor,
        began: Instant,
        mut source: impl StepSource,
    ) -> Result<(RunObservations, RankSteps), ProgramFailure> {
        let progress = ProgressLine::new(&job.view);
        let mut observer = job.observe(source.observed(), began).await;
        observer.reads_content = !training.drain;
        let mut steps = RankSteps::default();
        steps.begin_run(0..training.ranks.get());
        let mut resizes = training.resize.clone();
        resizes.sort_by_key(|resize| resize.step);
        let trainer = Self {
            job,
            resizes: resizes.into(),
            replicas: training.replicas.replicas.unwrap_or_default(),
            stand_ins: RankStandIns::new(training, sink, source.observed().pipeline()),
            view: TrainingView { progress, observer, steps },
            step: 0,
            next: from,
        };
        trainer.train_on(source).await
    }

    async fn train_on(
        mut self,
        mut source: impl StepSource,
    ) -> Result<(RunObservations, RankSteps), ProgramFailure> {
        loop {
            let delivery = self.wait(&mut source).await?;
            if let StepDelivery::Step { .. } = delivery
                && let Some(due) = self.resizes.pop_front_if(|resize| resize.step <= self.step)
            {
                source = self.resume(source, due).await?;
                continue;
            }
            let began = Instant::now();
            self.view.observer.delivered(&delivery, source.observed()).await?;
            self.next = match delivery {
                StepDelivery::Step { batches, next, .. } => {
                    self.take(&mut source, batches, began).await?;
                    next
                }
                StepDelivery::EpochEnd { totals, .. } => Cursor::start_of(totals.epoch + 1),
                StepDelivery::End => break,
            };
            source.checkpointed(self.next).await;
        }
        for resize in &self.resizes {
            gristmill_client::complain!(
                "the job ended after {} steps, before --resize {resize}",
                self.step
            );
        }
        let (last, job) = source.close(&mut self.view).await?;
        let TrainingView { progress, observer, steps } = self.view;
        progress.bar.finish_and_clear();
        Ok((observer.finish(&last, job), steps))
    }

    /// Waits for the next delivery, and shows progress meanwhile.
    async fn wait(&mut self, source: &mut impl StepSource) -> Result<StepDelivery, ProgramFailure> {
        loop {
            let next = tokio::time::timeout(REDRAW, source.next()).await;
            self.view.look(source.observed());
            match next {
                Ok(delivery) => {
                    self.view.progress.pace.rest();
                    return delivery;
                }
                Err(_) => {
                    let (waited, waiting) = source.waiting();
                    let waiting = self.job.service.link.or(waiting);
                    self.view.progress.waiting(waited, &waiting);
                }
            }
        }
    }

    /// Ends the run of `source` and begins one of `ranks` ranks from the text of its checkpoint.
    async fn resume<S: StepSource>(
        &mut self,
        mut source: S,
        RankResize { ranks, replicas, .. }: RankResize,
    ) -> Result<S, ProgramFailure> {
        let replicas = replicas.unwrap_or(self.replicas);
        let job = source.observed().view().unwrap_or_else(|| self.job.view.clone());
        let checkpoint = Checkpoint::new(&job, self.next).to_string();
        gristmill_client::complain!(
            "after {} steps, {ranks} ranks continue from {checkpoint}",
            self.step
        );
        let mut source = source.resume(LaterRun { ranks, replicas, checkpoint }).await?;
        self.view.observer.resumes(source.observed());
        self.view.steps.begin_run(0..ranks.get());
        Ok(source)
    }

    /// Hands each rank its batch of a step that came at `began`, and waits for all; the next step may arrive meanwhile.
    async fn take(
        &mut self,
        source: &mut impl StepSource,
        batches: Vec<Option<RankBatch>>,
        began: Instant,
    ) -> Result<(), ProgramFailure> {
        self.view.steps.step(&batches);
        self.step += 1;
        let mut working = self.stand_ins.begin(batches, began);
        let mut is_prepared = false;
        loop {
            tokio::select! {
                biased;
                done = self.stand_ins.end(&mut working) => return done,
                prepared = source.prepare(), if !is_prepared => {
                    prepared?;
                    is_prepared = true;
                }
            }
        }
    }
}

/// Progress of a run on standard error: on a terminal one line that changes, else a line for each long wait.
pub struct ProgressLine {
    bar: ProgressBar,
    epochs: u32,
    pace: WaitReportLimiter,
}

impl ProgressLine {
    /// The line of the job that `view` describes.
    pub fn new(view: &JobView) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(format!("job {}: waiting for the first batch", view.job));
        Self { bar, epochs: view.spec.epochs, pace: WaitReportLimiter::default() }
    }

    /// Shows progress while batches arrive.
    pub fn training(
        &self,
        epoch: u32,
        splits: (u64, u32),
        batches_per_s: f64,
        snapshot: &JobStatistics,
    ) {
        let metrics = &snapshot.metrics;
        self.bar.set_message(format!(
            "epoch {} of {}  splits {}/{}  {batches_per_s:.1} batches/s  stall {:.0} %  workers {}",
            epoch + 1,
            self.epochs,
            splits.0,
            splits.1,
            metrics.stall_fraction * 100.0,
            snapshot.active_workers
        ));
    }

    /// Shows that the next batch is missing, for `waited` so far.
    pub fn waiting(&mut self, waited: Duration, waiting: &WaitReason) {
        if self.pace.is_due(waited, waiting) {
            self.say(&waiting.text);
        }
    }

    /// Shows the cause of a wait.
    pub fn say(&self, what: &str) {
        if self.bar.is_hidden() {
            gristmill_client::complain!("waiting for {what}")
        } else {
            self.bar.set_message(format!("waiting for {what}"))
        }
    }
}

/// Another number of ranks from a step on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankResize {
    /// The number of ranks.
    pub ranks: NonZeroU32,
    /// Which of them take the same batches; none to keep that of the training.
    pub replicas: Option<RankReplicas>,
    /// Steps of the job before it.
    pub step: u64,
}

impl RankResize {
    /// Reads `3@40`, or `8/2@40` with replicas. The error says what to give instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('@').and_then(|(ranks, step)| {
            let (ranks, replicas) = match ranks.split_once('/') {
                Some((ranks, replicas)) => (ranks, Some(replicas.parse().ok()?)),
                None => (ranks, None),
            };
            Some(Self { ranks: ranks.parse().ok()?, replicas, step: step.parse().ok()? })
        });
        parsed.ok_or_else(|| "give N@STEP, such as 3@40, or N/R@STEP with R replicas".to_owned())
    }
}

impl fmt::Display for RankResize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, replicas, step } = self;
        write!(f, "{ranks}")?;
        replicas.map_or(Ok(()), |replicas| write!(f, "/{replicas}"))?;
        write!(f, "@{step}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_names_ranks_and_step() {
        let ranks = NonZeroU32::new(3).unwrap();
        let plain = RankResize { ranks, replicas: None, step: 40 };
        assert_eq!(RankResize::parse("3@40"), Ok(plain));
        for text in ["3@40", "8/2@40", "8/2x2@40"] {
            assert_eq!(RankResize::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "3", "8/@4", "8/0@4", "@40", "0@40", "3@-1", "3@x"] {
            assert!(RankResize::parse(text).is_err(), "{text}");
        }
    }
}
