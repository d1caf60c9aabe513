//! One function: its environments, its concurrency, and the course of an invocation.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::command::command;
use super::config::FunctionConfig;
use super::environment::{Environment, Invocation, Job, Reply};
use super::events::EventQueue;
use super::host::Host;
use super::lock;
use super::outcome::{Failure, FailureKind, Outcome};
use super::process::{self, Exit};
use super::stats::{Counters, FunctionStats, bump};
use crate::ids;

/// Retries with warm environments that turn out to be dead, before a new one is started.
const STALE_LIMIT: u32 = 4;

/// A configured function and its runtime state.
pub(crate) struct Function {
    pub config: FunctionConfig,
    pub arn: String,
    pub counters: Counters,
    pub queue: EventQueue,
    log: Option<File>,
    running: AtomicU32,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    all: Vec<Arc<Environment>>,
    /// Idle environments, the most recently used last.
    idle: Vec<Arc<Environment>>,
}

/// Limit that throttled an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Throttle {
    Function,
    Account,
}

/// The right to run one invocation; released when dropped.
pub(crate) struct Permit {
    host: Arc<Host>,
    function: Arc<Function>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.function.running.fetch_sub(1, Relaxed);
        if self.function.config.reserved_concurrency.is_none() {
            self.host.unreserved.fetch_sub(1, Relaxed);
        }
        self.host.running.fetch_sub(1, Relaxed);
        self.host.freed.notify_waiters();
    }
}

impl Function {
    pub(crate) fn new(config: FunctionConfig, arn: String, log: Option<File>) -> Self {
        Self {
            config,
            arn,
            counters: Counters::default(),
            queue: EventQueue::default(),
            log,
            running: AtomicU32::new(0),
            pool: Mutex::default(),
        }
    }

    /// Acquires concurrency for one invocation.
    pub(crate) fn admit(self: &Arc<Self>, host: &Arc<Host>) -> Result<Permit, Throttle> {
        let reserved = self.config.reserved_concurrency;
        let limit = reserved.unwrap_or(u32::MAX);
        let below = |limit: u32| move |n: u32| (n < limit).then_some(n + 1);
        let before = self
            .running
            .fetch_update(Relaxed, Relaxed, below(limit))
            .map_err(|_| Throttle::Function)?;
        // Reserved concurrency is exclusive; the rest is shared.
        if reserved.is_none()
            && host.unreserved.fetch_update(Relaxed, Relaxed, below(host.unreserved_limit)).is_err()
        {
            self.running.fetch_sub(1, Relaxed);
            return Err(Throttle::Account);
        }
        host.running.fetch_add(1, Relaxed);
        self.counters.concurrent_max.fetch_max(u64::from(before) + 1, Relaxed);
        Ok(Permit { host: Arc::clone(host), function: Arc::clone(self) })
    }

    /// Runs one invocation to its end and counts it.
    pub(crate) async fn run(permit: Permit, invocation: Invocation) -> Outcome {
        let function = Arc::clone(&permit.function);
        let outcome = function.attempt(&permit.host, &invocation).await;
        if let Outcome::Failed(failure) = &outcome {
            let counters = &function.counters;
            bump(match failure.kind {
                FailureKind::Handler | FailureKind::ResponseTooLarge => &counters.errors,
                FailureKind::Crash => &counters.crashes,
                FailureKind::Timeout => &counters.timeouts,
                FailureKind::Init => &counters.init_failures,
            });
            function.note(&String::from_utf8_lossy(&failure.payload));
        }
        outcome
    }

    async fn attempt(self: &Arc<Self>, host: &Arc<Host>, invocation: &Invocation) -> Outcome {
        let request_id = &invocation.request_id;
        let mut stale = 0;
        loop {
            let warm = if stale < STALE_LIMIT { lock(&self.pool).idle.pop() } else { None };
            let cold = warm.is_none();
            let environment = match warm {
                Some(environment) => environment,
                None => match self.start(host).await {
                    Ok(environment) => environment,
                    Err(error) => {
                        let command = self.config.command.display();
                        let reason = format!("cannot start {command}: {error}");
                        return Outcome::Failed(Failure::init(request_id, &reason));
                    }
                },
            };
            match self.run_in(host, &environment, invocation, cold).await {
                Some(outcome) => return outcome,
                None => stale += 1,
            }
        }
    }

    /// `None` if the environment was gone before it took the invocation, which then never ran.
    async fn run_in(
        &self,
        host: &Host,
        environment: &Arc<Environment>,
        invocation: &Invocation,
        cold: bool,
    ) -> Option<Outcome> {
        let timeout = self.config.timeout;
        let (taken_tx, taken_rx) = oneshot::channel();
        let (reply_tx, reply_rx) = oneshot::channel();
        let job = Job { invocation: invocation.clone(), timeout, taken: taken_tx, reply: reply_tx };
        let warm = environment.init().is_some();
        environment.assign(job).ok()?;
        let patience = if warm { timeout } else { host.settings.init_timeout };
        if tokio::time::timeout(patience, taken_rx).await.is_err() {
            self.end(environment).await;
            let failure = if warm {
                Failure::timed_out(&invocation.request_id, timeout)
            } else {
                let reason =
                    format!("the function asked for no event within {} s", patience.as_secs_f64());
                Failure::init(&invocation.request_id, &reason)
            };
            return Some(Outcome::Failed(failure));
        }
        if let Some(init) = environment.init().filter(|_| cold) {
            self.report_init(init);
        }
        let Ok(reply) = tokio::time::timeout(timeout, reply_rx).await else {
            self.end(environment).await;
            return Some(Outcome::Failed(Failure::timed_out(&invocation.request_id, timeout)));
        };
        self.settle(environment, &invocation.request_id, reply.ok())
    }

    fn settle(
        &self,
        environment: &Arc<Environment>,
        id: &str,
        reply: Option<Reply>,
    ) -> Option<Outcome> {
        Some(match reply {
            Some(Reply::Response(payload)) => {
                self.park(environment);
                Outcome::Response(payload)
            }
            Some(Reply::Error(payload)) => {
                self.park(environment);
                Outcome::Failed(Failure { kind: FailureKind::Handler, payload })
            }
            Some(Reply::TooLarge) => {
                self.park(environment);
                let cap = super::runtime_api::MAX_RESPONSE_BYTES;
                let message = format!("the response is longer than the {cap} bytes allowed");
                let kind = FailureKind::ResponseTooLarge;
                Outcome::Failed(Failure::new(kind, "Function.ResponseSizeTooLarge", &message))
            }
            Some(Reply::Gone { taken: false, initialised: true, .. }) => return None,
            Some(Reply::Gone { init_error: Some(payload), initialised: false, .. }) => {
                Outcome::Failed(Failure { kind: FailureKind::Init, payload })
            }
            Some(Reply::Gone { initialised: false, exit, .. }) => {
                Outcome::Failed(Failure::exited(FailureKind::Init, id, exit))
            }
            Some(Reply::Gone { exit, .. }) => {
                Outcome::Failed(Failure::exited(FailureKind::Crash, id, exit))
            }
            None => Outcome::Failed(Failure::exited(FailureKind::Crash, id, Exit::Unknown)),
        })
    }

    async fn end(&self, environment: &Environment) {
        self.kill(environment);
        // A process in an uninterruptible call dies when the call returns; the caller need not wait for that.
        let _ = tokio::time::timeout(Duration::from_secs(1), environment.gone.cancelled()).await;
    }

    fn park(&self, environment: &Arc<Environment>) {
        if !environment.gone.is_cancelled() {
            lock(&self.pool).idle.push(Arc::clone(environment));
        }
    }

    /// Starts a new environment and the task that awaits its end.
    async fn start(self: &Arc<Self>, host: &Arc<Host>) -> std::io::Result<Arc<Environment>> {
        if host.stop.is_cancelled() {
            return Err(std::io::Error::other("the host is stopping"));
        }
        let token = ids::hex(&ids::random::<16>()?);
        let command = command(&self.config, self.log.as_ref(), host, &token)?;
        let environment = Arc::new(Environment::new(token, self.arn.clone(), host.settings.freeze));
        // Before the process exists: a runtime whose first poll is refused gives up.
        host.register(&environment);
        let exit = match process::spawn(command).await {
            Ok((process, exit)) => {
                environment.adopt(process);
                exit
            }
            Err(error) => {
                host.unregister(&environment);
                return Err(error);
            }
        };
        bump(&self.counters.cold_starts);
        lock(&self.pool).all.push(Arc::clone(&environment));
        if host.stop.is_cancelled() {
            environment.kill();
        }
        let (function, host, watched) =
            (Arc::clone(self), Arc::clone(host), Arc::clone(&environment));
        host.tasks.clone().spawn(async move {
            let exit = exit.await.unwrap_or(Exit::Unknown);
            function.forget(&host, &watched, exit);
        });
        Ok(environment)
    }

    fn forget(&self, host: &Host, environment: &Arc<Environment>, exit: Exit) {
        {
            let mut pool = lock(&self.pool);
            self.counters.exited_cpu_ms.fetch_add(environment.cpu_ms(), Relaxed);
            pool.all.retain(|other| !Arc::ptr_eq(other, environment));
            pool.idle.retain(|other| !Arc::ptr_eq(other, environment));
        }
        host.unregister(environment);
        environment.exited(exit);
    }

    /// Reports a cold start as Lambda does.
    fn report_init(&self, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.counters.init_ms_max.fetch_max(ms, Relaxed);
        self.note(&format!("init took {ms} ms"));
    }

    /// Writes a line of the host to the function's log.
    fn note(&self, line: &str) {
        if let Some(mut log) = self.log.as_ref() {
            // A full disk must not fail an invocation; its outcome reports the failure.
            let _ = log.write_all(format!("[host] {line}\n").as_bytes());
        }
    }

    /// All live environments.
    pub(crate) fn environments(&self) -> Vec<Arc<Environment>> {
        lock(&self.pool).all.clone()
    }

    /// Ends environments idle for `idle_timeout`.
    pub(crate) fn reap(&self, idle_timeout: Duration) {
        let expired: Vec<_> = {
            let mut pool = lock(&self.pool);
            let old = |e: &Arc<Environment>| e.idle_for().is_some_and(|idle| idle >= idle_timeout);
            let expired = pool.idle.iter().filter(|e| old(e)).cloned().collect();
            pool.idle.retain(|e| !old(e));
            expired
        };
        for environment in expired {
            self.kill(&environment);
        }
    }

    /// Records an environment's figures and kills it. Returns whether it was alive.
    pub(crate) fn kill(&self, environment: &Environment) -> bool {
        self.counters.peak_rss_bytes.fetch_max(environment.peak_rss_bytes(), Relaxed);
        environment.kill()
    }

    /// Samples the peak memory of live environments.
    pub(crate) fn sample(&self) {
        for environment in self.environments() {
            let peak = environment.peak_rss_bytes();
            self.counters.peak_rss_bytes.fetch_max(peak, Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> FunctionStats {
        self.sample();
        // An environment that dies is moved to the totals under this lock, so its time counts exactly once.
        let pool = lock(&self.pool);
        let mut stats = self.counters.snapshot();
        stats.cpu_ms += pool.all.iter().map(|e| e.cpu_ms()).sum::<u64>();
        stats.environments = pool.all.len() as u64;
        drop(pool);
        stats.concurrent = u64::from(self.running.load(Relaxed));
        stats.events_waiting = self.queue.len() as u64;
        stats
    }
}
