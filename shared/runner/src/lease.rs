//! Working on one lease: sources are read ahead, splits run one after another, commits follow
//! behind.

use crate::{
    FinishedSplit, JobContext, RunError, Runner, SplitRead, committer, compute::join,
    indexing::ensure_index, run_split, split::from_the_source,
};
use async_trait::async_trait;
use gristmill_ports::call_with_retry;
use gristmill_protocol::{Call, Commit, Lease, Mark, Reply, Work, WorkerCost};
use gristmill_types::{Attempt, BundleIndex, Epoch, Nonce, Position};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// Time kept back at the end of an invocation for storing and committing what is done.
const STOP_MARGIN_MS: u64 = 1_500;
/// How long a worker insists on a mark before it gives the bundle up to others.
const MARK_PATIENCE: Duration = Duration::from_secs(30);

/// What names one attempt at one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitName {
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub position: Position,
    /// Index of the position in its bundle.
    pub index: u8,
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// A finished split on its way to the committer.
pub(crate) struct Handover {
    pub split: FinishedSplit,
    /// Where splits are marked: the next one, to be marked by the flush of this one.
    pub next: Option<u8>,
    /// Told when the split is stored, and flushed if `next` is given.
    pub committed: oneshot::Sender<()>,
}

/// Where finished splits go.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Whether another bundle may be claimed.
    fn has_room(&self) -> bool {
        true
    }

    /// Makes the split's result last as long as its commit promises, and says what to commit.
    async fn store(&self, name: &SplitName, split: &FinishedSplit) -> Result<Commit, RunError>;
}

/// One lease being worked on.
pub(crate) struct LeaseRun<'a> {
    pub runner: &'a Runner,
    pub context: &'a JobContext,
    pub lease: &'a Lease,
    pub nonce: Nonce,
    pub deadline_ms: u64,
    /// Predicted time of one split, from those already run.
    pub split_ms: &'a AtomicU64,
}

impl LeaseRun<'_> {
    pub fn name(&self, position: Position) -> SplitName {
        let Lease { epoch, bundle, attempt, first, .. } = *self.lease;
        let index = u8::try_from(position.saturating_sub(first)).unwrap_or(u8::MAX);
        SplitName { epoch, bundle, position, index, attempt, nonce: self.nonce }
    }

    /// Works until the lease is committed, lost or out of time. What is committed stays so.
    pub async fn work(&self, sink: &dyn Sink) -> Result<(), RunError> {
        // One split is stored while the next one runs: memory for two objects.
        let (finished, queue) = mpsc::channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let committing = async {
            let outcome = committer::commit_all(self, sink, queue).await;
            stop.store(outcome.is_err(), Ordering::Relaxed);
            outcome
        };
        let computing = async {
            match self.lease.work {
                Work::Index => self.index_files(finished).await,
                Work::Splits => self.run_splits(finished, &stop).await,
            }
        };
        let (committed, computed) = tokio::join!(committing, computing);
        committed.and(computed)
    }

    async fn index_files(&self, finished: mpsc::Sender<Handover>) -> Result<(), RunError> {
        let listing = self.context.listing(self.runner).await?;
        for &position in &self.lease.todo {
            let file = listing.files.get(position as usize).ok_or_else(|| {
                RunError::fatal(format!("file {position} is not in the dataset's listing"))
            })?;
            let member = listing.members.of_file(position);
            let source = self.context.source.members().nth(member).ok_or_else(|| {
                RunError::fatal(format!("file {position} is of no dataset of the pipeline"))
            })?;
            let started = self.runner.clock.monotonic();
            let Runner { objects, config, .. } = self.runner;
            let rows = ensure_index(
                &**objects,
                self.runner.compute,
                source.format,
                &config.ns,
                &config.bucket,
                &listing.bucket,
                file,
            )
            .await?;
            let source_ms = self.millis_since(started);
            let split = FinishedSplit::indexed(position, rows, source_ms);
            let (committed, _) = oneshot::channel();
            if finished.send(Handover { split, next: None, committed }).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn run_splits(
        &self,
        finished: mpsc::Sender<Handover>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), RunError> {
        let epoch = self.lease.epoch;
        let orders = Arc::new(self.lease.cache.clone());
        let mut ahead = None;
        for (i, &position) in self.lease.todo.iter().enumerate() {
            if self.out_of_time() {
                return Err(RunError::OutOfTime);
            }
            // Later splits are marked by the flush of the one before.
            if self.lease.marks() && i == 0 {
                self.mark(position).await?;
            }
            let began = self.runner.clock.monotonic();
            let source = match ahead.take() {
                Some(reading) => join(reading).await?,
                None => self.context.read(self.runner, &orders, epoch, position).await?,
            };
            let source_ms = self.millis_since(began);
            if let Some(&next) = self.lease.todo.get(i + 1) {
                let (context, runner) = (self.context.clone(), self.runner.clone());
                let orders = Arc::clone(&orders);
                ahead =
                    Some(tokio::spawn(
                        async move { context.read(&runner, &orders, epoch, next).await },
                    ));
            }
            // Room for the result before there is one. A closed queue means that committing failed;
            // its error is the one to report.
            let Ok(room) = finished.reserve().await else { return Ok(()) };
            let started = self.runner.clock.monotonic();
            let mut split = match self.compute(position, source, stop).await {
                Err(RunError::BadCache(why)) if orders.get.is_some() => {
                    tracing::warn!(position, why, "what was cached is damaged: computed");
                    let orders = from_the_source(&orders);
                    let source = self.context.read(self.runner, &orders, epoch, position).await?;
                    self.compute(position, source, stop).await?
                }
                // Nothing was read: it does not fit, and never will.
                Err(RunError::BadCache(why)) => return Err(RunError::fatal(why)),
                computed => computed?,
            };
            let compute_ms = self.millis_since(started);
            self.learn(compute_ms);
            split.cost = WorkerCost { source_ms, compute_ms, put_ms: 0 };
            if let Some(profile) = &mut split.profile {
                profile.source_wait_ms = u64::from(source_ms);
            }
            let next = self.lease.todo.get(i + 1).filter(|_| self.lease.marks());
            let next = next.map(|&position| self.name(position).index);
            let (committed, done) = oneshot::channel();
            room.send(Handover { split, next, committed });
            if next.is_some() && done.await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn compute(
        &self,
        position: Position,
        source: SplitRead,
        stop: &Arc<AtomicBool>,
    ) -> Result<FinishedSplit, RunError> {
        let (context, epoch, stop) = (self.context.clone(), self.lease.epoch, Arc::clone(stop));
        let (clock, deadline_ms) = (Arc::clone(&self.runner.clock), self.deadline_ms);
        let cancelled = move || {
            stop.load(Ordering::Relaxed) || clock.now_ms() + STOP_MARGIN_MS / 2 > deadline_ms
        };
        let work = move || run_split(&context, epoch, position, &source, &cancelled);
        self.runner.compute.run(work).await
    }

    async fn mark(&self, position: Position) -> Result<(), RunError> {
        let SplitName { epoch, bundle, index, attempt, nonce, .. } = self.name(position);
        let job = self.context.view.job.clone();
        let call = Call::Mark(Mark { job, epoch, bundle, attempt, nonce, index });
        let runner = self.runner;
        match call_with_retry(&*runner.coordinator, &*runner.clock, &call, MARK_PATIENCE).await? {
            Reply::Applied => Ok(()),
            other => Err(RunError::unexpected(&other)),
        }
    }

    fn out_of_time(&self) -> bool {
        let needed_ms = self.split_ms.load(Ordering::Relaxed) + STOP_MARGIN_MS;
        self.runner.remaining_ms(self.deadline_ms) < needed_ms
    }

    /// Predicts the next split from the last ones: half old, half new.
    fn learn(&self, taken_ms: u32) {
        let taken_ms = u64::from(taken_ms);
        let old_ms = self.split_ms.load(Ordering::Relaxed);
        let predicted_ms = if old_ms == 0 { taken_ms } else { old_ms.midpoint(taken_ms) };
        self.split_ms.store(predicted_ms, Ordering::Relaxed);
    }

    fn millis_since(&self, moment: Duration) -> u32 {
        let taken = self.runner.clock.monotonic().saturating_sub(moment);
        u32::try_from(taken.as_millis()).unwrap_or(u32::MAX)
    }
}
