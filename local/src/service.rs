//! The three stand-ins composed: one state directory, fixed ports, one key pair.
//!
//! A service restarted on its state directory has the same ports, keys and mounts, so clients survive its restart. The
//! caller decides which functions it runs.

mod config;
mod listeners;
mod state;

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::functions::{AdminHooks, HostConfig, lock};
use crate::room::{self, Room};
use crate::{
    Credentials, FunctionConfig, FunctionHost, LocalError, ObjectServer, ObjectStats, Serving,
    TableConfig, TableServer, TableStats, http_server,
};
use listeners::Listeners;
use state::{Saved, StateDir};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use config::{Endpoints, Mount, Others, Ports, ServiceConfig};

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
            tracing::warn!(mount = name, %error, "a mounted directory is missing");
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

/// Keys of a service running on `state_dir`, for a client on the same machine and of the same user.
///
/// # Errors
/// [`LocalError::State`] if there is no readable `service.json`.
pub fn read_credentials(state_dir: &Path) -> Result<Credentials, LocalError> {
    state::read(&state_dir.join(state::FILE))?.map(|saved| saved.credentials).ok_or_else(|| {
        LocalError::state(state_dir.join(state::FILE), "no service has run on this state directory")
    })
}
