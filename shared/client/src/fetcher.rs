//! The trainer's handle on its stream of batches.

use crate::{
    Batch, FetchError, Folders,
    assembler::Assembled,
    cached::Shelves,
    downloader::Downloader,
    ledger::{Ledger, Place},
    listing,
    local::{self, LocalStore},
    poller::Poller,
    progress::{Felt, Progress},
    stream::Spring,
    waiting::Watcher,
    waits::{StageClock, Waits},
};
use gristmill_executor::user::Operators;
use gristmill_model::wire::{
    Call, JobState, JobView, Plan, Register, Reply, ScaleState, TrainerMetrics,
};
use gristmill_model::{Epoch, ErrorPolicy, JobName, Namespace, Visitation};
use gristmill_ports::{CallError, Clock, Coordinator, Objects, SystemClock};
use gristmill_runner::{Compute, JobContext, RunError, Runner, RunnerConfig};
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};

/// How a trainer wants its batches.
#[derive(Debug, Clone)]
pub struct FetcherConfig {
    pub ns: Namespace,
    pub bucket: String,
    pub job: JobName,
    /// Workers inside this process.
    pub local_workers: u32,
    /// Memory for objects fetched ahead, in bytes.
    pub prefetch_bytes: u64,
    /// The batch to begin with: (epoch, g) of the first one not safe in a checkpoint. Of a job that is
    /// not visited exactly once, the coordinator knows better.
    pub resume: (Epoch, u64),
    /// How long the service may be silent before the run fails.
    pub patience: Duration,
    /// Folders that errors are to name by their paths.
    pub folders: Folders,
}

impl FetcherConfig {
    /// From the start, remote workers only, with room for a few objects ahead.
    pub fn new(ns: Namespace, bucket: String, job: JobName) -> Self {
        Self {
            ns,
            bucket,
            job,
            local_workers: 0,
            prefetch_bytes: 32 << 20,
            resume: (0, 0),
            patience: Duration::from_secs(120),
            folders: Folders::default(),
        }
    }
}

/// The world as the fetcher sees it.
#[derive(Clone)]
pub struct FetcherPorts {
    pub coordinator: Arc<dyn Coordinator>,
    pub objects: Arc<dyn Objects>,
    pub clock: Arc<dyn Clock>,
    /// Where local workers compute.
    pub compute: Compute,
    /// Of users, beside ours.
    pub operators: Arc<Operators>,
}

impl FetcherPorts {
    /// On this machine's clock and threads.
    pub fn new(coordinator: Arc<dyn Coordinator>, objects: Arc<dyn Objects>) -> Self {
        Self {
            coordinator,
            objects,
            clock: Arc::new(SystemClock),
            compute: Compute::default(),
            operators: Arc::default(),
        }
    }
}

/// What the trainer is given next.
#[derive(Debug)]
pub enum Delivery {
    Batch(Batch),
    EpochEnd(EpochTotals),
    /// All epochs are delivered.
    End,
}

/// What an epoch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpochTotals {
    pub epoch: Epoch,
    pub batches: u64,
    pub rows: u64,
    pub skipped: u64,
    pub splits: u32,
    /// Milliseconds of workers for reading, computing and storing its splits.
    pub source_ms: u64,
    pub compute_ms: u64,
    pub put_ms: u64,
    /// Bytes of its objects as workers kept them; of those that another epoch stored, too.
    pub stored_bytes: u64,
    /// What the trainer waited for.
    pub waits: Waits,
}

impl EpochTotals {
    /// Why the epoch delivered no batch; none if it delivered one.
    pub fn why_empty(&self, plan: &Plan) -> Option<String> {
        let Self { batches: 0, rows, skipped, .. } = *self else { return None };
        let (records, batch) = (plan.records, plan.batch_size);
        Some(match (rows, skipped) {
            (1.., _) => format!(
                "its {rows} elements are fewer than a batch of {batch}, and drop_remainder leaves out a batch \
                 that is not full"
            ),
            (0, 0) => {
                format!("the pipeline's operators, such as filter, dropped all {records} records")
            }
            (0, skipped) if skipped >= records => {
                format!("all {records} records were skipped as bad")
            }
            (0, skipped) => format!(
                "{skipped} of {records} records were skipped as bad, and the pipeline's operators dropped \
                 the others"
            ),
        })
    }
}

/// Numbers for people to watch.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub metrics: TrainerMetrics,
    pub scale: ScaleState,
    pub active_workers: u32,
    pub workers_max: u32,
    pub indexed_files: u32,
    /// Splits that were committed, whose objects were missing or damaged, and that were computed here again.
    pub healed: u32,
}

/// A job's stream of batches. Dropping it stops everything that runs behind it.
pub struct Fetcher {
    ledger: Arc<Ledger>,
    progress: Arc<Progress>,
    ports: FetcherPorts,
    config: FetcherConfig,
    batches: mpsc::Receiver<Assembled>,
    spring: Spring,
    visitation: Visitation,
    /// Taken from the queue, not yet handed over.
    held: Option<Assembled>,
    /// Moments on the clock.
    last_handed_over: Option<Duration>,
    asked: Option<Duration>,
    last_batch: Option<(Epoch, u64)>,
    ended: bool,
    stages: Arc<StageClock>,
    /// When the wait for the next batch began, by stage, and what earlier ones of the epoch came to.
    wait_began: Option<Waits>,
    waits: Waits,
    /// Downloads and joins; ended when the stream begins anew.
    streaming: JoinSet<()>,
    _tasks: JoinSet<()>,
}

impl Fetcher {
    /// Registers `register` (or joins the job of that name) and returns it as it stands. A service that
    /// fails is asked again for as long as `patience`.
    ///
    /// # Errors
    /// [`FetchError::JobFailed`] if it failed at once, such as over a dataset without a record.
    pub async fn register(
        ports: &FetcherPorts,
        own: (&Namespace, &str),
        register: Register,
        patience: Duration,
    ) -> Result<JobView, FetchError> {
        let mut register = listing::tell(ports, own, register, patience).await?;
        register.nonce.get_or_insert_with(|| ports.clock.nonce());
        let view = expect_job(ask(ports, &Call::Register(register), patience).await?)?;
        match view.state {
            JobState::Failed { error } => Err(FetchError::JobFailed(error)),
            _ => Ok(view),
        }
    }

    /// The job of that name; as [`Fetcher::register`] otherwise.
    pub async fn describe(
        ports: &FetcherPorts,
        job: &JobName,
        patience: Duration,
    ) -> Result<JobView, FetchError> {
        expect_job(ask(ports, &Call::Describe { job: job.clone() }, patience).await?)
    }

    /// Begins streaming a registered job, and takes it over from whoever read it before.
    pub async fn start(ports: FetcherPorts, config: FetcherConfig) -> Result<Self, FetchError> {
        let fetcher = Self::open(ports, config).await?;
        fetcher.announce();
        Ok(fetcher)
    }

    /// As [`Fetcher::start`], but fetches ahead only: the job is taken over by [`Fetcher::announce`],
    /// once it is known where the trainer begins.
    pub async fn open(ports: FetcherPorts, config: FetcherConfig) -> Result<Self, FetchError> {
        let FetcherPorts { coordinator, objects, clock, compute, operators } = ports.clone();
        let runner_config = RunnerConfig {
            ns: config.ns.clone(),
            bucket: config.bucket.clone(),
            local: true,
            shape: None,
        };
        let runner =
            Runner { coordinator, objects, clock, compute, operators, config: runner_config };
        let loading = async || JobContext::load(&runner, &config.job).await;
        let passes = |error: &RunError| matches!(error, RunError::Passing(_));
        let context = insist(&*ports.clock, config.patience, loading, passes, run_error).await?;
        let context = Arc::new(context);
        let visitation = context.view.spec.visitation;
        let resume = beginning(&ports, &config, visitation).await?;

        // Batches are counted from the start of the epoch to resume in: entries of all its splits
        // are asked for again, objects only of those still needed.
        let start: Place = (resume.0, 0);
        let ledger = Arc::new(Ledger::new((*context.view).clone(), start, config.folders.clone()));
        let progress = Arc::new(Progress::new(resume));
        if visitation == Visitation::AtMostOnce {
            progress.acknowledge_always();
        }
        let store = Arc::new(LocalStore::new(config.prefetch_bytes));

        let mut tasks = JoinSet::new();
        let stages = Arc::new(StageClock::new(ports.clock.monotonic()));
        let poller = Poller {
            stages: Arc::clone(&stages),
            shelves: Shelves { objects: Arc::clone(&ports.objects), bucket: config.bucket.clone() },
            job: config.job.clone(),
            coordinator: Arc::clone(&ports.coordinator),
            clock: Arc::clone(&ports.clock),
            ledger: Arc::clone(&ledger),
            progress: Arc::clone(&progress),
            patience: config.patience,
        };
        tasks.spawn(poller.run());
        for _ in 0..config.local_workers {
            let (runner, context) = (runner.clone(), (*context).clone());
            tasks.spawn(local::work(
                runner,
                Arc::new(context),
                Arc::clone(&store),
                Arc::clone(&ledger),
            ));
        }
        let downloader = Downloader {
            runner,
            context,
            ledger: Arc::clone(&ledger),
            progress: Arc::clone(&progress),
            local: store,
            budget_bytes: config.prefetch_bytes,
            patience: config.patience,
        };
        let spring =
            Spring { downloader, progress: Arc::clone(&progress), stages: Arc::clone(&stages) };
        let mut streaming = JoinSet::new();
        let batches = spring.stream(resume, &mut streaming);
        Ok(Self {
            ledger,
            progress,
            ports,
            config,
            batches,
            spring,
            visitation,
            held: None,
            last_handed_over: None,
            asked: None,
            last_batch: None,
            ended: false,
            stages,
            wait_began: None,
            waits: Waits::default(),
            streaming,
            _tasks: tasks,
        })
    }

    /// Begins anew at batch `at`, where a trainer that comes back asks to; where batches are not visited
    /// exactly once, no earlier than it left. It is to be announced again.
    pub async fn reopen(&mut self, at: (Epoch, u64)) {
        self.streaming.shutdown().await;
        let at = match (self.visitation, self.last_batch) {
            (Visitation::ExactlyOnce, _) => at,
            (Visitation::ZeroOnceOrMore, Some((epoch, g))) => at.max((epoch, g + 1)),
            _ => at.max(self.progress.durable_until()),
        };
        self.progress.reopen(at);
        self.ledger.reopen((at.0, 0));
        self.batches = self.spring.stream(at, &mut self.streaming);
        (self.held, self.last_batch, self.ended) = (None, None, false);
        (self.last_handed_over, self.asked, self.wait_began) = (None, None, None);
    }

    /// Resolves once it is known that there is a batch to begin with.
    ///
    /// # Errors
    /// [`FetchError::Misplaced`] if that batch is beyond the epoch, or beyond all that was made so far; whatever
    /// ended the run.
    pub async fn located(&self) -> Result<(), FetchError> {
        tokio::select! {
            biased;
            error = self.ledger.failed() => Err(error),
            () = self.progress.located() => Ok(()),
        }
    }

    /// The trainer begins where the stream does: the coordinator is told, and may refuse.
    pub fn announce(&self) {
        self.progress.announce();
    }

    /// Resolves once the coordinator has accepted that.
    ///
    /// # Errors
    /// [`FetchError::Misplaced`] if what the trainer needs has been deleted or was never made,
    /// [`FetchError::Fenced`] if there is another; whatever ended the run.
    pub async fn admitted(&self) -> Result<(), FetchError> {
        tokio::select! {
            biased;
            error = self.ledger.failed() => Err(error),
            () = self.progress.admitted() => Ok(()),
        }
    }

    /// The next batch, the end of an epoch, or the end of the job. Cancelling the wait loses
    /// nothing.
    pub async fn next(&mut self) -> Result<Delivery, FetchError> {
        if self.ended {
            return Ok(Delivery::End);
        }
        // Asking again after a cancelled wait is the same wait.
        let asked = *self.asked.get_or_insert(self.ports.clock.monotonic());
        let began = *self.wait_began.get_or_insert_with(|| self.stages.read(asked));
        if let (Visitation::ZeroOnceOrMore, Some((epoch, g))) = (self.visitation, self.last_batch) {
            self.progress.durable((epoch, g + 1));
        }
        let queued = self.batches.len() + usize::from(self.held.is_some());
        let assembled = self.take().await?;
        self.asked = None;
        self.wait_began = None;
        let now = self.ports.clock.monotonic();
        let waits = self.stages.read(now).since(&began);
        self.waits += waits;
        match assembled {
            Assembled::Batch { batch, .. } => {
                let since_last = now - self.last_handed_over.replace(now).unwrap_or(asked);
                let fetching = waits.fetch + waits.decode;
                self.progress
                    .handed_over(Felt { since_last, waited: now - asked, fetching }, queued);
                self.last_batch = Some((batch.epoch, batch.g));
                self.report_if_due();
                if self.visitation == Visitation::AtMostOnce {
                    // While the trainer works on this one.
                    let next = self.batches.try_recv().ok();
                    self.hold(next);
                }
                Ok(Delivery::Batch(batch))
            }
            Assembled::EpochEnd(totals) => {
                let waits = std::mem::take(&mut self.waits);
                let plan = self.view().and_then(|view| view.plan);
                if let Some(why) = plan.and_then(|plan| totals.why_empty(&plan)) {
                    tracing::warn!("epoch {} delivers no batch: {why}", totals.epoch);
                }
                Ok(Delivery::EpochEnd(EpochTotals { waits, ..totals }))
            }
            Assembled::End => {
                self.ended = true;
                Ok(Delivery::End)
            }
        }
    }

    /// The next of the queue, consumed first if it must not come twice.
    async fn take(&mut self) -> Result<Assembled, FetchError> {
        if self.held.is_none() {
            if self.batches.is_empty() {
                self.progress.soon.notify_one();
            }
            let next = self.batches.recv().await;
            self.hold(next);
        }
        if let (Visitation::AtMostOnce, Some(Assembled::Batch { batch, .. })) =
            (self.visitation, &self.held)
        {
            let next = (batch.epoch, batch.g + 1);
            tokio::select! {
                biased;
                () = self.progress.told(next) => {}
                error = self.ledger.failed() => return Err(error),
            }
        }
        let broken = || FetchError::BadObject("the stream of batches broke off".into());
        self.held.take().ok_or_else(|| self.ledger.stream_error().unwrap_or_else(broken))
    }

    /// Keeps what comes next until it is handed over: what is to come once at most is consumed by now.
    fn hold(&mut self, next: Option<Assembled>) {
        if let Some(Assembled::Batch { batch, resume_place }) = &next {
            self.progress.next_is((batch.epoch, batch.g), *resume_place);
            if self.visitation == Visitation::AtMostOnce {
                self.progress.durable((batch.epoch, batch.g + 1));
                self.progress.urgent.notify_one();
            }
        }
        self.held = next;
    }

    /// The clock that the run goes by.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.ports.clock)
    }

    /// How many batches an epoch has; none where that is not known beforehand.
    pub fn batches_per_epoch(&self) -> Option<u64> {
        let view = self.ledger.view()?;
        let plan = view.plan?;
        let one_to_one = self.spring.downloader.context.pipeline.is_one_to_one();
        let size = u64::from(plan.batch_size.max(1));
        let batches = match plan.drop_last {
            true => plan.records / size,
            false => plan.records.div_ceil(size),
        };
        (one_to_one && view.spec.on_error == ErrorPolicy::Fail).then_some(batches)
    }

    /// What a trainer of this job that comes back is given.
    pub fn visitation(&self) -> Visitation {
        self.visitation
    }

    /// Resolves when the run has failed, be it while nobody takes batches.
    pub async fn failed(&self) -> FetchError {
        self.ledger.failed().await
    }

    /// Everything up to and including batch `g` of `epoch` is safe in a checkpoint.
    pub fn checkpointed(&self, epoch: Epoch, g: u64) {
        self.progress.durable((epoch, g + 1));
    }

    /// Everything of all epochs before `epoch` is safe in a checkpoint.
    pub fn checkpointed_epochs(&self, epoch: Epoch) {
        self.progress.durable((epoch, 0));
        self.progress.urgent.notify_one();
    }

    /// Says what the next batch waits for, for as long as it is kept.
    pub fn watcher(&self) -> Watcher {
        Watcher { ledger: Arc::clone(&self.ledger), stages: Arc::clone(&self.stages) }
    }

    /// Where the job stands, for people.
    pub fn snapshot(&self) -> Snapshot {
        let metrics = self.progress.metrics();
        let healed = self.ledger.healed();
        self.ledger.watch(|scale, active_workers, workers_max, indexed_files| Snapshot {
            healed,
            metrics,
            scale: scale.clone(),
            active_workers,
            workers_max,
            indexed_files,
        })
    }

    /// The batch handed out last, by (epoch, g).
    pub fn last_batch(&self) -> Option<(Epoch, u64)> {
        self.last_batch
    }

    /// The job as last heard of.
    pub fn view(&self) -> Option<JobView> {
        self.ledger.view()
    }

    /// Whether no batch comes after the place where the stream begins, once that is known.
    pub fn is_at_end(&self) -> bool {
        let epochs = self.view().map(|view| view.spec.epochs);
        self.progress.begins_at().zip(epochs).is_some_and(|((epoch, _), epochs)| epoch >= epochs)
    }

    /// Whether the job was closed, as last heard.
    pub fn is_job_done(&self) -> bool {
        self.ledger.is_done()
    }

    /// Resolves once the job is closed.
    pub async fn job_done(&self) {
        while !self.ledger.is_done() {
            self.ledger.changed().await;
        }
    }

    /// Says how far the trainer came and waits until the coordinator knows; call it once at the
    /// end, so that the job is closed and its objects are collected.
    ///
    /// # Errors
    /// The job could not be closed: it failed, or the service did not answer.
    pub async fn finish(self) -> Result<Snapshot, FetchError> {
        let snapshot = self.snapshot();
        self.settle().await?;
        Ok(snapshot)
    }

    /// As [`Fetcher::finish`]; cancelling the wait loses nothing.
    pub async fn settle(&self) -> Result<(), FetchError> {
        let epochs = self.view().map_or(0, |view| view.spec.epochs);
        self.progress.acknowledge_always();
        let began = self.ports.clock.monotonic();
        // All that is known is not said before the first answer, and the last one closes the job.
        while !self.progress.is_settled()
            || self.progress.durable_until().0 >= epochs && !self.ledger.is_done()
        {
            if let Some(error) = self.ledger.stream_error() {
                return Err(error);
            }
            let waited = self.ports.clock.monotonic() - began;
            if waited >= self.config.patience {
                let error = "the job is not closed yet: end it again with its last checkpoint";
                return Err(FetchError::Unreachable {
                    waited_s: waited.as_secs(),
                    error: error.to_owned(),
                });
            }
            self.ports.clock.sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn report_if_due(&self) {
        if self.ledger.window_waits(&self.progress) {
            self.progress.soon.notify_one();
        }
    }
}

/// How long a service that fails is left alone, at first and at most.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Sends `call` until it is answered, or `patience` is over: a service that denies it may be set right meanwhile.
async fn ask(ports: &FetcherPorts, call: &Call, patience: Duration) -> Result<Reply, FetchError> {
    let passes = |error: &CallError| error.is_passing() || matches!(error, CallError::Denied(_));
    let calling = async || ports.coordinator.call(call).await;
    insist(&*ports.clock, patience, calling, passes, FetchError::from).await
}

pub(crate) async fn insist<T, E: std::fmt::Display>(
    clock: &dyn Clock,
    patience: Duration,
    attempt: impl AsyncFn() -> Result<T, E>,
    passes: impl Fn(&E) -> bool,
    stays: impl Fn(E) -> FetchError,
) -> Result<T, FetchError> {
    let began = clock.monotonic();
    let mut rest = FIRST_REST;
    loop {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let waited = clock.monotonic().saturating_sub(began);
        if !passes(&error) {
            return Err(stays(error));
        }
        if waited >= patience {
            let (waited_s, error) = (waited.as_secs(), error.to_string());
            return Err(FetchError::Unreachable { waited_s, error });
        }
        clock.sleep(rest).await;
        rest = (rest * 2).min(LONGEST_REST);
    }
}

/// The batch to begin with.
async fn beginning(
    ports: &FetcherPorts,
    config: &FetcherConfig,
    visitation: Visitation,
) -> Result<(Epoch, u64), FetchError> {
    if visitation == Visitation::ExactlyOnce {
        return Ok(config.resume);
    }
    match ask(ports, &Call::Status { job: config.job.clone() }, config.patience).await? {
        Reply::Status(status) => Ok(config.resume.max(status.durable)),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> FetchError {
    FetchError::Refused(format!("the coordinator's answer does not fit: {reply:?}"))
}

fn expect_job(reply: Reply) -> Result<JobView, FetchError> {
    match reply {
        Reply::Job(view) => Ok(view),
        other => Err(unexpected(&other)),
    }
}

fn run_error(error: RunError) -> FetchError {
    FetchError::Refused(error.to_string())
}
