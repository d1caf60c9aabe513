//! The worker processes: one event at a time each, kept warm between events.
//!
//! A worker ends when its standard input does, so none outlives the service. Events in progress are also files below the
//! state directory: the next service reports their workers as gone at once.

mod process;
#[cfg(test)]
mod tests;

use crate::invoking::{LambdaImitation, WorkerPlace};
use gristmill_host::{WorkerOrder, WorkerSetup, process_cpu_ms, write_private};
use gristmill_model::wire::WorkerEvent;
use gristmill_ports::{Clock as _, InvokeOutcome, SystemClock};
use process::WorkerProcess;
pub(crate) use process::{FILE_BYTES_MAX, LogFile};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};

/// Longest work for one event, as on Lambda.
const EVENT_TIME: Duration = Duration::from_secs(15 * 60);
/// Time for a worker to end by itself at its deadline.
const GRACE: Duration = Duration::from_secs(10);
/// How long an idle worker stays: workers of a paused job serve the next one.
const IDLE_TIME: Duration = Duration::from_secs(120);

/// How to start a worker process.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Most processes at a time.
    pub max: u32,
}

/// An event whose worker failed.
#[derive(Debug)]
pub(crate) struct FailedOrder {
    pub order: WorkerOrder,
    pub error: String,
    pub cause: FailureCause,
}

/// Why an event failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// Its worker died, or gave up.
    WorkerFailed,
    /// The worker died with the service before this one.
    ServiceEnded,
    /// It found no environment while it could wait.
    EventExpired,
}

/// An event for a process, and the environment of the imitated Lambda that it holds.
struct PooledOrder {
    order: WorkerOrder,
    place: Option<WorkerPlace>,
}

/// Workers in the pool at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolStatus {
    pub busy: u32,
    pub idle: u32,
    pub cpu_ms: u64,
}

/// The pool; clones share it.
#[derive(Clone)]
pub(crate) struct WorkerPool(Arc<Pool>);

struct Pool {
    program: WorkerProgram,
    /// The first line to each worker.
    setup: String,
    log: Arc<LogFile>,
    /// Files of the events in progress; none for a service that keeps nothing.
    running: Option<PathBuf>,
    failed: mpsc::UnboundedSender<FailedOrder>,
    lambda: Option<LambdaImitation>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tasks: JoinSet<()>,
    /// Workers without an event, the one that ran last at the end.
    idle: Vec<mpsc::Sender<PooledOrder>>,
    /// Each process by its number: whether it works, and its CPU when it was last seen.
    processes: BTreeMap<u32, Seen>,
    /// CPU of the processes that have ended.
    ended_cpu_ms: u64,
    /// Workers that are being started or run.
    workers: u32,
    killed: usize,
    trouble: Option<String>,
    is_closed: bool,
}

#[derive(Default)]
struct Seen {
    is_busy: bool,
    cpu_ms: u64,
}

impl WorkerPool {
    /// A pool whose workers get `setup`. `failed` receives the events whose workers fail; those that an earlier service
    /// left below `running` are sent at once. Fails if that folder cannot be used.
    pub fn new(
        program: WorkerProgram,
        setup: &WorkerSetup,
        log: LogFile,
        running: Option<PathBuf>,
        failed: mpsc::UnboundedSender<FailedOrder>,
        lambda: Option<LambdaImitation>,
    ) -> std::io::Result<Self> {
        if let Some(running) = &running {
            for left in read_left(running)? {
                let error = "the service ended while it worked".to_owned();
                report(&failed, left, error, FailureCause::ServiceEnded);
            }
        }
        let setup = serde_json::to_string(setup)?;
        let (state, log) = (Mutex::default(), Arc::new(log));
        let pool = Pool { program, setup, log, running, failed, lambda, state };
        Ok(Self(Arc::new(pool)))
    }

    /// Starts a worker for `event`, unless there are too many. As on Lambda, the event waits for an environment instead,
    /// or expires.
    pub fn invoke(&self, event: WorkerEvent) -> InvokeOutcome {
        let Some(lambda) = self.0.lambda.clone() else { return self.start(event, None) };
        let mut state = self.0.lock();
        if state.is_closed {
            return InvokeOutcome::Throttled;
        }
        let pool = self.clone();
        state.tasks.spawn(async move {
            let start = |place| pool.start(event.clone(), Some(place)) == InvokeOutcome::Accepted;
            if !lambda.wait_as_event(start).await {
                pool.0.expire(event);
            }
        });
        InvokeOutcome::Accepted
    }

    fn start(&self, event: WorkerEvent, place: Option<WorkerPlace>) -> InvokeOutcome {
        let now_ms = SystemClock.now_ms();
        let deadline_ms = now_ms + u64::try_from(EVENT_TIME.as_millis()).unwrap_or(u64::MAX);
        let order = WorkerOrder { event, request: SystemClock.nonce().to_string(), deadline_ms };
        self.0.note(&order);
        let mut order = PooledOrder { order, place };
        let mut state = self.0.lock();
        while let Some(idle) = state.idle.pop() {
            match idle.try_send(order) {
                Ok(()) => return InvokeOutcome::Accepted,
                // It has just ended.
                Err(back) => order = back.into_inner(),
            }
        }
        if state.workers >= self.0.program.max || state.is_closed {
            self.0.forget(&order.order);
            return InvokeOutcome::Throttled;
        }
        state.workers += 1;
        let pool = Arc::clone(&self.0);
        state.tasks.spawn(async move {
            Arc::clone(&pool).work(order).await;
            pool.lock().workers -= 1;
        });
        while state.tasks.try_join_next().is_some() {}
        InvokeOutcome::Accepted
    }

    /// Kills a busy worker, each time another one; returns its process.
    pub fn kill_one(&self) -> Option<u32> {
        let mut state = self.0.lock();
        let busy: Vec<u32> =
            state.processes.iter().filter(|(_, seen)| seen.is_busy).map(|(pid, _)| *pid).collect();
        let pid = *busy.get(state.killed % busy.len().max(1))?;
        state.killed += 1;
        let process = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
        rustix::process::kill_process(process, rustix::process::Signal::KILL).ok()?;
        Some(pid)
    }

    pub fn status(&self) -> PoolStatus {
        let mut state = self.0.lock();
        let mut status = PoolStatus { cpu_ms: state.ended_cpu_ms, ..PoolStatus::default() };
        for (pid, seen) in &mut state.processes {
            seen.cpu_ms = seen.cpu_ms.max(process_cpu_ms(*pid));
            status.cpu_ms += seen.cpu_ms;
            if seen.is_busy {
                status.busy += 1;
            } else {
                status.idle += 1;
            }
        }
        status
    }

    /// Why workers cannot go on at present, as one of them said last.
    pub fn trouble(&self) -> Option<String> {
        self.0.lock().trouble.clone()
    }

    /// Ends all workers. Their events stay noted for the next service.
    pub async fn close(&self) {
        let mut tasks = {
            let mut state = self.0.lock();
            state.is_closed = true;
            std::mem::take(&mut state.tasks)
        };
        // Dropping a process kills it.
        tasks.shutdown().await;
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a process until it dies, or has been idle for long.
    async fn work(self: Arc<Self>, first: PooledOrder) {
        let mut process = match WorkerProcess::start(&self.program, &self.setup, &self.log) {
            Ok(process) => process,
            Err(error) => {
                let error = format!("cannot start {}: {error}", self.program.program.display());
                return self.fail(first.order, error);
            }
        };
        let pid = process.pid;
        self.lock().processes.insert(pid, Seen { is_busy: true, cpu_ms: 0 });
        let mut next = Some(first);
        while let Some(PooledOrder { order, place }) = next.take() {
            let tell = |trouble| self.lock().trouble = trouble;
            let outcome = process.run(&order, EVENT_TIME + GRACE, tell).await;
            drop(place);
            let is_alive = !matches!(outcome, Err(process::WorkerProcessError::Died(_)));
            match outcome {
                Ok(()) => self.forget(&order),
                Err(error) => self.fail(order, error.to_string()),
            }
            if !is_alive {
                break;
            }
            next = self.rest(&mut process).await;
        }
        let mut state = self.lock();
        let seen = state.processes.remove(&pid).unwrap_or_default();
        state.ended_cpu_ms += seen.cpu_ms.max(process_cpu_ms(pid));
    }

    /// Waits for the next event; none if there is none for long, or the idle process dies.
    async fn rest(&self, process: &mut WorkerProcess) -> Option<PooledOrder> {
        let (sender, mut orders) = mpsc::channel(1);
        let pid = process.pid;
        {
            let mut state = self.lock();
            if let Some(seen) = state.processes.get_mut(&pid) {
                (seen.is_busy, seen.cpu_ms) = (false, process_cpu_ms(pid));
            }
            state.idle.push(sender);
        }
        let next = tokio::select! {
            biased;
            next = orders.recv() => next,
            () = tokio::time::sleep(IDLE_TIME) => None,
            () = process.wait_for_end() => None,
        };
        // From here on, no event is sent; one that was sent before is taken.
        let mut state = self.lock();
        orders.close();
        state.idle.retain(|idle| !idle.is_closed());
        let next = next.or_else(|| orders.try_recv().ok());
        if let Some(seen) = state.processes.get_mut(&pid) {
            seen.is_busy = next.is_some();
        }
        next
    }

    fn fail(&self, order: WorkerOrder, error: String) {
        self.log.append(
            format!("worker {} of {}: {error}\n", order.event.worker, order.event.job).as_bytes(),
        );
        self.forget(&order);
        report(&self.failed, order, error, FailureCause::WorkerFailed);
    }

    /// Reports an event that found no environment, as the destination of failed events does.
    fn expire(&self, event: WorkerEvent) {
        let request = format!("expired-{}", SystemClock.nonce());
        let order = WorkerOrder { event, request, deadline_ms: 0 };
        let error = "no environment was free while the event could wait".to_owned();
        report(&self.failed, order, error, FailureCause::EventExpired);
    }

    fn file_of(&self, order: &WorkerOrder) -> Option<PathBuf> {
        Some(self.running.as_ref()?.join(&order.request))
    }

    /// Notes an event in progress. Without the note, as on a full disk, its worker's end is noticed by its silence.
    fn note(&self, order: &WorkerOrder) {
        let Some(path) = self.file_of(order) else { return };
        let written = serde_json::to_vec(order).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|text| write_private(&path, &text)) {
            tracing::warn!(%error, "an event is not noted");
        }
    }

    fn forget(&self, order: &WorkerOrder) {
        if let Some(path) = self.file_of(order) {
            // It is absent if it could not be written.
            let _ = fs::remove_file(path);
        }
    }
}

fn report(
    failed: &mpsc::UnboundedSender<FailedOrder>,
    order: WorkerOrder,
    error: String,
    cause: FailureCause,
) {
    // The receiver lives as long as the service.
    let _ = failed.send(FailedOrder { order, error, cause });
}

/// The events that a service before left in progress; removes their files.
fn read_left(running: &Path) -> std::io::Result<Vec<WorkerOrder>> {
    /// Far longer than any event.
    const MAX_BYTES: u64 = 64 << 10;
    gristmill_host::private_dir(running).map_err(std::io::Error::other)?;
    let mut left = Vec::new();
    for entry in fs::read_dir(running)? {
        let path = entry?.path();
        if let Ok(text) = gristmill_host::read_private(&path, MAX_BYTES)
            && let Ok(order) = serde_json::from_slice(&text)
        {
            left.push(order);
        }
        fs::remove_file(path)?;
    }
    Ok(left)
}
