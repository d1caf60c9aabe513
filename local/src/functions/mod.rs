//! The function host: runs `lambda_runtime` binaries as Lambda would.
//!
//! Each environment is a process that requests one invocation at a time from the Runtime API (`runtime_api`).
//! Invocations come from the Invoke API (`invoke_api`), function URLs (`function_url`), the queues of asynchronous
//! events (`events`) and schedules; `function` admits them under the concurrency limits and picks or starts an
//! environment (`environment`, `process`). No process outlives the host, however it ends.

mod admin;
mod command;
mod config;
mod environment;
mod events;
mod function;
mod function_url;
mod host;
mod invoke_api;
mod journal;
mod outcome;
mod process;
mod runtime_api;
mod stats;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use admin::{AdminHooks, JsonSource, Mounter, TroubleSource};
pub use config::{FunctionConfig, HostConfig, Schedule, UrlAuth, UrlConfig};
pub use stats::{EnvironmentInfo, FunctionStats, HostStats};

use crate::http_server;
use crate::{LocalError, Verifier};
use function::Function;
use host::{Host, Settings};
use journal::Journal;

/// A larger log is rotated when the host starts; one old file is kept.
const LOG_BYTES: u64 = 16 * 1024 * 1024;

/// Time for environments and connections to end after the host stops.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A running host. Dropping it kills its environments at once; [`FunctionHost::shutdown`] also waits for them.
pub struct FunctionHost {
    host: Arc<Host>,
    address: SocketAddr,
    urls: BTreeMap<String, SocketAddr>,
}

/// Locks, ignoring poison: every critical section here leaves its data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FunctionHost {
    /// Listens and serves on the current tokio runtime. Environments start on demand.
    ///
    /// # Errors
    /// [`LocalError::Config`] for an invalid configuration, [`LocalError::Bind`] or [`LocalError::System`] if a listener
    /// fails, [`LocalError::State`] if a log cannot be written.
    pub async fn start(mut config: HostConfig) -> Result<Self, LocalError> {
        config.validate()?;
        let invoke_listener = listener("Invoke API", config.listener.take())?;
        let runtime_listener = listener("Runtime API", None)?;
        let mut urls = Vec::new();
        for function in &mut config.functions {
            if let Some(url) = &mut function.url {
                let listener = listener("function URL", url.listener.take())?;
                urls.push((function.name.clone(), url.auth, listener));
            }
        }
        let schedules = std::mem::take(&mut config.schedules);
        let (journal, left) = Journal::open(config.event_dir.take())?;
        let host = Arc::new(build(config, journal, runtime_listener.1)?);
        events::resume(&host, left);

        let stop = &host.stop;
        let serving = Arc::clone(&host);
        host.tasks.spawn(http_server::serve(
            runtime_listener.0,
            stop.clone(),
            host.tasks.clone(),
            move |request| runtime_api::answer(Arc::clone(&serving), request),
        ));
        let serving = Arc::clone(&host);
        host.tasks.spawn(http_server::serve(
            invoke_listener.0,
            stop.clone(),
            host.tasks.clone(),
            move |request| invoke_api::answer(Arc::clone(&serving), request),
        ));
        let mut addresses = BTreeMap::new();
        for (name, auth, (listener, address)) in urls {
            let function = Arc::clone(&host.functions[&name]);
            let serving = Arc::clone(&host);
            let handler = move |request| {
                function_url::answer(Arc::clone(&serving), Arc::clone(&function), auth, request)
            };
            host.tasks.spawn(http_server::serve(
                listener,
                stop.clone(),
                host.tasks.clone(),
                handler,
            ));
            addresses.insert(name, address);
        }
        for function in host.functions.values() {
            host.tasks.spawn(events::dispatch(Arc::clone(&host), Arc::clone(function)));
        }
        host.tasks.spawn(Arc::clone(&host).maintain());
        let host = Self { host, address: invoke_listener.1, urls: addresses };
        for Schedule { every, function, payload } in schedules {
            host.every(every, &function, payload)?;
        }
        Ok(host)
    }

    /// Address of the Invoke API and the admin routes.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The endpoint URL for `aws-sdk-lambda`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// URL of a function that has one, without a trailing slash.
    #[must_use]
    pub fn url(&self, function: &str) -> Option<String> {
        self.urls.get(function).map(|address| format!("http://{address}"))
    }

    /// Invokes a function asynchronously, as `Event` does over the API. Returns the request id.
    ///
    /// # Errors
    /// [`LocalError::UnknownFunction`], or [`LocalError::System`] if the queue is full or random bytes are unavailable.
    pub fn send(&self, function: &str, payload: impl Into<Bytes>) -> Result<String, LocalError> {
        enqueue(&self.host, self.function(function)?, payload.into())
    }

    /// Invokes a function asynchronously once per `period`, first after one period, until the host stops.
    ///
    /// # Errors
    /// [`LocalError::UnknownFunction`], [`LocalError::Config`] for a period of zero.
    pub fn every(
        &self,
        period: Duration,
        function: &str,
        payload: Bytes,
    ) -> Result<(), LocalError> {
        let function = Arc::clone(self.function(function)?);
        if period.is_zero() {
            return Err(LocalError::Config("a schedule needs a period above zero".into()));
        }
        let host = Arc::clone(&self.host);
        self.host.tasks.spawn(async move {
            let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
            beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    () = host.stop.cancelled() => return,
                    _ = beat.tick() => {}
                }
                if let Err(error) = enqueue(&host, &function, payload.clone()) {
                    tracing::error!(function = function.config.name, %error, "scheduled event lost");
                }
            }
        });
        Ok(())
    }

    /// Live environments of a function, in order of their start.
    ///
    /// # Errors
    /// [`LocalError::UnknownFunction`].
    pub fn environments(&self, function: &str) -> Result<Vec<EnvironmentInfo>, LocalError> {
        Ok(self.function(function)?.environments().iter().map(|e| e.info()).collect())
    }

    /// Kills (SIGKILL) the live environment that `pick` chooses. Returns its pid.
    ///
    /// # Errors
    /// [`LocalError::UnknownFunction`].
    pub fn kill_one(
        &self,
        function: &str,
        pick: impl FnOnce(&[EnvironmentInfo]) -> Option<u32>,
    ) -> Result<Option<u32>, LocalError> {
        let infos = self.environments(function)?;
        Ok(pick(&infos).filter(|pid| self.kill(*pid)))
    }

    /// Kills (SIGKILL) an environment by its pid. Returns whether there was a live one.
    pub fn kill(&self, pid: u32) -> bool {
        self.host.functions.values().any(|function| {
            let environments = function.environments();
            let killed = environments.iter().any(|e| e.info().pid == pid && function.kill(e));
            if killed {
                stats::bump(&function.counters.kills);
            }
            killed
        })
    }

    /// All counters.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        self.host.stats()
    }

    /// Stops accepting, kills every environment and waits until all have ended.
    pub async fn shutdown(self) {
        self.host.stop.cancel();
        self.host.kill_all();
        self.host.tasks.close();
        if tokio::time::timeout(STOP_PATIENCE, self.host.tasks.wait()).await.is_err() {
            tracing::warn!(
                tasks = self.host.tasks.len(),
                "the function host stopped during invocations"
            );
        }
    }

    fn function(&self, name: &str) -> Result<&Arc<Function>, LocalError> {
        self.host.functions.get(name).ok_or_else(|| LocalError::UnknownFunction(name.to_owned()))
    }
}

impl Drop for FunctionHost {
    fn drop(&mut self) {
        self.host.stop.cancel();
        self.host.kill_all();
    }
}

impl std::fmt::Debug for FunctionHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionHost")
            .field("address", &self.address)
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

fn listener(
    what: &'static str,
    given: Option<std::net::TcpListener>,
) -> Result<(TcpListener, SocketAddr), LocalError> {
    let listener = given.map_or_else(|| http_server::bind(what, 0), Ok)?;
    http_server::adopt(what, listener)
}

fn build(
    config: HostConfig,
    journal: Journal,
    runtime_api: SocketAddr,
) -> Result<Host, LocalError> {
    let verifier = Verifier::new(&config.credentials, &config.region, "lambda");
    let reserved = config.reserved();
    let mut functions = BTreeMap::new();
    for function in config.functions {
        let name = function.name.clone();
        let arn = format!("arn:aws:lambda:{}:{}:function:{name}", config.region, config.account_id);
        let log = config.log_dir.as_deref().map(|dir| open_log(dir, &name)).transpose()?;
        functions.insert(name, Arc::new(Function::new(function, arn, log)));
    }
    Ok(Host {
        settings: Settings {
            credentials: config.credentials,
            region: config.region,
            account_id: config.account_id,
            idle_timeout: config.idle_timeout,
            init_timeout: config.init_timeout,
            retry_delay: config.retry_delay,
            freeze: config.freeze,
        },
        functions,
        verifier,
        journal,
        admin: config.admin,
        runtime_api,
        concurrency_limit: config.account_concurrency,
        unreserved_limit: config.account_concurrency.saturating_sub(reserved),
        running: AtomicU32::new(0),
        unreserved: AtomicU32::new(0),
        freed: Notify::new(),
        stop: CancellationToken::new(),
        tasks: TaskTracker::new(),
        environments: RwLock::new(HashMap::new()),
    })
}

fn open_log(dir: &Path, function: &str) -> Result<File, LocalError> {
    std::fs::create_dir_all(dir).map_err(|error| LocalError::state(dir, error))?;
    let path = dir.join(format!("{function}.log"));
    if std::fs::metadata(&path).is_ok_and(|data| data.len() > LOG_BYTES) {
        let old = dir.join(format!("{function}.log.1"));
        std::fs::rename(&path, old).map_err(|error| LocalError::state(&path, error))?;
    }
    // Appends of several processes do not overwrite each other.
    File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| LocalError::state(&path, error))
}

fn enqueue(host: &Host, function: &Function, payload: Bytes) -> Result<String, LocalError> {
    let system = |source| LocalError::System { what: "an event", source };
    let invocation = host.invocation(payload).map_err(system)?;
    let id = invocation.request_id.clone();
    events::accept(host, function, invocation)
        .map_err(|error| system(std::io::Error::other(error)))?;
    Ok(id)
}
