//! Commits the finished splits of one lease: stores them, batches the flushes, and keeps the lease alive.
//!
//! Runs concurrently with the computation, so that storing one split overlaps with computing the next.
//! Flushes are few because a table write costs as much as about 27 ms of compute.

use crate::{
    LeaseError, RunnerConfig, SplitSink,
    lease::{LeaseExecution, PendingCommits, STOP_MARGIN_MS, SplitHandover, SplitName},
    sink::{put, put_cached},
};
use bytes::Bytes;
use gristmill_model::{
    Position, RecordKey, WorkerRemoval,
    splits::{SplitCommit, SplitKind, SplitOutcome, WorkerTimes, deaths::sign_of_life_ms},
    stored::keys,
    wire::{FlushCall, FlushReply, SkippedRecordLocation, WorkProfile},
};
use gristmill_ports::ObjectPath;
use std::{sync::atomic::Ordering, time::Duration};
use tokio::sync::mpsc::Receiver;

/// Shortest time between flushes, so that fast splits share one.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);
/// Longest time between flushes, if splits are shorter, for a worker that may be asked to leave. A flush of each split of a
/// second costs about 2 % of it.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a worker retries a flush before it leaves the bundle to others.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

/// Receives the lease's splits in order until the sender is dropped, then flushes the remaining commits. First come those
/// of the lease `before`: memory holds no more finished splits than one lease may have.
pub(crate) async fn commit_all(
    run: &LeaseExecution,
    sink: &dyn SplitSink,
    before: PendingCommits<'_>,
    finished: Receiver<SplitHandover>,
) -> Result<(), LeaseError> {
    let (splits, runner) = (run.lease.todo.len(), &run.context.runner);
    let asks = match (run.context.view.spec.autoscale && !runner.config.local, run.lease.removal) {
        (false, _) => LeaveInquiry::Never,
        (true, WorkerRemoval::Split) => LeaveInquiry::WithCommits,
        (true, WorkerRemoval::Now) => LeaveInquiry::Always,
    };
    let mut pending = Pending::new(splits, asks, runner.clock.monotonic());
    let committed = match await_commits(run, before, &mut pending).await {
        Ok(()) => commit_each(run, sink, finished, &mut pending).await,
        Err(error) => Err(error),
    };
    if committed.is_err() {
        pending.uncommitted.iter().for_each(|name| sink.discard(name));
    }
    committed
}

/// Waits for the commits of the lease before, and keeps this one meanwhile.
async fn await_commits(
    run: &LeaseExecution,
    mut before: PendingCommits<'_>,
    pending: &mut Pending,
) -> Result<(), LeaseError> {
    let clock = &*run.context.runner.clock;
    let mut finishing = std::pin::pin!(before.finish());
    loop {
        let heartbeat = pending.heartbeat_in(run, clock.monotonic());
        tokio::select! {
            biased;
            () = &mut finishing => return Ok(()),
            () = clock.sleep(heartbeat) => pending.flush(run, None).await?,
        }
    }
}

async fn commit_each(
    run: &LeaseExecution,
    sink: &dyn SplitSink,
    mut finished: Receiver<SplitHandover>,
    pending: &mut Pending,
) -> Result<(), LeaseError> {
    let clock = &*run.context.runner.clock;
    loop {
        let heartbeat = pending.heartbeat_in(run, clock.monotonic());
        let received = tokio::select! {
            biased;
            received = finished.recv() => received,
            () = clock.sleep(heartbeat) => {
                pending.flush(run, None).await?;
                continue;
            }
        };
        match received {
            Some(SplitHandover { mut split, next, committed }) => {
                let started = clock.monotonic();
                let (times, profile) = (split.times, split.profile.take());
                let name = run.name(split.position);
                pending.uncommitted.push(name);
                let commit = store(run, sink, &split, pending).await?;
                run.context.recycle(split.object);
                let now = clock.monotonic();
                let put_ms = crate::lease::millis(now.saturating_sub(started));
                pending.add(commit, WorkerTimes { put_ms, ..times }, profile);
                if next.is_some() || pending.is_due(now) || sink.is_awaited(&name) {
                    pending.flush(run, next).await?;
                }
                // Without marks, no receiver waits for this.
                let _ = committed.send(());
            }
            None => break,
        }
    }
    if pending.commits.is_empty() { Ok(()) } else { pending.flush(run, None).await }
}

/// Stores a split, and renews the lease if that takes long. Fails with [`LeaseError::OutOfTime`] shortly
/// before the platform stops this worker.
async fn store(
    run: &LeaseExecution,
    sink: &dyn SplitSink,
    split: &FinishedSplit,
    pending: &mut Pending,
) -> Result<SplitCommit, LeaseError> {
    let name = run.name(split.position);
    let storing = async {
        set_aside(run, split).await?;
        sink.store(&name, split).await
    };
    let mut storing = std::pin::pin!(storing);
    let clock = &*run.context.runner.clock;
    let left = run.context.runner.remaining_ms(run.deadline_ms).saturating_sub(STOP_MARGIN_MS / 2);
    let mut stopped = clock.sleep(Duration::from_millis(left));
    loop {
        let heartbeat = pending.heartbeat_in(run, clock.monotonic());
        tokio::select! {
            biased;
            stored = &mut storing => return stored,
            () = &mut stopped => return Err(LeaseError::OutOfTime),
            () = clock.sleep(heartbeat) => pending.flush(run, None).await?,
        }
    }
}

/// Puts the side outputs of a split before it counts as done: cached objects for later epochs, a report of
/// the skipped records, and, under the `quarantine` policy, the skipped records themselves.
async fn set_aside(run: &LeaseExecution, split: &FinishedSplit) -> Result<(), LeaseError> {
    let (job, runner) = (&run.context.view.job, &*run.context.runner);
    let RunnerConfig { ns, bucket, .. } = &runner.config;
    for (key, content) in &split.cached {
        // Every worker stores the same bytes for a split below this prefix. The index of several parts comes last.
        if !put_cached(runner, &ObjectPath::new(bucket, key), content).await? {
            break;
        }
    }
    for (record, raw) in &split.quarantined {
        // Every epoch and attempt stores the same object for a record.
        let path = ObjectPath::new(bucket, keys::quarantined(ns, job, *record));
        put(runner, &path, raw, "raw").await?;
    }
    if !split.skipped.is_empty() {
        let lines: Result<Vec<_>, _> = split.skipped.iter().map(serde_json::to_string).collect();
        let lines = lines.map_err(|error| LeaseError::Passing(error.to_string()))?.join("\n");
        let key = keys::skipped(ns, job, run.lease.epoch, split.position);
        put(runner, &ObjectPath::new(bucket, key), &lines.into(), "skipped").await?;
    }
    Ok(())
}

/// When a worker flushes to learn whether it is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LeaveInquiry {
    /// Nobody may ask it to.
    #[default]
    Never,
    /// Once there is something to commit.
    WithCommits,
    /// Also while it computes a split, as that may end at once.
    Always,
}

#[derive(Default)]
struct Pending {
    commits: Vec<SplitCommit>,
    /// Splits that the sink has, or was about to have, and that no flush has committed.
    uncommitted: Vec<SplitName>,
    times: WorkerTimes,
    profile: Option<WorkProfile>,
    /// Time of the last flush, on the runner's clock.
    last_flush: Duration,
    /// Number of commits that are worth a flush before the bundle is complete: a third of it, so that a
    /// bundle of eight costs at most two flushes more than its last.
    worth: usize,
    remaining: usize,
    asks: LeaveInquiry,
}

impl Pending {
    fn new(splits: usize, asks: LeaveInquiry, now: Duration) -> Self {
        let worth = splits.div_ceil(3);
        Self { last_flush: now, worth, remaining: splits, asks, ..Self::default() }
    }

    fn add(&mut self, commit: SplitCommit, times: WorkerTimes, profile: Option<WorkProfile>) {
        if let Some(profile) = profile {
            self.profile.get_or_insert_default().add(&profile);
        }
        self.commits.push(commit);
        self.remaining = self.remaining.saturating_sub(1);
        self.times = self.times.plus(times);
    }

    /// Whether to flush before the bundle is complete; the last flush follows when the sender is dropped.
    fn is_due(&self, now: Duration) -> bool {
        let since = now.saturating_sub(self.last_flush);
        let is_worth = self.commits.len() >= self.worth && since >= FLUSH_INTERVAL;
        self.remaining > 0 && (is_worth || self.asks_in(now).is_some_and(|wait| wait.is_zero()))
    }

    /// Time until the next flush if none comes before: the lease must be renewed, or the worker asks whether it is to
    /// leave. Without a timer, splits of just under a second would be asked for with every second one.
    fn heartbeat_in(&self, run: &LeaseExecution, now: Duration) -> Duration {
        let split_ms = run.split_ms.load(Ordering::Relaxed);
        let silent_ms = sign_of_life_ms(run.worker_ms(split_ms), run.lease.todo.len());
        let silent = (self.last_flush + Duration::from_millis(silent_ms)).saturating_sub(now);
        self.asks_in(now).map_or(silent, |asks| asks.min(silent))
    }

    /// Time until the worker asks whether it is to leave, if it does.
    fn asks_in(&self, now: Duration) -> Option<Duration> {
        let asks = match self.asks {
            LeaveInquiry::Never => false,
            LeaveInquiry::WithCommits => !self.commits.is_empty(),
            LeaveInquiry::Always => true,
        };
        asks.then(|| (self.last_flush + ASK_INTERVAL).saturating_sub(now))
    }

    async fn flush(&mut self, run: &LeaseExecution, next: Option<u8>) -> Result<(), LeaseError> {
        let (splits, runner) = (self.commits.len(), &run.context.runner);
        let call = FlushCall {
            lease: run.reference(),
            commits: std::mem::take(&mut self.commits),
            next,
            remaining_ms: runner.remaining_ms(run.deadline_ms),
            split_ms: run.split_ms.load(Ordering::Relaxed),
            times: std::mem::take(&mut self.times),
            profile: self.profile.take(),
        };
        let FlushReply { leave } = runner.call(call, FLUSH_PATIENCE).await?;
        self.uncommitted.drain(..splits);
        self.last_flush = runner.clock.monotonic();
        if leave {
            run.leave.give(self.last_flush);
        }
        tracing::info!(splits, "committed");
        Ok(())
    }
}

/// A split that was computed and awaits its commit.
#[derive(Debug, Default)]
pub struct FinishedSplit {
    pub position: Position,
    /// The chunk object; empty for an indexed file.
    pub object: Bytes,
    /// Outcome of the split; kind and checksum are set when the object is stored.
    pub outcome: SplitOutcome,
    pub skipped: Vec<SkippedRecordLocation>,
    /// Raw records to store under the `quarantine` policy.
    pub quarantined: Vec<(RecordKey, Bytes)>,
    pub times: WorkerTimes,
    /// True for an indexed file: no object to store; the outcome's `rows` counts the file's records.
    pub indexed: bool,
    /// Prefix of the object's key; none for the job's own prefix.
    pub cache_prefix: Option<String>,
    /// The output at an `autocache` point: keys and objects, in the order in which to put them.
    pub cached: Vec<(String, Bytes)>,
    /// Measurements of the operators, if the lease asks for them.
    pub profile: Option<WorkProfile>,
}

impl FinishedSplit {
    /// The result of indexing a file.
    pub(crate) fn indexed(position: Position, records: u32, source_ms: u64) -> Self {
        Self {
            position,
            outcome: SplitOutcome { rows: records, ..SplitOutcome::default() },
            times: WorkerTimes { source_ms, ..WorkerTimes::default() },
            indexed: true,
            ..Self::default()
        }
    }

    /// The commit of this split, stored as `kind` with checksum `crc32c`.
    pub fn commit(&self, split_index: u8, kind: SplitKind, crc32c: u32) -> SplitCommit {
        SplitCommit { split_index, outcome: SplitOutcome { kind, crc32c, ..self.outcome } }
    }
}
