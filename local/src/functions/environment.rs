//! One execution environment: a process that runs one invocation at a time and is reused.
//!
//! The stages are `idle -> queued -> running -> idle`, and `gone` from any of them. An invocation is queued on a new
//! environment at once and taken when the runtime asks for it, so a cold start and a warm one are the same path.

use std::mem;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::lock;
use super::process::{Exit, Process};
use super::stats::EnvironmentInfo;

/// An invocation of a function.
#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    pub request_id: String,
    pub payload: Bytes,
    /// Client context sent by the caller, base64-decoded.
    pub client_context: Option<String>,
}

/// Outcome of an invocation in its environment.
#[derive(Debug)]
pub(crate) enum Reply {
    Response(Bytes),
    Error(Bytes),
    TooLarge,
    Gone {
        /// Whether the runtime had taken the invocation.
        taken: bool,
        /// Whether the runtime had ever requested one.
        initialised: bool,
        init_error: Option<Bytes>,
        exit: Exit,
    },
}

/// A queued invocation.
#[derive(Debug)]
pub(crate) struct Job {
    pub invocation: Invocation,
    pub timeout: Duration,
    pub taken: oneshot::Sender<()>,
    pub reply: oneshot::Sender<Reply>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Queued(Job),
    Running { request_id: String, reply: oneshot::Sender<Reply> },
    Gone,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    since: Instant,
    /// Time until it requested its first event, once it has.
    init: Option<Duration>,
    init_error: Option<Bytes>,
}

/// An execution environment; see the module's description.
#[derive(Debug)]
pub(crate) struct Environment {
    pub token: String,
    /// ARN of its function.
    pub arn: String,
    started: Instant,
    process: OnceLock<Arc<Process>>,
    /// Cancelled after the process was reaped.
    pub gone: CancellationToken,
    freeze: bool,
    state: Mutex<State>,
    queued: Notify,
}

/// The environment can no longer take the job.
pub(crate) struct Gone;

/// Response to the runtime's poll.
pub(crate) struct Taken {
    pub invocation: Invocation,
    pub deadline_ms: u128,
}

impl Environment {
    /// An environment whose process is about to be started.
    pub(crate) fn new(token: String, arn: String, freeze: bool) -> Self {
        let state =
            State { stage: Stage::Idle, since: Instant::now(), init: None, init_error: None };
        Self {
            token,
            arn,
            started: Instant::now(),
            process: OnceLock::new(),
            gone: CancellationToken::new(),
            freeze,
            state: Mutex::new(state),
            queued: Notify::new(),
        }
    }

    /// Records the started process.
    pub(crate) fn adopt(&self, process: Arc<Process>) {
        // Each environment has one process, so the cell is empty.
        let _ = self.process.set(process);
    }

    /// Kills the process. Returns whether it was alive.
    pub(crate) fn kill(&self) -> bool {
        self.process.get().is_some_and(|p| p.kill())
    }

    /// CPU time of the process, in milliseconds.
    pub(crate) fn cpu_ms(&self) -> u64 {
        self.process.get().map_or(0, |p| p.cpu_ms())
    }

    /// The largest resident set of the process, in bytes.
    pub(crate) fn peak_rss_bytes(&self) -> u64 {
        self.process.get().map_or(0, |p| p.peak_rss_bytes())
    }

    /// Queues an invocation on an idle environment.
    pub(crate) fn assign(&self, job: Job) -> Result<(), Gone> {
        let mut state = lock(&self.state);
        if !matches!(state.stage, Stage::Idle) {
            return Err(Gone);
        }
        state.stage = Stage::Queued(job);
        state.since = Instant::now();
        if let Some(process) = self.process.get().filter(|_| self.freeze) {
            // Under the lock, so that a concurrent poll without work cannot stop the process afterwards.
            process.thaw();
        }
        drop(state);
        self.queued.notify_one();
        Ok(())
    }

    /// Waits for the runtime's next invocation.
    pub(crate) async fn next(&self) -> Taken {
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            self.queued.notified().await;
        }
    }

    fn take(&self) -> Option<Taken> {
        let mut state = lock(&self.state);
        state.init.get_or_insert_with(|| self.started.elapsed());
        match mem::replace(&mut state.stage, Stage::Idle) {
            Stage::Queued(job) => {
                let request_id = job.invocation.request_id.clone();
                state.stage = Stage::Running { request_id, reply: job.reply };
                state.since = Instant::now();
                let _ = job.taken.send(());
                let deadline = SystemTime::now() + job.timeout;
                let deadline = deadline.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                Some(Taken { invocation: job.invocation, deadline_ms: deadline.as_millis() })
            }
            other => {
                let idle = matches!(other, Stage::Idle);
                if let Some(process) = self.process.get().filter(|_| self.freeze && idle) {
                    process.freeze();
                }
                state.stage = other;
                None
            }
        }
    }

    /// Delivers the runtime's reply. Returns false if that invocation is not running here.
    pub(crate) fn answer(&self, request_id: &str, reply: Reply) -> bool {
        let mut state = lock(&self.state);
        if !matches!(&state.stage, Stage::Running { request_id: running, .. } if running == request_id)
        {
            return false;
        }
        let stage = mem::replace(&mut state.stage, Stage::Idle);
        state.since = Instant::now();
        if let Stage::Running { reply: sender, .. } = stage {
            let _ = sender.send(reply);
        }
        true
    }

    /// Records the runtime's initialisation error; it will exit next.
    pub(crate) fn init_failed(&self, error: Bytes) {
        lock(&self.state).init_error = Some(error);
    }

    /// Time from its start to its first request for an event; `None` before that.
    pub(crate) fn init(&self) -> Option<Duration> {
        lock(&self.state).init
    }

    /// Notifies waiters that the process was reaped.
    pub(crate) fn exited(&self, exit: Exit) {
        let mut state = lock(&self.state);
        state.since = Instant::now();
        let (reply, taken) = match mem::replace(&mut state.stage, Stage::Gone) {
            Stage::Queued(job) => (Some(job.reply), false),
            Stage::Running { reply, .. } => (Some(reply), true),
            Stage::Idle | Stage::Gone => (None, false),
        };
        let initialised = state.init.is_some();
        let init_error = state.init_error.take();
        drop(state);
        if let Some(reply) = reply {
            let _ = reply.send(Reply::Gone { taken, initialised, init_error, exit });
        }
        self.gone.cancel();
    }

    /// Idle time; `None` while it is busy.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let state = lock(&self.state);
        matches!(state.stage, Stage::Idle).then(|| state.since.elapsed())
    }

    pub(crate) fn info(&self) -> EnvironmentInfo {
        let state = lock(&self.state);
        let request_id = match &state.stage {
            Stage::Queued(job) => Some(job.invocation.request_id.clone()),
            Stage::Running { request_id, .. } => Some(request_id.clone()),
            Stage::Idle | Stage::Gone => None,
        };
        EnvironmentInfo {
            pid: self.process.get().map_or(0, |p| p.pid()),
            busy: request_id.is_some(),
            request_id,
            since: state.since,
        }
    }
}
