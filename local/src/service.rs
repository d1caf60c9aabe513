//! The parts of a service composed: table, objects, coordinator, scaler, workers and the endpoint.

use crate::{
    counts::{CALLS_THROTTLED, CountedTable, EVENTS_EXPIRED, ServiceCounts},
    embedded_table::EmbeddedTable,
    endpoint::{ServiceAddress, ServiceListener, new_token, serve},
    invoking::{CallPlace, LambdaImitation, SCALER, ScalerInvoker, WORKER, WorkerInvoker},
    pool::{FILE_BYTES_MAX, FailedOrder, FailureCause, LogFile, WorkerPool, WorkerProgram},
};
use gristmill_coordinator::{CoordinatorFunction, CoordinatorSettings};
use gristmill_host::{
    DiskUse, ForeignS3, HostError, ServiceFile, ServiceStatus, StateDir, WorkerSetup, free_bytes,
    own_files, private_dir,
};
use gristmill_model::{
    InvocationId, Namespace,
    wire::{AnyReply, CallEnvelope, ReleaseCall, SpokenVersions},
};
use gristmill_ports::{
    Clock as _, FunctionMetrics, ObjectStore, SystemClock, Table, TableError,
    limits::StackConcurrency, memory::MemoryTable,
};
use gristmill_scaler::ScalerFunction;
use std::{
    convert::Infallible,
    fs,
    num::NonZeroU32,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};

/// The bucket of the service's own objects. Named with a dot, as few buckets on S3 are: one of the same name there could
/// not be read.
pub const OWN_BUCKET: &str = "gristmill.local";
const NAMESPACE: &str = "default";
/// Interval of background maintenance.
const UPKEEP_EVERY: Duration = Duration::from_secs(600);
/// Most expired items that are removed in a round.
const SWEEP_ITEMS: usize = 100_000;
/// How long nobody may use a service that belongs to no process, before it ends.
const UNUSED_TIME: Duration = Duration::from_secs(5);
/// How long calls in progress may take to end with the service.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
const CLOSE_LOOK: Duration = Duration::from_millis(5);
const UNUSED_LOOK: Duration = Duration::from_millis(500);

/// Parts that other services keep.
#[derive(Clone, Default)]
pub struct ExternalStores {
    pub table: Option<Arc<dyn Table>>,
    /// The objects, how clients reach them, and their bucket.
    pub objects: Option<(Arc<dyn ObjectStore>, ForeignS3, String)>,
}

/// Configuration of a [`MachineService`].
pub struct ServiceConfig {
    pub state: StateDir,
    /// Whether jobs outlive the service. Otherwise its table is in memory.
    pub keeps_jobs: bool,
    /// The port of this machine to listen on, 0 for any free one; none for a socket that only its user can open.
    pub port: Option<u16>,
    pub workers: WorkerProgram,
    /// Memory that a worker assumes, in MB.
    pub worker_memory_mb: u32,
    /// Names the credentials of a service that clients start.
    pub credentials: Option<String>,
    /// Capacity of the cache, in GiB.
    pub cache_gib: NonZeroU32,
    /// The versions of the protocol that it speaks.
    pub spoken: SpokenVersions,
    /// The concurrency of Lambda, if it throttles calls and workers as Lambda does.
    pub lambda: Option<StackConcurrency>,
    pub elsewhere: ExternalStores,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceStartError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Table(#[from] TableError),
}

/// A running service.
pub struct MachineService {
    shared: Arc<ServiceParts>,
    file: ServiceFile,
    published: Vec<PathBuf>,
    state: StateDir,
    tasks: JoinSet<Infallible>,
}

/// A call for which the imitated Lambda has no room.
pub(crate) struct ThrottledCall;

/// The parts that requests use.
pub(crate) struct ServiceParts {
    coordinator: CoordinatorFunction,
    pub pool: WorkerPool,
    pub counts: ServiceCounts,
    lambda: Option<LambdaImitation>,
    token: blake3::Hash,
    namespace: Namespace,
    state_dir: PathBuf,
    disk_bound_bytes: u64,
    pub stop: Notify,
}

impl MachineService {
    /// Starts a service, and makes it known to clients. Fails if its directory, port or table cannot be used.
    pub async fn start(config: ServiceConfig) -> Result<Self, ServiceStartError> {
        let dir = config.state.path().to_owned();
        let counts = ServiceCounts::default();
        let kept = kept_table(&config)?;
        let table = table_of(&config, kept.as_ref());
        let table = CountedTable { table, counts: counts.clone() };
        let table: Arc<dyn Table> = Arc::new(table);
        let (objects, s3, bucket) = match &config.elsewhere.objects {
            Some((objects, s3, bucket)) => (Arc::clone(objects), Some(s3.clone()), bucket.clone()),
            None => (files(&config.state)?, None, OWN_BUCKET.to_owned()),
        };
        let namespace: Namespace =
            NAMESPACE.parse().unwrap_or_else(|_| unreachable!("the default namespace is valid"));
        let before = ServiceAddress::read(&dir);
        let listener = listener(config.port, &dir, before.as_ref()).await?;
        let token = before.map(|before| before.token).unwrap_or_else(new_token);
        ServiceAddress { token: token.clone(), port: listener.port_number() }.write(&dir)?;
        let file = ServiceFile {
            endpoint: listener.endpoint()?,
            token,
            state_dir: dir.clone(),
            namespace: namespace.clone(),
            bucket: bucket.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            s3,
            credentials: config.credentials.clone(),
        };
        let settings = CoordinatorSettings::new(namespace.clone(), bucket, SCALER.to_owned())
            .with_cache(Some(config.cache_gib))
            .with_pruning();
        let settings = CoordinatorSettings { spoken: config.spoken, ..settings };
        let disk_bound_bytes = settings.cache_bytes + settings.window_bytes + 2 * FILE_BYTES_MAX;
        let (failed, failures) = mpsc::unbounded_channel();
        let lambda = config.lambda.map(LambdaImitation::new);
        let pool = pool(&config, &file, failed, lambda.clone())?;
        let invoker = Arc::new(WorkerInvoker { pool: pool.clone(), counts: counts.clone() });
        let scaler = ScalerFunction {
            table: Arc::clone(&table),
            invoker,
            worker_function: WORKER.to_owned(),
            region: "local".to_owned(),
            max_workers: None,
            spoken: config.spoken,
            metrics: FunctionMetrics::default(),
        };
        let invoker = ScalerInvoker { scaler: Arc::new(scaler), counts: counts.clone() };
        let clock = Arc::new(SystemClock);
        let coordinator =
            CoordinatorFunction::new(table, objects, Arc::new(invoker), clock, settings);
        let token = blake3::hash(file.token.as_bytes());
        let shared = ServiceParts {
            coordinator,
            pool,
            counts,
            lambda,
            token,
            namespace,
            state_dir: dir,
            disk_bound_bytes,
            stop: Notify::new(),
        };
        let shared = Arc::new(shared);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&shared)));
        tasks.spawn(release(Arc::clone(&shared), failures));
        tasks.spawn(maintain(Arc::clone(&shared), kept));
        let published = file.publish()?;
        Ok(Self { shared, file, published, state: config.state, tasks })
    }

    /// How clients reach it.
    pub fn file(&self) -> &ServiceFile {
        &self.file
    }

    /// Why jobs cannot proceed, with the remedy.
    pub fn trouble(&self) -> Option<String> {
        self.shared.status().trouble
    }

    /// Calls that the imitated Lambda throttled, and events of workers that expired there.
    pub fn refused(&self) -> (u64, u64) {
        let counts = self.shared.counts.read();
        let count = |name| counts.get(name).copied().unwrap_or(0);
        (count(CALLS_THROTTLED), count(EVENTS_EXPIRED))
    }

    /// Resolves once a client asks the service to end.
    pub async fn stopped(&self) {
        self.shared.stop.notified().await;
    }

    /// Resolves once no process has used the service for a while, and none can begin to.
    pub async fn unused(&self) -> gristmill_host::NoClientsLock {
        let mut since = None;
        loop {
            tokio::time::sleep(UNUSED_LOOK).await;
            let Some(gone) = self.state.unused() else {
                since = None;
                continue;
            };
            if since.get_or_insert_with(Instant::now).elapsed() >= UNUSED_TIME {
                return gone;
            }
        }
    }

    /// Ends the workers, then the service.
    pub async fn shutdown(mut self) {
        // Clients must not find a service that is ending.
        for path in &self.published {
            // Another process may have removed it with its folder.
            let _ = std::fs::remove_file(path);
        }
        self.shared.pool.close().await;
        self.tasks.shutdown().await;
        // Calls in progress let go of the table.
        let began = Instant::now();
        while Arc::strong_count(&self.shared) > 1 && began.elapsed() < CLOSE_PATIENCE {
            tokio::time::sleep(CLOSE_LOOK).await;
        }
    }
}

/// The table that is kept here; none if another service keeps it, or nobody.
fn kept_table(config: &ServiceConfig) -> Result<Option<Arc<EmbeddedTable>>, ServiceStartError> {
    if config.elsewhere.table.is_some() || !config.keeps_jobs {
        return Ok(None);
    }
    let dir = private_dir(&config.state.path().join("table"))?;
    Ok(Some(Arc::new(EmbeddedTable::open(&dir)?)))
}

fn table_of(config: &ServiceConfig, kept: Option<&Arc<EmbeddedTable>>) -> Arc<dyn Table> {
    match (&config.elsewhere.table, kept) {
        (Some(table), _) => Arc::clone(table),
        (None, Some(kept)) => Arc::clone(kept) as _,
        (None, None) => Arc::new(MemoryTable::default()),
    }
}

async fn listener(
    port: Option<u16>,
    dir: &Path,
    before: Option<&ServiceAddress>,
) -> Result<ServiceListener, HostError> {
    match port {
        None => ServiceListener::socket(dir),
        Some(0) => match before.and_then(|before| before.port) {
            Some(port) => ServiceListener::port(port).await.or(ServiceListener::port(0).await),
            None => ServiceListener::port(0).await,
        },
        Some(port) => ServiceListener::port(port).await,
    }
}

fn files(state: &StateDir) -> Result<Arc<dyn ObjectStore>, HostError> {
    let files = own_files(state.path(), OWN_BUCKET)?;
    files.sweep().map_err(HostError::at(state.path()))?;
    Ok(Arc::new(files))
}

fn pool(
    config: &ServiceConfig,
    file: &ServiceFile,
    failed: mpsc::UnboundedSender<FailedOrder>,
    lambda: Option<LambdaImitation>,
) -> Result<WorkerPool, HostError> {
    let dir = config.state.path();
    let log = private_dir(&dir.join("logs"))?.join("worker.log");
    let running = config.keeps_jobs.then(|| dir.join("running"));
    let setup = WorkerSetup { service: file.clone(), memory_mb: config.worker_memory_mb };
    let pool =
        WorkerPool::new(config.workers.clone(), &setup, LogFile::new(log), running, failed, lambda);
    pool.map_err(HostError::at(dir))
}

/// Releases the bundles of workers that failed, so that they are claimable at once.
async fn release(
    shared: Arc<ServiceParts>,
    mut failures: mpsc::UnboundedReceiver<FailedOrder>,
) -> Infallible {
    while let Some(FailedOrder { order, error, cause }) = failures.recv().await {
        let event = order.event;
        let expired = cause == FailureCause::EventExpired;
        if expired {
            shared.counts.add(EVENTS_EXPIRED, 1);
        }
        let release = ReleaseCall {
            job: event.job,
            // Otherwise it says nothing of the worker's split.
            blameless: cause != FailureCause::WorkerFailed,
            expired,
            invocation: InvocationId::new(event.worker, &order.request),
            worker: Some(event.worker),
            error,
        };
        let v = shared.spoken().newest;
        let request = CallEnvelope { v, ns: shared.namespace.clone(), call: release.into() };
        let _place = match &shared.lambda {
            Some(lambda) => Some(lambda.begin_event().await),
            None => None,
        };
        let reply = shared.call(&request).await;
        if let AnyReply::Refused(refusal) = reply {
            tracing::warn!(%refusal, "cannot release the bundle of a worker that failed; its lease will expire");
        }
    }
    std::future::pending().await
}

/// Background maintenance, which a schedule invokes on AWS.
async fn maintain(shared: Arc<ServiceParts>, kept: Option<Arc<EmbeddedTable>>) -> Infallible {
    loop {
        if let Some(table) = &kept
            && let Err(error) = table.sweep(SystemClock.now_ms() / 1000, SWEEP_ITEMS).await
        {
            tracing::warn!(%error, "expired items could not be removed; it is tried again");
        }
        if let Err(error) = shared.coordinator.upkeep().await {
            tracing::warn!(%error, "background maintenance failed; it is tried again");
        }
        tokio::time::sleep(UPKEEP_EVERY).await;
    }
}

impl ServiceParts {
    /// Whether `given` is the service's token; takes as long for any wrong one.
    pub fn admits(&self, given: &[u8]) -> bool {
        blake3::hash(given) == self.token
    }

    /// The versions of the protocol that it speaks.
    pub fn spoken(&self) -> SpokenVersions {
        self.coordinator.spoken()
    }

    /// The concurrency for a call from outside, where Lambda is imitated.
    pub fn begin_call(&self) -> Result<Option<CallPlace>, ThrottledCall> {
        let Some(lambda) = &self.lambda else { return Ok(None) };
        let place = lambda.begin_call();
        if place.is_none() {
            self.counts.add(CALLS_THROTTLED, 1);
            return Err(ThrottledCall);
        }
        Ok(place)
    }

    /// Answers a call, and counts it.
    pub async fn call(&self, request: &CallEnvelope) -> AnyReply {
        let reply = self.coordinator.answer(request).await;
        self.counts.answered(&request.call, &reply);
        reply
    }

    /// Workers, disk and counts, as `gristmill status` shows them.
    pub fn status(&self) -> ServiceStatus {
        let pool = self.pool.status();
        ServiceStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            spoken: self.spoken(),
            pid: std::process::id(),
            state_dir: self.state_dir.clone(),
            trouble: trouble(&self.state_dir).or_else(|| self.pool.trouble()),
            busy_workers: pool.busy,
            idle_workers: pool.idle,
            worker_cpu_ms: pool.cpu_ms,
            counts: self.counts.read(),
        }
    }

    /// Bytes of the state directory. Reads all its folders.
    pub async fn disk(&self) -> DiskUse {
        let dir = self.state_dir.clone();
        let used = tokio::task::spawn_blocking(move || used_bytes(&dir)).await;
        DiskUse { used_bytes: used.unwrap_or(0), bound_bytes: self.disk_bound_bytes }
    }
}

/// With fewer free bytes, nothing can be stored.
const SCARCE_BYTES: u64 = 1 << 20;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Why nothing can be stored below `dir`, with the remedy.
pub(crate) fn trouble(dir: &Path) -> Option<String> {
    let free = free_bytes(dir).ok()?;
    (free < SCARCE_BYTES).then(|| {
        format!(
            "the disk under {} is full ({free} bytes free): free some space, then jobs continue",
            dir.display()
        )
    })
}

/// Bytes that the files below `dir` take on the disk. Files that come and go meanwhile may be missing.
pub(crate) fn used_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let bytes_of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => used_bytes(&entry.path()),
        Ok(about) => about.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}
