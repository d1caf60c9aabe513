//! A service that runs as long as the process that started it.

use crate::{Failure, Service, ServiceFile};
use gristmill_model::stored::keys;
use gristmill_model::wire::CacheEntry;
use gristmill_pipeline::Registry;
use gristmill_ports::{ObjectError, ObjectPath};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, Command},
};

/// How long the service may take to start.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long the service may take to end before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The program `gristmill`, which runs a service as `gristmill up`.
#[derive(Debug, Clone)]
pub struct Launcher {
    pub program: PathBuf,
    /// Arguments before `up`.
    pub args: Vec<OsString>,
}

impl Launcher {
    /// This process's own program.
    ///
    /// # Errors
    /// The system does not report the program's path.
    pub fn current() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, args: Vec::new() })
    }
}

/// The line that a service prints for its owner if it cannot start.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartRefusal {
    /// Exit code of the owner.
    pub code: u8,
    pub failed: String,
}

pub(crate) struct OwnService {
    child: Child,
    /// Closing it ends the service, as does the end of this process.
    stdin: ChildStdin,
    /// Whether its state belongs to the user and is kept.
    keep: bool,
    _lock: Option<std::fs::File>,
}

/// Starts a service on this machine that ends with this process. Its state stays in `state_dir`; without
/// one, only data derived from datasets stays, in the user's cache.
///
/// # Errors
/// The service does not start.
pub async fn start_local(
    launcher: &Launcher,
    state_dir: Option<&Path>,
    operators: Arc<Registry>,
) -> Result<Service, Failure> {
    let place = match state_dir {
        Some(dir) => Place { dir: Some(dir.to_owned()), keep: true, lock: None },
        None => shared_place(),
    };
    let mut command = Command::new(&launcher.program);
    command.args(&launcher.args).args(["up", "--json", "--attended"]);
    if let Some(dir) = &place.dir {
        command.arg("--state-dir").arg(dir);
    }
    if !place.keep {
        command.arg("--table-in-memory");
    }
    // Its own process group: Ctrl-C reaches only this process, which then ends the service cleanly.
    command.process_group(0).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let cannot = |error: io::Error| {
        Failure::failed(format!("cannot start {}: {error}", launcher.program.display()))
    };
    let mut child = command.spawn().map_err(cannot)?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::failed("the local service was started without pipes"));
    };
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout);
    let ready = tokio::time::timeout(START_PATIENCE, stdout.read_line(&mut line)).await;
    let ready: Option<serde_json::Value> = match ready {
        Ok(Ok(n)) if n > 0 => serde_json::from_str(&line).ok(),
        _ => None,
    };
    let dir = ready.as_ref().and_then(|ready| ready.get("state_dir")?.as_str());
    let Some(dir) = dir else {
        return Err(match serde_json::from_str(&line) {
            Ok(StartRefusal { code: 2, failed }) => Failure::Usage(failed),
            Ok(StartRefusal { failed, .. }) => Failure::Failed(failed),
            Err(_) => Failure::failed("the local service did not start"),
        });
    };
    let file = ServiceFile::of_state_dir(Path::new(dir)).map_err(Failure::failed)?;
    let service = Service::of_file(&file, operators)?;
    let own = OwnService { child, stdin, keep: place.keep, _lock: place.lock };
    service.own.lock().await.replace(own);
    service.clear_jobs().await;
    Ok(service)
}

impl Service {
    /// Ends a service that this process started; leaves any other as it is.
    pub async fn close(&self) {
        self.clear_jobs().await;
        let Some(OwnService { mut child, stdin, keep: _, _lock }) = self.own.lock().await.take()
        else {
            return;
        };
        drop(stdin);
        if tokio::time::timeout(END_PATIENCE, child.wait()).await.is_err() {
            // The exit code means nothing, because it was killed here.
            let _ = child.kill().await;
        }
    }

    /// Removes objects of jobs that an interrupted run left: if the table is not kept, its jobs are gone.
    /// Keeps indices, because they depend only on the data.
    async fn clear_jobs(&self) {
        if self.own.lock().await.as_ref().is_none_or(|own| own.keep) {
            return;
        }
        let objects = &self.ports.objects;
        let cleared = async {
            let prefix = keys::jobs_prefix(&self.ns);
            let left = objects.list(&self.bucket, &prefix).await?;
            let mut keys: Vec<String> = left.into_iter().map(|info| info.key).collect();
            keys.extend(self.stray_cached().await?);
            match keys.is_empty() {
                true => Ok(()),
                false => objects.delete(&self.bucket, &keys).await,
            }
        };
        if let Err(error) = cleared.await {
            tracing::warn!(%error, "objects of an earlier run could not be removed");
        }
    }

    /// Cache objects without an entry: their job did not finish storing.
    async fn stray_cached(&self) -> Result<Vec<String>, ObjectError> {
        let listed = self.ports.objects.list(&self.bucket, &keys::cache_prefix(&self.ns)).await?;
        let mut shelves = Vec::new();
        for object in &listed {
            if keys::parse_cache_entry(&self.ns, &object.key).is_some() {
                let path = ObjectPath::new(&self.bucket, &object.key);
                let entry = self.ports.objects.get(&path).await?;
                // Unreadable entries are removed as stray.
                if let Ok(entry) = serde_json::from_slice::<CacheEntry>(&entry) {
                    shelves.push(entry.shelf);
                    shelves.push(object.key.clone());
                }
            }
        }
        let keys = listed.into_iter().map(|object| object.key);
        Ok(keys.filter(|key| !shelves.iter().any(|shelf| key.starts_with(shelf))).collect())
    }
}

/// The location of a service's objects.
struct Place {
    /// None: a temporary directory, removed at the end.
    dir: Option<PathBuf>,
    /// Whether the table is kept as well.
    keep: bool,
    lock: Option<std::fs::File>,
}

/// The user's cache, so that a dataset is indexed only once; a temporary directory if another run uses the
/// cache, or if there is no home directory.
fn shared_place() -> Place {
    let none = Place { dir: None, keep: false, lock: None };
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let Some(dir) = cache.map(|cache| cache.join("gristmill/service")) else { return none };
    // Readable only by its owner, as the service would create it.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    let lock = made.and_then(|()| std::fs::File::create(dir.join("run.lock")));
    match lock {
        Ok(lock) if lock.try_lock().is_ok() => {
            Place { dir: Some(dir), keep: false, lock: Some(lock) }
        }
        _ => none,
    }
}
