//! The life of one worker: claim bundles until there is no work or no time.

use crate::{
    ComputeMode, LeaseError, SplitSink,
    dataset::DatasetCache,
    described::read_listing,
    lease::{LeaseExecution, LeaveOrder, PendingCommits},
    sink::{ClaimableBundles, CodecChoice},
    split::ReadAhead,
    split_source::SplitSource,
};
use bytes::Bytes;
use gristmill_executor::{CompiledPipeline, ExecutorScratch, PipelineCompiler};
use gristmill_model::{
    Compression, Epoch, ErrorPolicy, InvocationId, JobName, Namespace, Nonce, Position,
    splits::{SplitPlace, SplitPlan, SplitVisit},
    stored::keys,
    wire::{
        ClaimCall, ClaimReply, CoordinatorCall, Dataset, DescribeCall, EpochPlan, FailCall,
        IdleReason, JobView, Lease, LeaseRef,
    },
};
use gristmill_pipeline::{OperatorRegistry, Pipeline};
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{Clock, Coordinator, ObjectPath, ObjectStore, call_with_retry};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display,
    sync::{
        Arc,
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

/// The ports and configuration of a worker.
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

/// A job as a worker holds it: described and compiled once; the dataset is opened when the first split needs it. Clones
/// share it.
#[derive(Clone)]
pub struct JobContext {
    pub runner: Arc<Runner>,
    pub view: Arc<JobView>,
    pub program: Arc<CompiledPipeline>,
    pub pipeline: Arc<Pipeline>,
    /// Idle scratch buffers, already grown to this pipeline's size.
    scratches: Arc<Mutex<Vec<ExecutorScratch>>>,
    /// Buffers of stored objects for reuse, and the most to keep.
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
    most_buffers: usize,
    pub(crate) packing: Arc<CodecChoice>,
    /// Whether a split ends before its first bad record.
    pub(crate) ends_at_bad: bool,
    /// How many splits to read ahead.
    pub(crate) read_ahead: Arc<ReadAhead>,
    dataset: Arc<OnceCell<(DatasetCache, EpochPlan, SplitPlan)>>,
    /// The dataset's files, read when the first one is indexed.
    listing: Arc<OnceCell<Dataset>>,
}

impl JobContext {
    /// Asks the coordinator for the job and compiles its pipeline.
    pub async fn load(runner: Arc<Runner>, job: &JobName) -> Result<Self, LeaseError> {
        let view = runner.describe(job).await?;
        let refused = |why: &dyn Display| LeaseError::fatal(format!("the job's pipeline: {why}"));
        let pipeline = Pipeline::from_canonical(&view.spec.pipeline, &runner.operators)
            .map_err(|error| refused(&error))?;
        // The files that operators need.
        let mut assets = BTreeMap::new();
        for hash in pipeline.assets() {
            let path = ObjectPath::new(&runner.config.bucket, keys::asset(&runner.config.ns, hash));
            assets.insert(hash, runner.objects.get(&path).await?);
        }
        let program = PipelineCompiler { assets: &assets, fuse: true }.compile(&pipeline);
        let program = program.map_err(|error| refused(&error))?;
        Ok(Self {
            packing: Arc::new(runner.packing(view.spec.compress)),
            view: Arc::new(view),
            program: Arc::new(program),
            pipeline: Arc::new(pipeline),
            scratches: Arc::default(),
            buffers: Arc::default(),
            most_buffers: runner.compute.at_once() + SPARE_BUFFERS,
            ends_at_bad: false,
            read_ahead: Arc::default(),
            dataset: Arc::default(),
            listing: Arc::default(),
            runner,
        })
    }

    /// This job for another worker, which shares all that was read of it.
    #[must_use]
    pub fn for_runner(self, runner: Arc<Runner>) -> Self {
        Self { runner, ..self }
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

    /// This job with splits that end before their first bad record.
    #[must_use]
    pub(crate) fn until_bad(&self) -> Self {
        Self { ends_at_bad: true, ..self.clone() }
    }

    #[must_use]
    pub(crate) fn under(&self, lease: &Lease) -> Self {
        let mut context = self.treating(lease.on_error);
        if context.view.spec.compress != lease.compress {
            Arc::make_mut(&mut context.view).spec.compress = lease.compress;
            context.packing = Arc::new(self.runner.packing(lease.compress));
        }
        context
    }

    /// Scratch buffers of an earlier split if there are any, otherwise new ones.
    pub(crate) fn take_scratch(&self) -> ExecutorScratch {
        let idle = self.scratches.lock().pop();
        let mut scratch = idle.unwrap_or_else(|| self.program.scratch());
        if let Some(buffer) = self.buffers.lock().pop() {
            scratch.recycle(buffer);
        }
        scratch.set_codec(self.packing.codec());
        scratch
    }

    /// Returns scratch buffers for reuse.
    pub(crate) fn return_scratch(&self, scratch: ExecutorScratch) {
        self.scratches.lock().push(scratch);
    }

    /// Reuses the buffer of a stored object, unless it is still shared. The worker's memory then stays at
    /// what its first splits took, and the kernel need not clear new pages for each object.
    pub(crate) fn recycle(&self, object: Bytes) {
        let Ok(buffer) = object.try_into_mut() else { return };
        let mut buffers = self.buffers.lock();
        if buffers.len() < self.most_buffers {
            buffers.push(Vec::from(buffer));
        }
    }

    /// The dataset's files as listed at registration.
    pub(crate) async fn listing(&self) -> Result<&Dataset, LeaseError> {
        let read = || async {
            let Runner { objects, config: RunnerConfig { ns, bucket, .. }, .. } = &*self.runner;
            let version = self.view.dataset_version;
            let path = ObjectPath::new(bucket, keys::listing(ns, version));
            read_listing(&**objects, &path, version, &self.pipeline.source().stored_as()).await
        };
        self.listing.get_or_try_init(read).await
    }

    /// Reads the source of a split, composed as in epoch `drawn`: all of it, or
    /// the first portion together with the portions to read after it.
    pub(crate) async fn read_source(
        &self,
        SplitPlace { epoch, position }: SplitPlace,
        drawn: Epoch,
    ) -> Result<(SplitSource, VecDeque<SplitVisit>), LeaseError> {
        let (dataset, plan, splits) = self.dataset().await?;
        let visit = splits.visit_as(plan.copies, self.view.spec.seed, epoch, drawn, position);
        let visit = visit.ok_or_else(|| not_planned(position))?;
        dataset.begin(visit).await
    }

    pub(crate) async fn read_portion(
        &self,
        portion: &SplitVisit,
    ) -> Result<SplitSource, LeaseError> {
        let (dataset, ..) = self.dataset().await?;
        dataset.read(portion).await
    }

    /// The visit's number, which names the cached output of the split.
    pub(crate) async fn visit_number(
        &self,
        SplitPlace { epoch, position }: SplitPlace,
    ) -> Result<u64, LeaseError> {
        let (_, plan, splits) = self.dataset().await?;
        let number = splits.visit_number(plan.copies, self.view.spec.seed, epoch, position);
        number.ok_or_else(|| not_planned(position))
    }

    async fn dataset(&self) -> Result<&(DatasetCache, EpochPlan, SplitPlan), LeaseError> {
        let open = || async {
            // A job that was described while indexing has no plan yet: ask again.
            let plan = match self.view.plan {
                Some(plan) => plan,
                None => self.runner.describe(&self.view.job).await?.plan.ok_or_else(|| {
                    LeaseError::Passing("a split was leased before the job had a plan".into())
                })?,
            };
            let (source, version) = (self.pipeline.source(), self.view.dataset_version);
            let dataset = DatasetCache::open(&self.runner, source, version).await?;
            let splits = dataset.split_plan(plan.split_records, &self.pipeline.dataset_ops())?;
            Ok::<_, LeaseError>((dataset, plan, splits))
        };
        self.dataset.get_or_try_init(open).await
    }
}

fn not_planned(position: Position) -> LeaseError {
    LeaseError::fatal(format!("position {position} is not in the plan"))
}

impl Runner {
    /// Asks the coordinator for the job's current state.
    pub async fn describe(&self, job: &JobName) -> Result<JobView, LeaseError> {
        self.call(DescribeCall::new(job.clone()), CLAIM_PATIENCE).await
    }

    pub(crate) async fn call<C: CoordinatorCall>(
        &self,
        call: C,
        patience: Duration,
    ) -> Result<C::Reply, LeaseError> {
        Ok(call_with_retry(&*self.coordinator, &*self.clock, call, patience).await?)
    }

    /// How a worker keeps frames if `asked`. Chunks that stay on the trainer's host are not compressed.
    fn packing(&self, asked: Compression) -> CodecChoice {
        let asked = if self.config.local { Compression::None } else { asked };
        CodecChoice::new(asked, self.config.shape)
    }

    /// Milliseconds until `deadline_ms`.
    pub(crate) fn remaining_ms(&self, deadline_ms: u64) -> u64 {
        deadline_ms.saturating_sub(self.clock.now_ms())
    }

    /// Reports to the coordinator that the attempt at `lease` is over. Best effort: the lease expires anyway.
    async fn give_back(&self, lease: LeaseRef, error: &LeaseError) {
        let (fatal, record) = match error {
            LeaseError::Fatal { record, .. } => (true, record.clone()),
            _ => (false, None),
        };
        let call = FailCall {
            lease,
            error: error.to_string(),
            fatal,
            record,
            blameless: matches!(error, LeaseError::NoRoom | LeaseError::Surplus),
        };
        if let Err(refusal) = self.call(call, CLAIM_PATIENCE).await {
            tracing::warn!(%refusal, %error, "cannot return the bundle; its lease will expire");
        }
    }
}

impl JobContext {
    /// Claims and works until there is nothing to claim or `deadline_ms` is near. Fails if the job cannot go on, or the
    /// coordinator does not answer.
    pub async fn work(
        &self,
        invocation: &InvocationId,
        deadline_ms: u64,
        sink: &dyn SplitSink,
    ) -> Result<WorkerStopReason, LeaseError> {
        let (mut tail, failure) = (PendingCommits::default(), Arc::default());
        let (split_ms, leave) = (Arc::default(), Arc::default());
        let shift = WorkerLoop { invocation, deadline_ms, split_ms, failure, leave };
        let ended = shift.work(self.clone(), sink, &mut tail).await;
        tail.finish().await;
        let failed = shift.failure.lock().take();
        match failed {
            Some(LeaseError::OutOfTime) => Ok(WorkerStopReason::OutOfTime),
            Some(error) => Err(error),
            None => ended,
        }
    }
}

/// With less time left, in milliseconds, a claim is not worth its write.
const MIN_CLAIM_MS: u64 = 5_000;

/// One worker between its first claim and its end.
struct WorkerLoop<'a> {
    invocation: &'a InvocationId,
    deadline_ms: u64,
    /// Predicted milliseconds per split; 0 before the first.
    split_ms: Arc<AtomicU64>,
    /// Why commits that went on beside another lease end the worker, if they do.
    failure: Arc<Mutex<Option<LeaseError>>>,
    leave: Arc<LeaveOrder>,
}

impl<'a> WorkerLoop<'a> {
    /// Claims and works until there is nothing to claim or no time; `tail` is left to be finished.
    async fn work(
        &self,
        mut context: JobContext,
        sink: &'a dyn SplitSink,
        tail: &mut PendingCommits<'a>,
    ) -> Result<WorkerStopReason, LeaseError> {
        loop {
            if self.leave.is_given() {
                return Ok(WorkerStopReason::Idle(IdleReason::Surplus));
            }
            let (needed, turn) = match sink.claimable() {
                ClaimableBundles::Any => (None, None),
                ClaimableBundles::Needed { place, turn } => (Some(place), Some(turn)),
                ClaimableBundles::Nothing => {
                    return Ok(WorkerStopReason::Idle(IdleReason::WindowFull));
                }
            };
            let split_ms = self.split_ms.load(Ordering::Relaxed);
            if context.runner.remaining_ms(self.deadline_ms) < MIN_CLAIM_MS + split_ms {
                return Ok(WorkerStopReason::OutOfTime);
            }
            // Every claim has a new nonce: it names this attempt's objects and proves ownership.
            let nonce = context.runner.clock.nonce();
            let asked_ms = context.runner.clock.now_ms();
            let reply = tail.beside(self.claim(&context, nonce, needed)).await?;
            drop(turn);
            sink.answered(&reply);
            let lease = match reply {
                ClaimReply::Leased(lease) => lease,
                ClaimReply::Idle(idle) => return Ok(WorkerStopReason::Idle(idle.reason)),
            };
            context = context.under(&lease);
            // A budget ends the lease as a platform would. Its word came later than it was asked for.
            let paid_ms = lease.goes_on_ms.unwrap_or(u64::MAX);
            let deadline_ms = asked_ms.saturating_add(paid_ms).min(self.deadline_ms);
            let Lease { epoch, bundle, attempt, .. } = lease;
            let span =
                tracing::info_span!("lease", job = %context.view.job, epoch, bundle, attempt);
            span.in_scope(|| tracing::info!(splits = lease.todo.len(), "claimed"));
            // A death during a lease with marks is blamed on its split alone.
            if lease.marks() {
                tail.finish().await;
            }
            let run = Arc::new(LeaseExecution {
                context: context.clone(),
                lease,
                nonce,
                deadline_ms,
                split_ms: Arc::clone(&self.split_ms),
                leave: Arc::clone(&self.leave),
                dismissal: sink.dismissal(),
            });
            *tail = self.run(run, sink, std::mem::take(tail)).instrument(span).await;
            if self.failure.lock().is_some() {
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
            remaining_ms: context.runner.remaining_ms(self.deadline_ms),
            split_ms: self.split_ms.load(Ordering::Relaxed),
            local: context.runner.config.local,
            resent: false,
            needed,
            said: None,
        };
        context.runner.call(call, CLAIM_PATIENCE).await
    }

    /// Computes a lease. Returns its commits, which go on, unless it ended with an error or has marks.
    async fn run(
        &self,
        run: Arc<LeaseExecution>,
        sink: &'a dyn SplitSink,
        before: PendingCommits<'a>,
    ) -> PendingCommits<'a> {
        let (computed, committing) = run.work(sink, before).await;
        let is_alone = computed.is_err() || run.lease.marks();
        let (failure, platform_ms) = (Arc::clone(&self.failure), self.deadline_ms);
        let mut tail = PendingCommits::new(async move {
            let error = match committing.await.and(computed) {
                Ok(()) | Err(LeaseError::LeaseLost) => return,
                // The split that had just begun ended.
                Err(LeaseError::OutOfTime) if run.is_dismissed() => LeaseError::Surplus,
                Err(error) => error,
            };
            run.context.runner.give_back(run.reference(), &error).await;
            match error {
                LeaseError::NoRoom | LeaseError::Surplus => {}
                LeaseError::Passing(_) => tracing::warn!(%error, "bundle given back"),
                // The time that was paid for is over: more may be.
                LeaseError::OutOfTime if run.deadline_ms < platform_ms => {}
                error => drop(failure.lock().get_or_insert(error)),
            }
        });
        if is_alone {
            tail.finish().await;
        }
        tail
    }
}
