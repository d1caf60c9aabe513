//! The three stand-ins composed: one state directory, fixed ports, one key pair.
//!
//! A service restarted on its state directory has the same ports, keys and mounts, so clients survive its restart. The
//! caller decides which functions it runs.

mod state;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::functions::{AdminHooks, HostConfig, Schedule, lock};
use crate::room::{self, Room};
use crate::{
    Credentials, FunctionConfig, FunctionHost, LocalError, ObjectServer, ObjectStats, Serving,
    TableConfig, TableServer, TableStats, http_server,
};
use state::{Saved, StateDir};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Configuration of a [`Service`].
#[derive(Debug)]
pub struct ServiceConfig {
    /// State directory; created if missing, readable by its owner only.
    pub state_dir: PathBuf,
    /// Region of all services.
    pub region: String,
    /// Keys; by default those of the state directory, or new random ones.
    pub credentials: Option<Credentials>,
    /// Ports; 0 selects that of the state directory, or any free one.
    pub ports: Ports,
    /// Whether the table and accepted events are kept in files, so that jobs survive a restart or a kill; else in memory,
    /// which is faster. Objects are always files. Nothing is synced to disk: a power cut may lose recent writes.
    pub durable: bool,
    /// Table created at start.
    pub table: String,
    /// Bucket created at start.
    pub bucket: String,
    /// External services that replace stand-ins; their table and bucket are created by the caller.
    pub others: Others,
    /// Directories mounted as read-only buckets, in addition to those of the state directory.
    pub mounts: Vec<Mount>,
    /// Function whose URL is [`Endpoints::coordinator_url`].
    pub url_function: String,
    /// Most concurrent invocations of all functions.
    pub account_concurrency: u32,
    /// Idle time after which a warm environment is ended.
    pub idle_timeout: Duration,
    /// Stops environments between invocations, as Lambda does.
    pub freeze: bool,
    /// Events at a fixed rate.
    pub schedules: Vec<Schedule>,
}

impl ServiceConfig {
    /// Defaults: `us-east-1`, any ports, durable, table and bucket `gristmill`, URL function `coordinator`.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            region: "us-east-1".into(),
            credentials: None,
            ports: Ports::default(),
            durable: true,
            table: "gristmill".into(),
            bucket: "gristmill".into(),
            others: Others::default(),
            mounts: Vec::new(),
            url_function: "coordinator".into(),
            account_concurrency: 1000,
            idle_timeout: Duration::from_secs(60),
            freeze: false,
            schedules: Vec::new(),
        }
    }
}

/// The loopback ports of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Invoke API and admin routes.
    pub lambda: u16,
    /// Objects.
    pub s3: u16,
    /// The table.
    pub dynamodb: u16,
    /// The function URL.
    pub coordinator: u16,
}

/// Endpoints of external services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// Object store.
    pub s3: Option<String>,
    /// Table.
    pub dynamodb: Option<String>,
}

/// Endpoints of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// For `aws-sdk-lambda`, and the admin routes.
    pub lambda: String,
    /// For `aws-sdk-s3`, with path-style addressing.
    pub s3: String,
    /// Object store of [`ServiceConfig::mounts`], served by this service even if objects are external.
    pub folders: String,
    /// For `aws-sdk-dynamodb`.
    pub dynamodb: String,
    /// The function URL of [`ServiceConfig::url_function`].
    pub coordinator_url: String,
}

/// A directory mounted as a read-only bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The bucket's name.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
}

/// Running stand-ins.
#[derive(Debug)]
pub struct Service {
    endpoints: Endpoints,
    credentials: Credentials,
    host: FunctionHost,
    /// `None` if the table is external.
    table: Option<TableServer>,
    objects: Serving,
    stop_objects: DropGuard,
    kept: Arc<Mutex<Kept>>,
    room: Arc<Room>,
}

/// State to be saved for the next start.
#[derive(Debug)]
struct Kept {
    dir: StateDir,
    saved: Saved,
}

impl Service {
    /// Starts everything on the current tokio runtime. Ports are bound before `functions` is called, so that it can pass
    /// the endpoints to each function. The function named [`ServiceConfig::url_function`], if it has a URL, gets the
    /// coordinator's port.
    ///
    /// # Errors
    /// [`LocalError::Busy`] if another service runs on the state directory, [`LocalError::Bind`] if one of its ports
    /// is taken, and errors of the parts.
    pub async fn start(
        config: ServiceConfig,
        functions: impl FnOnce(&Endpoints) -> Vec<FunctionConfig>,
    ) -> Result<Self, LocalError> {
        let dir = StateDir::open(&config.state_dir)?;
        let before = dir.load()?;
        let credentials = match (&config.credentials, &before) {
            (Some(given), _) => given.clone(),
            (None, Some(before)) => before.credentials.clone(),
            (None, None) => Credentials::random()?,
        };
        let listeners = Listeners::bind(config.ports, before.as_ref().map(|b| b.ports))?;
        let endpoints = listeners.endpoints(&config.others);
        let mounts = before.map(|b| b.mounts).unwrap_or_default();
        let mut saved = Saved { ports: listeners.ports, credentials: credentials.clone(), mounts };

        let server = objects(&config, dir.path(), &mut saved)?;
        dir.save(&saved)?;
        let (s3, _) = http_server::adopt("object store", listeners.s3)?;
        let stop_objects = CancellationToken::new();
        let objects = server
            .serve(s3, stop_objects.clone())
            .map_err(|source| LocalError::System { what: "the object store", source })?;
        // An error below, or dropping the service, stops the store too.
        let stop_objects = stop_objects.drop_guard();
        let table = TableConfig {
            file: config.durable.then(|| dir.path().join("table.sqlite")),
            tables: vec![config.table.clone()],
            region: config.region.clone(),
            credentials: credentials.clone(),
            listener: Some(listeners.dynamodb),
        };
        let has_table = config.others.dynamodb.is_none();
        let table = has_table.then(|| TableServer::start(table)).transpose()?;

        let mut functions = functions(&endpoints);
        let coordinator = functions.iter_mut().find(|f| f.name == config.url_function);
        if let Some(url) = coordinator.and_then(|function| function.url.as_mut()) {
            url.listener = Some(listeners.coordinator);
        }
        let discovery = json!({
            "service": "gristmill",
            "version": env!("CARGO_PKG_VERSION"),
            "region": config.region,
            "table": config.table,
            "bucket": config.bucket,
            "endpoints": endpoints,
            "state_file": dir.file(),
        });
        let log_dir = dir.path().join("logs");
        let event_dir = config.durable.then(|| dir.path().join("events"));
        let room = Arc::new(Room::new(dir.path()));
        let kept = Arc::new(Mutex::new(Kept { dir, saved }));
        let host = FunctionHost::start(HostConfig {
            region: config.region,
            listener: Some(listeners.lambda),
            log_dir: Some(log_dir),
            event_dir,
            account_concurrency: config.account_concurrency,
            idle_timeout: config.idle_timeout,
            freeze: config.freeze,
            schedules: config.schedules,
            admin: hooks(discovery, table.as_ref(), objects.server(), &kept, &room),
            ..HostConfig::new(credentials.clone(), functions)
        })
        .await?;
        watch(&room);
        Ok(Self { endpoints, credentials, host, table, objects, stop_objects, kept, room })
    }

    /// Endpoints of the services.
    #[must_use]
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Keys accepted by all services.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The function host, to observe it and to kill its environments.
    #[must_use]
    pub fn host(&self) -> &FunctionHost {
        &self.host
    }

    /// Counters of the table; all zero if it is external.
    #[must_use]
    pub fn table_stats(&self) -> TableStats {
        self.table.as_ref().map(TableServer::stats).unwrap_or_default()
    }

    /// Counters of the object store.
    #[must_use]
    pub fn object_stats(&self) -> ObjectStats {
        self.objects.stats()
    }

    /// Reason why jobs cannot proceed, with its remedy: the disk of the state directory is full.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.room.trouble()
    }

    /// Mounts a directory as a read-only bucket, now and after restarts; the last call for a name wins.
    ///
    /// # Errors
    /// [`LocalError::Config`] or [`LocalError::State`] if the name or the directory is invalid.
    pub fn mount(&self, name: &str, path: &Path) -> Result<(), LocalError> {
        mount(self.objects.server(), &self.kept, name, path)
    }

    /// Stops the functions first, then the services they use. Nothing is left running.
    pub async fn shutdown(self) {
        self.host.shutdown().await;
        let table = self.table;
        drop(self.stop_objects);
        // It blocks until its thread ends, which must not block the runtime.
        let (_, ()) = tokio::join!(
            tokio::task::spawn_blocking(move || table.map(TableServer::shutdown)),
            self.objects.ended()
        );
    }
}

/// Opens the object store with the configured mounts and the saved ones.
fn objects(
    config: &ServiceConfig,
    state_dir: &Path,
    saved: &mut Saved,
) -> Result<ObjectServer, LocalError> {
    let keys = &saved.credentials;
    let server = ObjectServer::builder(state_dir.join("objects"))
        .credentials(&keys.access_key_id, &keys.secret_access_key)
        .bucket(&config.bucket)
        .region(&config.region)
        .open()?;
    // A missing directory must not prevent the start; jobs that need it report it.
    for Mount { name, path } in &saved.mounts {
        if let Err(error) = server.mount(name, path) {
            tracing::warn!(mount = name, %error, "a directory offered before is not there any more");
        }
    }
    for Mount { name, path } in &config.mounts {
        server.mount(name, path)?;
        keep_mount(&mut saved.mounts, name, path)?;
    }
    Ok(server)
}

fn hooks(
    discovery: serde_json::Value,
    table: Option<&TableServer>,
    objects: &ObjectServer,
    kept: &Arc<Mutex<Kept>>,
    room: &Arc<Room>,
) -> AdminHooks {
    let room = Arc::clone(room);
    let table_stats = table.map(TableServer::stats_reader);
    let table_stats = move || table_stats.as_ref().map(|read| read()).unwrap_or_default();
    let (counted, mounted, kept) = (objects.clone(), objects.clone(), Arc::clone(kept));
    let known = Arc::clone(&kept);
    AdminHooks {
        service: Some(Arc::new(move || discovery.clone())),
        stats: Some(Arc::new(move || json!({"table": table_stats(), "objects": counted.stats()}))),
        trouble: Some(Arc::new(move || room.trouble())),
        mounts: Some(Arc::new(move || json!({ "mounts": lock(&known).saved.mounts }))),
        mount: Some(Arc::new(move |name, path| {
            mount(&mounted, &kept, name, path).map_err(|error| error.to_string())
        })),
    }
}

/// Checks the disk periodically for the life of the service.
fn watch(room: &Arc<Room>) {
    let room = Arc::downgrade(room);
    tokio::spawn(async move {
        while let Some(room) = room.upgrade() {
            // A disk may be slow.
            let looked = tokio::task::spawn_blocking(move || room.look()).await;
            if looked.is_err() {
                return;
            }
            tokio::time::sleep(room::LOOK).await;
        }
    });
}

fn mount(
    objects: &ObjectServer,
    kept: &Mutex<Kept>,
    name: &str,
    path: &Path,
) -> Result<(), LocalError> {
    let mut kept = lock(kept);
    objects.mount(name, path)?;
    let mut saved = kept.saved.clone();
    // On a full disk, mounting a known directory must still succeed.
    if keep_mount(&mut saved.mounts, name, path)? {
        kept.dir.save(&saved)?;
        kept.saved = saved;
    }
    Ok(())
}

/// Records the mount of a name, replacing an earlier one. Returns whether it changed.
fn keep_mount(mounts: &mut Vec<Mount>, name: &str, path: &Path) -> Result<bool, LocalError> {
    // The next start may have another working directory.
    let path = path.canonicalize().map_err(|error| LocalError::state(path, error))?;
    match mounts.iter_mut().find(|known| known.name == name) {
        Some(known) if known.path == path => return Ok(false),
        Some(known) => known.path = path,
        None => mounts.push(Mount { name: name.to_owned(), path }),
    }
    Ok(true)
}

/// Listeners, all bound before anything serves.
struct Listeners {
    ports: Ports,
    lambda: std::net::TcpListener,
    s3: std::net::TcpListener,
    dynamodb: std::net::TcpListener,
    coordinator: std::net::TcpListener,
}

impl Listeners {
    fn bind(wanted: Ports, before: Option<Ports>) -> Result<Self, LocalError> {
        let before = before.unwrap_or_default();
        let bind = |what, wanted: u16, before: u16| {
            let listener = http_server::bind(what, if wanted == 0 { before } else { wanted })?;
            let system = |source| LocalError::System { what, source };
            let port = listener.local_addr().map_err(system)?.port();
            Ok::<_, LocalError>((listener, port))
        };
        let (lambda, lambda_port) = bind("function API", wanted.lambda, before.lambda)?;
        let (s3, s3_port) = bind("object store", wanted.s3, before.s3)?;
        let (dynamodb, dynamodb_port) = bind("table", wanted.dynamodb, before.dynamodb)?;
        let (coordinator, coordinator_port) =
            bind("coordinator's URL", wanted.coordinator, before.coordinator)?;
        let ports = Ports {
            lambda: lambda_port,
            s3: s3_port,
            dynamodb: dynamodb_port,
            coordinator: coordinator_port,
        };
        Ok(Self { ports, lambda, s3, dynamodb, coordinator })
    }

    fn endpoints(&self, others: &Others) -> Endpoints {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let folders = url(self.ports.s3);
        Endpoints {
            lambda: url(self.ports.lambda),
            s3: others.s3.clone().unwrap_or_else(|| folders.clone()),
            folders,
            dynamodb: others.dynamodb.clone().unwrap_or_else(|| url(self.ports.dynamodb)),
            coordinator_url: url(self.ports.coordinator),
        }
    }
}

/// Keys of a service running on `state_dir`, for a client on the same machine and of the same user.
///
/// # Errors
/// [`LocalError::State`] if there is no readable `service.json`.
pub fn read_credentials(state_dir: &Path) -> Result<Credentials, LocalError> {
    state::read(&state_dir.join(state::FILE))?.map(|saved| saved.credentials).ok_or_else(|| {
        LocalError::state(state_dir.join(state::FILE), "no service has run on this state directory")
    })
}
