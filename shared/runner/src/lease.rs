//! Works on one lease: reads sources ahead, computes splits in order, and commits them concurrently. The last commits go
//! on beside the next lease.

use crate::{
    FinishedSplit, JobContext, Runner, SplitSink, WorkerDismissal, committer,
    compute::join,
    indexing::{FormattedFile, IndexStore},
    split::{SplitTask, TimedSplit, from_the_source},
};
use futures::future::BoxFuture;
use gristmill_model::{
    Attempt, BundleIndex, Epoch, ErrorPolicy, Nonce, Position, SkippedRecord, WorkerRemoval,
    splits::{SplitPlace, WorkerTimes},
    wire::{AppliedReply, CacheOrders, Lease, LeaseRef, LeaseWork, MarkCall, RefusalKind},
};
use gristmill_ports::{CallError, ObjectError};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

/// Time reserved at the end of an invocation to store and commit finished splits, in milliseconds.
pub(crate) const STOP_MARGIN_MS: u64 = 1_500;
/// How long a worker retries a mark before it leaves the bundle to others.
const MARK_PATIENCE: Duration = Duration::from_secs(30);

/// A split that had begun so shortly before its worker was asked to leave is dropped: it was not yet at hand when the flush
/// before it was sent.
const JUST_BEGUN: Duration = Duration::from_millis(500);
/// How often a modelled split looks whether its worker is to leave.
const MODELLED_STEP: Duration = Duration::from_millis(100);

/// The order to leave that a flush may bring, for all leases of a worker.
#[derive(Debug, Default)]
pub(crate) struct LeaveOrder {
    /// When it came, in milliseconds of the runner's clock, plus one; 0 if it has not come.
    at_ms: AtomicU64,
}

impl LeaveOrder {
    /// The order comes at `now`; the first one counts.
    pub fn give(&self, now: Duration) {
        let at_ms = millis(now).saturating_add(1);
        let _ = self.at_ms.compare_exchange(0, at_ms, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it has come.
    pub fn is_given(&self) -> bool {
        self.at_ms.load(Ordering::Relaxed) > 0
    }

    /// Whether it ends a split that began at that time.
    fn ends(&self, began: Duration, removal: WorkerRemoval) -> bool {
        let at_ms = self.at_ms.load(Ordering::Relaxed);
        at_ms > 0 && (removal == WorkerRemoval::Now || at_ms <= millis(began + JUST_BEGUN))
    }
}

/// Name of one attempt at one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitName {
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub position: Position,
    /// Index of the position in its bundle.
    pub split_index: u8,
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// A finished split on its way to the committer.
pub(crate) struct SplitHandover {
    pub split: FinishedSplit,
    /// Index in the bundle of the next split, for this split's flush to mark; none without marks.
    pub next: Option<u8>,
    /// Signals that the split is stored, and flushed if `next` is given.
    pub committed: oneshot::Sender<()>,
}

/// A lease in progress.
pub(crate) struct LeaseExecution {
    pub context: JobContext,
    pub lease: Lease,
    pub nonce: Nonce,
    pub deadline_ms: u64,
    /// Predicted milliseconds per split, from the splits already run; 0 before the first.
    pub split_ms: Arc<AtomicU64>,
    pub leave: Arc<LeaveOrder>,
    pub dismissal: WorkerDismissal,
}

impl LeaseExecution {
    /// The lease as calls name it.
    pub fn reference(&self) -> LeaseRef {
        self.lease.reference(&self.context.view.job, self.nonce)
    }

    /// Whether its worker has to leave, so that it ends before its time.
    pub fn is_dismissed(&self) -> bool {
        self.leave.is_given() || self.is_ended_now()
    }

    /// Whether the split at hand ends, because the process that holds its worker wants it no more.
    fn is_ended_now(&self) -> bool {
        self.lease.removal == WorkerRemoval::Now && (self.dismissal)()
    }

    fn place(&self, position: Position) -> SplitPlace {
        SplitPlace::new(self.lease.epoch, position)
    }

    /// Splits that run at a time, at least one.
    pub fn at_once(&self) -> usize {
        // With marks, only one does, so that a death can be blamed on it.
        let most = if self.lease.marks() { 1 } else { self.lease.todo.len() };
        self.context.runner.compute.at_once_of(most)
    }

    /// The worker's part of a time that one of its threads takes, while the others compute too.
    pub fn worker_ms(&self, thread_ms: u64) -> u64 {
        thread_ms / self.at_once() as u64
    }

    /// The name of the chunk of the split at `position`.
    pub fn name(&self, position: Position) -> SplitName {
        let Lease { epoch, bundle, attempt, first, .. } = self.lease;
        let split_index = u8::try_from(position.saturating_sub(first)).unwrap_or(u8::MAX);
        SplitName { epoch, bundle, position, split_index, attempt, nonce: self.nonce }
    }

    /// Computes the lease's splits, until it is complete, lost, or out of time. Returns how that ended, and the commits
    /// that go on; those of the lease before it come first. Commits made before an error stay valid.
    pub async fn work<'a>(
        self: &Arc<Self>,
        sink: &'a dyn SplitSink,
        before: PendingCommits<'a>,
    ) -> (Result<(), LeaseError>, BoxFuture<'a, Result<(), LeaseError>>) {
        // Splits are stored while others are computed: memory for one object more than there are threads.
        let (finished, queue) = mpsc::channel(self.context.runner.compute.at_once());
        let stop = Arc::new(AtomicBool::new(false));
        let (run, stops) = (Arc::clone(self), Arc::clone(&stop));
        let mut committing: BoxFuture<'a, _> = Box::pin(async move {
            let outcome = committer::commit_all(&run, sink, before, queue).await;
            stops.store(outcome.is_err(), Ordering::Relaxed);
            outcome
        });
        let computing = async {
            match self.lease.work {
                LeaseWork::Index => self.index_files(finished).await,
                LeaseWork::Splits => self.run_splits(sink, finished, &stop).await,
            }
        };
        let mut computing = std::pin::pin!(computing);
        tokio::select! {
            biased;
            computed = &mut computing => (computed, committing),
            committed = &mut committing => {
                let computed = computing.await;
                (computed, Box::pin(std::future::ready(committed)))
            }
        }
    }

    async fn index_files(&self, finished: mpsc::Sender<SplitHandover>) -> Result<(), LeaseError> {
        let listing = self.context.listing().await?;
        for &position in &self.lease.todo {
            if self.leave.is_given() {
                return Err(LeaseError::Surplus);
            }
            let file = listing.files.get(position as usize).ok_or_else(|| {
                LeaseError::fatal(format!("file {position} is not in the dataset's listing"))
            })?;
            let member = listing.members.member_of_file(position);
            let source = self.context.pipeline.source().members().nth(member).ok_or_else(|| {
                LeaseError::fatal(format!("file {position} is of no dataset of the pipeline"))
            })?;
            let Runner { objects, config, compute, clock, .. } = &*self.context.runner;
            let started = clock.monotonic();
            let indices = IndexStore {
                objects: &**objects,
                compute: *compute,
                ns: &config.ns,
                bucket: &config.bucket,
                rescues: self.context.view.spec.settings.on_error != ErrorPolicy::Fail,
            };
            let (format, bucket) = (&source.format, listing.bucket.as_str());
            let rows = indices.count(FormattedFile { format, bucket, file }).await?;
            let source_ms = self.millis_since(started);
            let split = FinishedSplit::indexed(position, rows, source_ms);
            let (committed, _) = oneshot::channel();
            if finished.send(SplitHandover { split, next: None, committed }).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs the lease's control, a committed split, and discards the result. A worker that dies here does
    /// not die of the suspect split that follows.
    async fn run_control(self: &Arc<Self>, stop: &Arc<AtomicBool>) -> Result<(), LeaseError> {
        let Some(place) = self.lease.control else { return Ok(()) };
        let source = self.context.read(&CacheOrders::default(), place).await?;
        let (split, _) = self.compute(place, source, stop).await?;
        self.context.recycle(split.object);
        Ok(())
    }

    /// Reads splits ahead, computes as many at a time as there are threads, and hands them over in order.
    async fn run_splits(
        self: &Arc<Self>,
        sink: &dyn SplitSink,
        finished: mpsc::Sender<SplitHandover>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), LeaseError> {
        let orders = Arc::new(self.lease.cache.clone());
        let at_once = self.at_once();
        let mut reads = Reads::new(self, &orders);
        let mut computing = VecDeque::with_capacity(at_once);
        let mut outcome = Ok(());
        self.run_control(stop).await?;
        for (i, &position) in self.lease.todo.iter().enumerate() {
            if self.out_of_time() {
                outcome = Err(LeaseError::OutOfTime);
                break;
            }
            // A worker that waited for room while it holds a lease could wait for its own splits.
            if i > 0 && !sink.goes_on(self.lease.epoch, &self.lease.todo[i..]) {
                outcome = Err(LeaseError::NoRoom);
                break;
            }
            // The flush of each split marks the next one.
            if self.lease.marks() && i == 0 {
                self.mark(position).await?;
            }
            let (source, source_ms) = match reads.next(position).await {
                Ok(read) => read,
                // Splits in computation are still handed over.
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            // Reserve room for the result before computing it. A closed queue means that committing failed;
            // its error is the one to report.
            let Ok(room) = finished.reserve().await else { return Ok(()) };
            if self.leave.is_given() {
                outcome = Err(LeaseError::Surplus);
                break;
            }
            let read_bytes = source.bytes();
            let result = self.compute(self.place(position), source, stop);
            computing.push_back(Computing { i, source_ms, read_bytes, room, result });
            if computing.len() == at_once
                && let Some(first) = computing.pop_front()
                && !self.hand_over(first, &orders, stop).await?
            {
                return Ok(());
            }
        }
        for rest in computing {
            if !self.hand_over(rest, &orders, stop).await? {
                return Ok(());
            }
        }
        outcome
    }

    /// Waits for a split and hands it to the committer; returns whether the committer still accepts splits.
    async fn hand_over(
        self: &Arc<Self>,
        split: Computing<'_, impl Future<Output = Result<TimedSplit, LeaseError>>>,
        orders: &Arc<CacheOrders>,
        stop: &Arc<AtomicBool>,
    ) -> Result<bool, LeaseError> {
        let Computing { i, source_ms, read_bytes, room, result } = split;
        let place = self.place(self.lease.todo[i]);
        let (mut split, took) = match result.await {
            Err(LeaseError::BadCache(why)) if orders.get.is_some() => {
                let source =
                    self.context.read(&from_the_source(orders, place, &why), place).await?;
                self.compute(place, source, stop).await?
            }
            // No cache was read: the split's output cannot be cached, and a retry cannot help.
            Err(LeaseError::BadCache(why)) => return Err(LeaseError::fatal(why)),
            computed => computed?,
        };
        let compute_ms = millis(took);
        self.learn(compute_ms);
        if i > 0 {
            let waited = Duration::from_millis(source_ms);
            self.context.read_ahead.observe(waited, took, read_bytes);
        }
        let compute_ms = self.worker_ms(compute_ms);
        split.times = WorkerTimes { source_ms, compute_ms, put_ms: 0 };
        if let Some(profile) = &mut split.profile {
            profile.source_wait_ms = source_ms;
        }
        let next = self.lease.todo.get(i + 1).filter(|_| self.lease.marks());
        let next = next.map(|&position| self.name(position).split_index);
        let (committed, done) = oneshot::channel();
        room.send(SplitHandover { split, next, committed });
        Ok(next.is_none() || done.await.is_ok())
    }

    /// Starts to compute a split.
    fn compute(
        self: &Arc<Self>,
        place: SplitPlace,
        source: SplitTask,
        stop: &Arc<AtomicBool>,
    ) -> impl Future<Output = Result<TimedSplit, LeaseError>> + use<> {
        let runner = Arc::clone(&self.context.runner);
        let (clock, deadline_ms) = (Arc::clone(&runner.clock), self.deadline_ms);
        let (stop, run, began) = (Arc::clone(stop), Arc::clone(self), clock.monotonic());
        let leaves = move || run.leave.ends(began, run.lease.removal) || run.is_ended_now();
        let leaving = leaves.clone();
        let cancelled = move || {
            stop.load(Ordering::Relaxed)
                || leaving()
                || clock.now_ms() + STOP_MARGIN_MS / 2 > deadline_ms
        };
        let computing = self.context.compute(place, source, Arc::new(cancelled));
        async move {
            let (split, took) = computing.await?;
            let Some(more) = runner.compute.modelled(&*runner.clock) else {
                return Ok((split, took));
            };
            let mut left = more;
            while !left.is_zero() {
                if leaves() {
                    return Err(LeaseError::OutOfTime);
                }
                let step = left.min(MODELLED_STEP);
                runner.clock.sleep(step).await;
                left -= step;
            }
            Ok((split, took + more))
        }
    }

    async fn mark(&self, position: Position) -> Result<(), LeaseError> {
        let SplitName { split_index, .. } = self.name(position);
        let call = MarkCall { lease: self.reference(), split_index };
        self.context.runner.call(call, MARK_PATIENCE).await.map(|AppliedReply {}| ())
    }

    fn out_of_time(&self) -> bool {
        let needed_ms = self.split_ms.load(Ordering::Relaxed) + STOP_MARGIN_MS;
        self.context.runner.remaining_ms(self.deadline_ms) < needed_ms
    }

    /// Updates the predicted time per split: the mean of the old prediction and the last split.
    fn learn(&self, taken_ms: u64) {
        let old_ms = self.split_ms.load(Ordering::Relaxed);
        let predicted_ms = if old_ms == 0 { taken_ms } else { old_ms.midpoint(taken_ms) };
        self.split_ms.store(predicted_ms, Ordering::Relaxed);
    }

    fn millis_since(&self, moment: Duration) -> u64 {
        millis(self.context.runner.clock.monotonic().saturating_sub(moment))
    }
}

pub(crate) fn millis(taken: Duration) -> u64 {
    u64::try_from(taken.as_millis()).unwrap_or(u64::MAX)
}

/// A split in computation, with room reserved at the committer.
struct Computing<'a, F> {
    /// Index among the lease's splits.
    i: usize,
    /// Milliseconds waited for the source, and bytes read.
    source_ms: u64,
    read_bytes: u64,
    room: mpsc::Permit<'a, SplitHandover>,
    result: F,
}

/// The sources of a lease's splits, read ahead of the computation.
struct Reads<'a> {
    run: &'a LeaseExecution,
    orders: Arc<CacheOrders>,
    not_begun: std::slice::Iter<'a, Position>,
    begun: VecDeque<JoinHandle<Result<SplitTask, LeaseError>>>,
}

impl<'a> Reads<'a> {
    fn new(run: &'a LeaseExecution, orders: &Arc<CacheOrders>) -> Self {
        let (orders, not_begun) = (Arc::clone(orders), run.lease.todo.iter());
        Reads { run, orders, not_begun, begun: VecDeque::new() }
    }

    /// Returns the source of the split at `position`, the next in the lease's order, with the milliseconds
    /// waited for it, and starts to read further ones.
    async fn next(&mut self, position: Position) -> Result<(SplitTask, u64), LeaseError> {
        let LeaseExecution { context, lease, .. } = self.run;
        let began = context.runner.clock.monotonic();
        let source = match self.begun.pop_front() {
            Some(reading) => join(reading).await?,
            None => {
                self.not_begun.next();
                context.read(&self.orders, self.run.place(position)).await?
            }
        };
        let waited_ms = self.run.millis_since(began);
        // With marks, a death is blamed on the marked split, so no other may be read meanwhile.
        let ahead = if lease.marks() { 0 } else { context.read_ahead.splits() };
        while self.begun.len() < ahead
            && let Some(&next) = self.not_begun.next()
        {
            let (context, place) = (context.clone(), self.run.place(next));
            let orders = Arc::clone(&self.orders);
            let reading = async move { context.read(&orders, place).await };
            self.begun.push_back(tokio::spawn(reading));
        }
        Ok((source, waited_ms))
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.begun.iter().for_each(JoinHandle::abort);
    }
}

/// The commits of a lease whose splits are computed. Storing and flushing them takes requests and no CPU, so the next
/// lease is claimed and computed meanwhile.
#[derive(Default)]
pub(crate) struct PendingCommits<'a>(Option<BoxFuture<'a, ()>>);

impl<'a> PendingCommits<'a> {
    /// The commits that go on.
    pub fn new(commits: impl Future<Output = ()> + Send + 'a) -> Self {
        Self(Some(Box::pin(commits)))
    }

    /// Waits for the commits.
    pub async fn finish(&mut self) {
        if let Some(commits) = &mut self.0 {
            commits.await;
            self.0 = None;
        }
    }

    /// Waits for `other`, while the commits go on.
    pub async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        tokio::select! {
            biased;
            done = &mut other => return done,
            () = self.finish() => {}
        }
        other.await
    }
}

/// Why a lease, or one of its splits, is given up.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// Another worker owns the bundle now: drop it and claim again.
    #[error("the lease was lost")]
    LeaseLost,
    /// The platform stops this worker soon: give the bundle back.
    #[error("out of time")]
    OutOfTime,
    /// There is no room for more results: give the rest of the bundle back, without a failure.
    #[error("no room for more results")]
    NoRoom,
    /// The job has more workers than it wants: give the rest of the bundle back, without a failure, and end.
    #[error("more workers than the job wants")]
    Surplus,
    /// A temporary fault: give the bundle back, because another attempt may succeed.
    #[error("{0}")]
    Passing(String),
    /// A cached split is damaged: compute it from the source.
    #[error("{0}")]
    BadCache(String),
    /// A retry cannot help: the job fails with this message.
    #[error("{message}")]
    Fatal { message: String, record: Option<SkippedRecord> },
}

impl LeaseError {
    /// An error that fails the job.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::Fatal { message: message.into(), record: None }
    }
}

impl From<ObjectError> for LeaseError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Unavailable(_) | ObjectError::Full(_) | ObjectError::Denied(_) => {
                Self::Passing(error.to_string())
            }
            ObjectError::Changed(_) => Self::fatal(format!(
                "{error}: the job was registered for the old content; restore the file or start a new job"
            )),
            ObjectError::NotFound(_) | ObjectError::Rejected(_) => Self::fatal(error.to_string()),
        }
    }
}

impl From<CallError> for LeaseError {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::Refused(refusal) if refusal.kind == RefusalKind::LeaseLost => {
                Self::LeaseLost
            }
            // The worker cannot report the error: its lease expires, and another worker claims the bundle.
            error => Self::Passing(error.to_string()),
        }
    }
}

#[cfg(test)]
mod lease_tail_tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn the_split_at_hand_is_finished_and_one_that_has_just_begun_is_dropped() {
        let order = LeaveOrder::default();
        let ended = |order: &LeaveOrder| {
            [0, 9_499, 9_500, 10_000, 11_000]
                .map(|ms| order.ends(Duration::from_millis(ms), WorkerRemoval::Split))
        };
        assert_eq!((order.is_given(), ended(&order)), (false, [false; 5]));
        order.give(Duration::from_secs(10));
        order.give(Duration::from_secs(20));
        assert_eq!((order.is_given(), ended(&order)), (true, [false, false, false, true, true]));
    }

    #[tokio::test]
    async fn a_claim_does_not_wait_for_commits() {
        let (_never, commits) = oneshot::channel::<()>();
        let mut tail = PendingCommits::new(async { drop(commits.await) });
        assert_eq!(tail.beside(async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn commits_go_on_while_a_claim_waits() {
        let (committed, seen) = oneshot::channel();
        let mut tail = PendingCommits::new(async { committed.send(()).unwrap() });
        tail.beside(async { seen.await.unwrap() }).await;
        tail.finish().await;
    }

    #[tokio::test]
    async fn commits_that_a_claim_left_are_finished() {
        let (permit, permitted) = oneshot::channel::<()>();
        let (committed, mut seen) = oneshot::channel();
        let mut tail = PendingCommits::new(async {
            permitted.await.unwrap();
            committed.send(()).unwrap();
        });
        tail.beside(async {}).await;
        assert!(seen.try_recv().is_err());
        permit.send(()).unwrap();
        tail.finish().await;
        seen.try_recv().unwrap();
    }
}
