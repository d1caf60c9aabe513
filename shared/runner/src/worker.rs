//! The life of one worker: claim bundles until there is no work or no time.

use crate::{
    ComputeMode, DatasetCache, LeaseError, SplitSink, SplitSource,
    described::read_listing,
    lease::{LeaseExecution, PendingCommits},
    sink::{ClaimableBundles, CodecChoice},
    split::ReadAhead,
};
use bytes::Bytes;
use gristmill_executor::{CompiledPipeline, ExecutorScratch, PipelineCompiler};
use gristmill_model::{
    Compression, Epoch, ErrorPolicy, Fingerprint, InvocationId, JobName, Namespace, Nonce,
    Position,
    splits::{SplitPlace, SplitPlan, SplitVisit},
    stored::keys,
    wire::{
        ClaimCall, ClaimReply, Dataset, DescribeCall, EpochPlan, FailCall, IdleReason, JobView,
        Lease,
    },
};
use gristmill_pipeline::{OperatorRegistry, Pipeline};
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{Clock, Coordinator, ObjectPath, ObjectStore, call_with_retry};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::OnceCell;
use tracing::Instrument as _;

/// How long a worker retries a claim: it holds nothing yet, so others can do the work.
pub(crate) const CLAIM_PATIENCE: Duration = Duration::from_secs(20);
/// Output buffers beyond one per thread: a split is stored while the next ones are computed.
const SPARE_BUFFERS: usize = 1;

/// Configuration of a worker.
#[derive(Debug, Clone)]
pub struct RunnerConfig {
    pub ns: Namespace,
    /// The bucket of chunks, indices and manifests.
    pub bucket: String,
    /// The worker runs on the trainer's host: commits are local.
    pub local: bool,
    /// The function that the worker runs on; none on a machine whose objects stay there.
    pub shape: Option<FunctionShape>,
}

/// The ports and configuration of a worker; cheap to clone.
#[derive(Clone)]
pub struct Runner {
    pub coordinator: Arc<dyn Coordinator>,
    pub objects: Arc<dyn ObjectStore>,
    pub clock: Arc<dyn Clock>,
    pub compute: ComputeMode,
    /// The operators that the running program was built with.
    pub operators: Arc<OperatorRegistry>,
    pub config: RunnerConfig,
}

/// Why a worker stopped claiming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStopReason {
    /// Nothing is claimable now.
    Idle(IdleReason),
    /// The platform stops this invocation soon.
    OutOfTime,
}

/// A job as a worker holds it: described and compiled once; the dataset is opened when the first split needs it.
#[derive(Clone)]
pub struct JobContext {
    pub view: Arc<JobView>,
    pub program: Arc<CompiledPipeline>,
    pub pipeline: Arc<Pipeline>,
    /// Idle scratch buffers, already grown to this pipeline's size.
    scratches: Arc<Mutex<Vec<ExecutorScratch>>>,
    /// Buffers of stored objects for reuse, and the most to keep.
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
    most_buffers: usize,
    pub(crate) packing: Arc<CodecChoice>,
    /// How many splits to read ahead.
    pub(crate) read_ahead: Arc<ReadAhead>,
    dataset: Arc<OnceCell<(DatasetCache, EpochPlan, SplitPlan)>>,
    /// The dataset's files, read when the first one is indexed.
    listing: Arc<OnceCell<Dataset>>,
}

impl JobContext {
    /// Asks the coordinator for the job and compiles its pipeline.
    pub async fn load(runner: &Runner, job: &JobName) -> Result<Self, LeaseError> {
        let view = describe(runner, job).await?;
        let pipeline = Pipeline::from_canonical(&view.spec.pipeline, &runner.operators)
            .map_err(|error| LeaseError::fatal(format!("the job's pipeline: {error}")))?;
        let assets = assets(runner, &pipeline).await?;
        let compiler = PipelineCompiler::new().assets(&assets);
        let program = compiler.compile(&pipeline);
        let program =
            program.map_err(|error| LeaseError::fatal(format!("the job's pipeline: {error}")))?;
        let packing = Arc::new(packing(runner, view.spec.compress));
        Ok(Self {
            view: Arc::new(view),
            packing,
            program: Arc::new(program),
            pipeline: Arc::new(pipeline),
            scratches: Arc::default(),
            buffers: Arc::default(),
            most_buffers: runner.compute.at_once() + SPARE_BUFFERS,
            read_ahead: Arc::default(),
            dataset: Arc::default(),
            listing: Arc::default(),
        })
    }

    /// This job with the treatment of bad records of a lease or a commit: it may have changed since.
    #[must_use]
    pub fn treating(&self, on_error: ErrorPolicy) -> Self {
        let mut context = self.clone();
        if context.view.spec.settings.on_error != on_error {
            Arc::make_mut(&mut context.view).spec.settings.on_error = on_error;
        }
        context
    }

    /// This job as it is under `lease`.
    #[must_use]
    pub(crate) fn under(&self, lease: &Lease, runner: &Runner) -> Self {
        let mut context = self.treating(lease.on_error);
        if context.view.spec.compress != lease.compress {
            Arc::make_mut(&mut context.view).spec.compress = lease.compress;
            context.packing = Arc::new(packing(runner, lease.compress));
        }
        context
    }

    /// Scratch buffers of an earlier split if there are any, otherwise new ones.
    pub(crate) fn take_scratch(&self) -> ExecutorScratch {
        let idle = self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = idle.unwrap_or_else(|| self.program.scratch());
        if let Some(buffer) = self.recycled() {
            scratch.recycle(buffer);
        }
        scratch.set_codec(self.packing.codec());
        scratch
    }

    /// Returns scratch buffers for reuse.
    pub(crate) fn return_scratch(&self, scratch: ExecutorScratch) {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }

    /// Reuses the buffer of a stored object, unless it is still shared. The worker's memory then stays at
    /// what its first splits took, and the kernel need not clear new pages for each object.
    pub(crate) fn recycle(&self, object: Bytes) {
        let Ok(buffer) = object.try_into_mut() else { return };
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < self.most_buffers {
            buffers.push(Vec::from(buffer));
        }
    }

    /// The buffer of an earlier object, if there is one.
    fn recycled(&self) -> Option<Vec<u8>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// The dataset's files as listed at registration.
    pub(crate) async fn listing(&self, runner: &Runner) -> Result<&Dataset, LeaseError> {
        let read = || async {
            let RunnerConfig { ns, bucket, .. } = &runner.config;
            let path = ObjectPath::new(bucket, keys::listing(ns, self.view.dataset_version));
            let (objects, version) = (&*runner.objects, self.view.dataset_version);
            read_listing(objects, &path, version, &self.pipeline.source().stored_as()).await
        };
        self.listing.get_or_try_init(read).await
    }

    /// Reads the source of the split at `position` of `epoch`, composed as in epoch `drawn`: all of it, or
    /// the first portion together with the portions to read after it.
    pub(crate) async fn read_source(
        &self,
        runner: &Runner,
        epoch: Epoch,
        drawn: Epoch,
        position: Position,
    ) -> Result<(SplitSource, VecDeque<SplitVisit>), LeaseError> {
        let (dataset, plan, splits) = self.dataset(runner).await?;
        let visit = splits.visit_as(plan.copies, self.view.spec.seed, epoch, drawn, position);
        let visit = visit.ok_or_else(|| not_planned(position))?;
        dataset.begin(&*runner.objects, visit).await
    }

    /// Reads one portion of a split.
    pub(crate) async fn read_portion(
        &self,
        runner: &Runner,
        portion: &SplitVisit,
    ) -> Result<SplitSource, LeaseError> {
        let (dataset, ..) = self.dataset(runner).await?;
        dataset.read(&*runner.objects, portion).await
    }

    /// The visit's number, which names the cached output of the split at `position` of `epoch`.
    pub(crate) async fn visit_number(
        &self,
        runner: &Runner,
        epoch: Epoch,
        position: Position,
    ) -> Result<u64, LeaseError> {
        let (_, plan, splits) = self.dataset(runner).await?;
        let number = splits.visit_number(plan.copies, self.view.spec.seed, epoch, position);
        number.ok_or_else(|| not_planned(position))
    }

    async fn dataset(
        &self,
        runner: &Runner,
    ) -> Result<&(DatasetCache, EpochPlan, SplitPlan), LeaseError> {
        let open = || async {
            // A job that was described while indexing has no plan yet: ask again.
            let plan = match self.view.plan {
                Some(plan) => plan,
                None => describe(runner, &self.view.job).await?.plan.ok_or_else(|| {
                    LeaseError::Passing("a split was leased before the job had a plan".into())
                })?,
            };
            let (source, version) = (self.pipeline.source(), self.view.dataset_version);
            let dataset = DatasetCache::open(runner, source, version).await?;
            let splits = dataset.split_plan(plan.split_records, &self.pipeline.dataset_ops())?;
            Ok::<_, LeaseError>((dataset, plan, splits))
        };
        self.dataset.get_or_try_init(open).await
    }
}

/// How a worker keeps frames if `asked`. Chunks that stay on the trainer's host are not compressed.
fn packing(runner: &Runner, asked: Compression) -> CodecChoice {
    let asked = if runner.config.local { Compression::None } else { asked };
    CodecChoice::new(asked, runner.config.shape)
}

fn not_planned(position: Position) -> LeaseError {
    LeaseError::fatal(format!("position {position} is not in the plan"))
}

/// Reads the files that the pipeline's operators need, by fingerprint.
async fn assets(
    runner: &Runner,
    pipeline: &Pipeline,
) -> Result<BTreeMap<Fingerprint, Bytes>, LeaseError> {
    let RunnerConfig { ns, bucket, .. } = &runner.config;
    let mut assets = BTreeMap::new();
    for hash in pipeline.assets() {
        let path = ObjectPath::new(bucket, keys::asset(ns, hash));
        assets.insert(hash, runner.objects.get(&path).await?);
    }
    Ok(assets)
}

/// Asks the coordinator for the job's current state.
pub async fn describe(runner: &Runner, job: &JobName) -> Result<JobView, LeaseError> {
    let call = DescribeCall { job: job.clone() };
    Ok(call_with_retry(&*runner.coordinator, &*runner.clock, call, CLAIM_PATIENCE).await?)
}

impl Runner {
    /// Milliseconds until `deadline_ms`.
    pub(crate) fn remaining_ms(&self, deadline_ms: u64) -> u64 {
        deadline_ms.saturating_sub(self.clock.now_ms())
    }

    /// Claims and works until there is nothing to claim or `deadline_ms` is near.
    ///
    /// # Errors
    /// The job cannot go on, or the coordinator does not answer.
    pub async fn work(
        &self,
        context: &JobContext,
        invocation: &InvocationId,
        deadline_ms: u64,
        sink: &dyn SplitSink,
    ) -> Result<WorkerStopReason, LeaseError> {
        let (mut tail, failure) = (PendingCommits::default(), Arc::default());
        let (split_ms, context) = (Arc::default(), context.clone());
        let shift = WorkerLoop { runner: self, invocation, deadline_ms, split_ms, failure };
        let ended = shift.work(context, sink, &mut tail).await;
        tail.finish().await;
        match shift.failed() {
            Some(LeaseError::OutOfTime) => Ok(WorkerStopReason::OutOfTime),
            Some(error) => Err(error),
            None => ended,
        }
    }

    /// Reports to the coordinator that this attempt is over. Best effort: the lease expires anyway.
    pub(crate) async fn give_back(
        &self,
        context: &JobContext,
        lease: &Lease,
        nonce: Nonce,
        error: &LeaseError,
    ) {
        let (fatal, record) = match error {
            LeaseError::Fatal { record, .. } => (true, record.clone()),
            _ => (false, None),
        };
        let call = FailCall {
            lease: lease.reference(&context.view.job, nonce),
            error: error.to_string(),
            fatal,
            record,
            blameless: matches!(error, LeaseError::NoRoom),
        };
        let sent = call_with_retry(&*self.coordinator, &*self.clock, call, CLAIM_PATIENCE).await;
        if let Err(refusal) = sent {
            tracing::warn!(%refusal, %error, "cannot return the bundle; its lease will expire");
        }
    }
}

/// With less time left, in milliseconds, a claim is not worth its write.
const MIN_CLAIM_MS: u64 = 5_000;

/// One worker between its first claim and its end.
pub(crate) struct WorkerLoop<'a> {
    pub runner: &'a Runner,
    pub invocation: &'a InvocationId,
    pub deadline_ms: u64,
    /// Predicted milliseconds per split; 0 before the first.
    pub split_ms: Arc<AtomicU64>,
    /// Why commits that went on beside another lease end the worker, if they do.
    pub failure: Arc<Mutex<Option<LeaseError>>>,
}

impl<'a> WorkerLoop<'a> {
    /// Takes out why the worker is to end.
    pub fn failed(&self) -> Option<LeaseError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Claims and works until there is nothing to claim or no time; `tail` is left to be finished.
    pub async fn work(
        &self,
        mut context: JobContext,
        sink: &'a dyn SplitSink,
        tail: &mut PendingCommits<'a>,
    ) -> Result<WorkerStopReason, LeaseError> {
        loop {
            let (needed, turn) = match sink.claimable() {
                ClaimableBundles::Any => (None, None),
                ClaimableBundles::Needed { place, turn } => (Some(place), Some(turn)),
                ClaimableBundles::Nothing => {
                    return Ok(WorkerStopReason::Idle(IdleReason::WindowFull));
                }
            };
            let split_ms = self.split_ms.load(Ordering::Relaxed);
            if self.runner.remaining_ms(self.deadline_ms) < MIN_CLAIM_MS + split_ms {
                return Ok(WorkerStopReason::OutOfTime);
            }
            // Every claim has a new nonce: it names this attempt's objects and proves ownership.
            let nonce = self.runner.clock.nonce();
            let reply = tail.beside(self.claim(&context, nonce, needed)).await?;
            drop(turn);
            sink.answered(&reply);
            let lease = match reply {
                ClaimReply::Leased(lease) => lease,
                ClaimReply::Idle(idle) => return Ok(WorkerStopReason::Idle(idle.reason)),
            };
            context = context.under(&lease, self.runner);
            let Lease { epoch, bundle, attempt, .. } = lease;
            let span =
                tracing::info_span!("lease", job = %context.view.job, epoch, bundle, attempt);
            span.in_scope(|| tracing::info!(splits = lease.todo.len(), "claimed"));
            // A death during a lease with marks is blamed on its split alone.
            if lease.marks() {
                tail.finish().await;
            }
            let run = Arc::new(LeaseExecution {
                runner: self.runner,
                context: context.clone(),
                lease,
                nonce,
                deadline_ms: self.deadline_ms,
                split_ms: Arc::clone(&self.split_ms),
            });
            *tail = self.run(run, sink, std::mem::take(tail)).instrument(span).await;
            if self.has_failed() {
                return Ok(WorkerStopReason::OutOfTime);
            }
        }
    }

    async fn claim(
        &self,
        context: &JobContext,
        nonce: Nonce,
        needed: Option<SplitPlace>,
    ) -> Result<ClaimReply, LeaseError> {
        let call = ClaimCall {
            job: context.view.job.clone(),
            registered_ms: context.view.registered_ms,
            nonce,
            invocation: self.invocation.clone(),
            numerics: gristmill_executor::NUMERICS.to_owned(),
            remaining_ms: self.runner.remaining_ms(self.deadline_ms),
            split_ms: self.split_ms.load(Ordering::Relaxed),
            local: self.runner.config.local,
            resent: false,
            needed,
        };
        let Runner { coordinator, clock, .. } = self.runner;
        Ok(call_with_retry(&**coordinator, &**clock, call, CLAIM_PATIENCE).await?)
    }

    /// Computes a lease. Returns its commits, which go on, unless it ended with an error or has marks.
    async fn run(
        &self,
        run: Arc<LeaseExecution<'a>>,
        sink: &'a dyn SplitSink,
        before: PendingCommits<'a>,
    ) -> PendingCommits<'a> {
        let (computed, committing) = run.work(sink, before).await;
        let is_alone = computed.is_err() || run.lease.marks();
        let failure = Arc::clone(&self.failure);
        let mut tail = PendingCommits::new(async move {
            let error = match committing.await.and(computed) {
                Ok(()) | Err(LeaseError::LeaseLost) => return,
                Err(error) => error,
            };
            run.runner.give_back(&run.context, &run.lease, run.nonce, &error).await;
            match error {
                LeaseError::NoRoom => {}
                LeaseError::Passing(_) => tracing::warn!(%error, "bundle given back"),
                error => {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(error);
                }
            }
        });
        if is_alone {
            tail.finish().await;
        }
        tail
    }
}
