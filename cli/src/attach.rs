//! Finding the system to work with: a service of one's own, one that is running, or AWS.

use crate::{
    args::{Backend, ServiceArgs, TrainArgs},
    failure::Failure,
    operators, up,
};
use gristmill_aws::{Aws, LocalService, Settings};
use gristmill_client::{AttachError, FetcherPorts, Folders, ServiceFile, aws_of, waiting::Link};
use gristmill_model::Namespace;
use gristmill_model::stored::keys;
use gristmill_model::wire::CacheEntry;
use gristmill_ports::{Coordinator, ObjectError, ObjectPath, Objects};
use gristmill_web::{Reach, WithWeb};
use std::{
    fs::DirBuilder,
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

/// How long a service of one's own may take to start.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take to end before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The system a job runs on.
pub struct Stack {
    pub aws: Aws,
    pub ns: Namespace,
    pub bucket: String,
    pub ports: FetcherPorts,
    /// The coordinator of `ports`, which knows what its last call came to.
    pub link: Arc<Link>,
    /// Beside the AWS APIs; none on AWS.
    pub local: Option<Local>,
    own: Option<OwnService>,
}

/// A service on this machine.
pub struct Local {
    pub admin: LocalService,
    pub pid: u32,
}

/// A service that lives as long as this process.
struct OwnService {
    child: Child,
    /// Closing it ends the service; so does the death of this process.
    stdin: ChildStdin,
    /// Its state is the user's, to be gone on with.
    keep: bool,
    _lock: Option<std::fs::File>,
}

impl Stack {
    /// Starts or attaches to what the arguments say.
    pub async fn open(args: &TrainArgs) -> Result<Self, Failure> {
        match (args.backend, &args.endpoint) {
            (Backend::Aws, Some(_)) => Err(Failure::usage(
                "--endpoint names a local service, --backend aws a deployed one",
            )),
            (Backend::Aws, None) => Self::deployed().await,
            (Backend::Local, Some(endpoint)) => {
                let file = ServiceFile::of_endpoint(endpoint).map_err(Failure::usage)?;
                Self::of_file(&file, None)
            }
            (Backend::Local, None) => Self::own(args.state_dir.as_deref()).await,
        }
    }

    /// Attaches to the service that the arguments name, or starts one of one's own with what runs before
    /// have left.
    pub async fn named_or_own(args: &ServiceArgs) -> Result<Self, Failure> {
        match (args.backend, &args.endpoint, &args.state_dir) {
            (Backend::Local, None, None) => Self::own(None).await,
            _ => Self::running(args).await,
        }
    }

    /// Attaches to a service that runs already; starts none.
    pub async fn running(args: &ServiceArgs) -> Result<Self, Failure> {
        match find(args)? {
            Found::Deployed => Self::deployed().await,
            Found::Local(file) => {
                let file = file.map_err(Failure::usage)?;
                Self::of_file(&file, None)
            }
        }
    }

    /// Folders of this machine that the service offers as buckets.
    pub async fn folders(&self) -> Folders {
        match &self.local {
            Some(local) => Folders::new(local.admin.mounts().await.unwrap_or_default()),
            None => Folders::default(),
        }
    }

    async fn deployed() -> Result<Self, Failure> {
        let settings = Settings::from_lookup(|name| std::env::var(name).ok());
        let settings = settings.map_err(Failure::usage)?;
        let aws = Aws::from_env().await.map_err(Failure::usage)?;
        let url = settings.coordinator_url().map_err(Failure::usage)?;
        let coordinator = aws.coordinator(url, settings.ns.clone()).map_err(Failure::usage)?;
        let (link, ports) = ports(Arc::new(coordinator), Arc::new(aws.objects()))?;
        let bucket = settings.bucket().map_err(Failure::usage)?.to_owned();
        Ok(Self { aws, ns: settings.ns, bucket, ports, link, local: None, own: None })
    }

    fn of_file(file: &ServiceFile, own: Option<OwnService>) -> Result<Self, Failure> {
        let ns: Namespace = file.namespace.parse().map_err(Failure::failed)?;
        let aws = aws_of(file);
        let coordinator = aws.coordinator(&file.coordinator_url, ns.clone());
        let coordinator = coordinator.map_err(Failure::failed)?;
        let objects = aws.objects_beside(&file.bucket, &file.folders);
        let (link, ports) = ports(Arc::new(coordinator), Arc::new(objects))?;
        let local = Local { admin: aws.local_service(&file.endpoint), pid: file.pid };
        let bucket = file.bucket.clone();
        Ok(Self { aws, ns, bucket, ports, link, local: Some(local), own })
    }

    async fn own(state_dir: Option<&Path>) -> Result<Self, Failure> {
        let place = match state_dir {
            Some(dir) => Place { dir: Some(dir.to_owned()), keep: true, lock: None },
            None => shared_place(),
        };
        let executable = std::env::current_exe().map_err(Failure::failed)?;
        let mut command = Command::new(executable);
        command.args(["up", "--json", "--attended"]);
        if let Some(dir) = &place.dir {
            command.arg("--state-dir").arg(dir);
        }
        if !place.keep {
            command.arg("--table-in-memory");
        }
        // Its own group: Ctrl-C is for this process, which then ends the service in order.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Failure::failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::failed("the service has no pipes"));
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
                Ok(up::Refusal { code, failed }) => Failure { code, message: failed },
                Err(_) => Failure::failed("the local service did not start"),
            });
        };
        let file = ServiceFile::of_state_dir(Path::new(dir)).map_err(Failure::failed)?;
        let own = OwnService { child, stdin, keep: place.keep, _lock: place.lock };
        let stack = Self::of_file(&file, Some(own))?;
        stack.clear_jobs().await;
        Ok(stack)
    }

    /// Without a table there are no jobs: objects of jobs are what an earlier run left that was
    /// interrupted. Indices stay, they are a function of the data.
    async fn clear_jobs(&self) {
        if self.own.as_ref().is_none_or(|own| own.keep) {
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

    /// What was stored for the cache and never became a part of it: no entry says that it is complete.
    async fn stray_cached(&self) -> Result<Vec<String>, ObjectError> {
        let listed = self.ports.objects.list(&self.bucket, &keys::cache_prefix(&self.ns)).await?;
        let mut shelves = Vec::new();
        for object in &listed {
            if keys::parse_cache_entry(&self.ns, &object.key).is_some() {
                let path = ObjectPath::new(&self.bucket, &object.key);
                let entry = self.ports.objects.get(&path).await?;
                // One that cannot be read is of no use to anybody.
                if let Ok(entry) = serde_json::from_slice::<CacheEntry>(&entry) {
                    shelves.push(entry.shelf);
                    shelves.push(object.key.clone());
                }
            }
        }
        let keys = listed.into_iter().map(|object| object.key);
        Ok(keys.filter(|key| !shelves.iter().any(|shelf| key.starts_with(shelf))).collect())
    }

    /// Ends a service of one's own; leaves any other as it is.
    pub async fn close(self) {
        self.clear_jobs().await;
        let Some(OwnService { mut child, stdin, keep: _, _lock }) = self.own else { return };
        drop(stdin);
        if tokio::time::timeout(END_PATIENCE, child.wait()).await.is_err() {
            // It was killed on purpose, so that its exit code says nothing.
            let _ = child.kill().await;
        }
    }
}

/// The way to a stack, for a trainer with the operators of this program.
fn ports(
    coordinator: Arc<dyn Coordinator>,
    objects: Arc<dyn Objects>,
) -> Result<(Arc<Link>, FetcherPorts), Failure> {
    let link = Arc::new(Link::new(coordinator));
    let objects = WithWeb::from_env(objects, Reach::Any).map_err(Failure::usage)?;
    let ports = FetcherPorts::new(Arc::clone(&link) as _, Arc::new(objects));
    Ok((link, FetcherPorts { operators: operators::get(), ..ports }))
}

/// What the arguments name.
pub enum Found {
    Deployed,
    /// A service of this machine, if there is one.
    Local(Result<Box<ServiceFile>, AttachError>),
}

/// Finds the running service that the arguments name; asks it nothing.
pub fn find(args: &ServiceArgs) -> Result<Found, Failure> {
    let local = |file: Result<_, _>| Ok(Found::Local(file.map(Box::new)));
    match (args.backend, &args.endpoint, &args.state_dir) {
        (Backend::Aws, None, None) => Ok(Found::Deployed),
        (Backend::Aws, ..) => Err(Failure::usage(
            "--endpoint and --state-dir name a local service, --backend aws a deployed one",
        )),
        (Backend::Local, Some(endpoint), _) => local(ServiceFile::of_endpoint(endpoint)),
        (Backend::Local, None, Some(dir)) => local(ServiceFile::of_state_dir(dir)),
        (Backend::Local, None, None) => Err(Failure::usage(
            "which service? name it with --endpoint or --state-dir, or say --backend aws",
        )),
    }
}

/// Where a service of one's own keeps its objects.
struct Place {
    /// None: a temporary directory, removed at the end.
    dir: Option<PathBuf>,
    /// Keeps the table as well.
    keep: bool,
    lock: Option<std::fs::File>,
}

/// The user's cache, so that a dataset is indexed once; a temporary directory if another run is
/// using it, or if there is no home.
fn shared_place() -> Place {
    let none = Place { dir: None, keep: false, lock: None };
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let Some(dir) = cache.map(|cache| cache.join("gristmill/service")) else { return none };
    // For its owner alone, as the service would make it.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    let lock = made.and_then(|()| std::fs::File::create(dir.join("run.lock")));
    match lock {
        Ok(lock) if lock.try_lock().is_ok() => {
            Place { dir: Some(dir), keep: false, lock: Some(lock) }
        }
        _ => none,
    }
}
