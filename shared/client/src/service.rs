//! A connection to a service: a deployed stack, or one on this machine.

use crate::{
    Backend, Failure, FetcherPorts, Folders, ServiceOptions, complain, own::Held, trouble::give_up,
    waiting::Link,
};
use gristmill_aws::{Aws, Credentials, OUTSIDE_AWS, S3Objects, Settings, is_built, is_on_aws};
use gristmill_host::{
    AttachError, ClientLock, FolderRegistry, ForeignS3, HostObjects, ServiceCalls, ServiceFile,
};
use gristmill_model::Namespace;
use gristmill_pipeline::Registry;
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{CallError, Coordinator, Objects};
use gristmill_web::{Reach, WithWeb};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// Interval between questions about a service's trouble.
const TROUBLE_LOOK: Duration = Duration::from_secs(1);

/// A connection to a service; clones share it.
#[derive(Clone)]
pub struct Service {
    /// The APIs of a deployed stack; none on this machine.
    pub aws: Option<Aws>,
    pub ns: Namespace,
    /// Bucket of the service's own objects.
    pub bucket: String,
    pub ports: FetcherPorts,
    /// The coordinator of `ports`; remembers the outcome of its last call.
    pub link: Arc<Link>,
    /// The service on this machine; none on AWS.
    pub local: Option<Arc<LocalService>>,
    pub(crate) held: Arc<Mutex<Option<Held>>>,
}

/// A service on this machine.
pub struct LocalService {
    pub file: ServiceFile,
    pub calls: Arc<ServiceCalls>,
    folders: FolderRegistry,
}

impl LocalService {
    /// Makes the folder `path` of this machine readable as the bucket `name`.
    ///
    /// # Errors
    /// The folder cannot be read, or the state directory not be written.
    pub fn offer(&self, name: &str, path: &Path) -> Result<(), CallError> {
        self.folders
            .add(name, path)
            .map_err(|error| CallError::Rejected(format!("{}: {error}", path.display())))
    }
}

/// The service that options name.
#[derive(Debug)]
pub enum Target {
    Deployed,
    /// A service on this machine, if there is one.
    Local(Result<Box<ServiceFile>, AttachError>),
}

impl ServiceOptions {
    /// The service that the options name; sends no request.
    ///
    /// # Errors
    /// [`Failure::Usage`] if they name none, or two.
    pub fn target(&self) -> Result<Target, Failure> {
        let local = |file: Result<_, _>| Ok(Target::Local(file.map(Box::new)));
        match (self.backend, &self.endpoint, &self.state_dir) {
            (Backend::Aws, None, None) => needs_aws("--backend aws").map(|()| Target::Deployed),
            (Backend::Aws, ..) => Err(Failure::usage(
                "--endpoint and --state-dir name a local service, --backend aws a deployed one",
            )),
            (Backend::Local, Some(endpoint), _) => local(ServiceFile::of_endpoint(endpoint)),
            (Backend::Local, None, Some(dir)) => local(ServiceFile::of_state_dir(dir)),
            (Backend::Local, None, None) => Err(Failure::usage(
                "no service is named: use --endpoint, --state-dir or --backend aws",
            )),
        }
    }
}

/// Connects to the running service that `options` name. `operators` are those of the user, for local workers
/// and for reading pipelines.
///
/// # Errors
/// [`Failure::Usage`] if they name none, or a setting is missing or invalid.
pub async fn connect(
    options: &ServiceOptions,
    operators: Arc<Registry>,
) -> Result<Service, Failure> {
    match options.target()? {
        Target::Deployed => Service::deployed(operators).await,
        Target::Local(file) => {
            let file = file.map_err(Failure::usage)?;
            let lock = ClientLock::take(&file.state_dir).await.map_err(Failure::failed)?;
            Service::of_file(*file, operators, Held::Shared { _lock: lock })
        }
    }
}

/// Memory and architecture of the stack's workers, as `scripts/deploy` prints it.
const WORKER_SHAPE: &str = "GRISTMILL_WORKER_SHAPE";

/// The shape of the stack's workers, in money; the default if nothing says it.
pub(crate) fn stack_shape() -> FunctionShape {
    parse_shape().unwrap_or_default()
}

fn parse_shape() -> Result<FunctionShape, String> {
    match std::env::var(WORKER_SHAPE) {
        Ok(text) if !text.is_empty() => text.parse(),
        _ => Ok(FunctionShape::default()),
    }
}

impl Service {
    /// The deployed stack that GRISTMILL_* and AWS_* variables name.
    async fn deployed(operators: Arc<Registry>) -> Result<Self, Failure> {
        let settings = Settings::from_env();
        let settings = settings.map_err(Failure::usage)?;
        parse_shape().map_err(|why| Failure::usage(format!("{WORKER_SHAPE}: {why}")))?;
        let url = settings.coordinator_url().map_err(Failure::usage)?;
        let bucket = settings.bucket().map_err(Failure::usage)?.to_owned();
        let aws = Aws::from_env().await.map_err(Failure::usage)?;
        if is_on_aws() == Some(false) && !aws.has_own_endpoints() {
            let (found, advice) = OUTSIDE_AWS;
            complain!("{found}: {advice}");
        }
        let coordinator = aws.coordinator(url, settings.ns.clone()).map_err(Failure::usage)?;
        let objects = Arc::new(aws.objects());
        let (link, ports) = ports(Arc::new(coordinator), objects, operators)?;
        Ok(Self {
            aws: Some(aws),
            ns: settings.ns,
            bucket,
            ports,
            link,
            local: None,
            held: Arc::default(),
        })
    }

    /// The service on this machine that `file` describes. `held` is kept as long as it is used.
    pub(crate) fn of_file(
        file: ServiceFile,
        operators: Arc<Registry>,
        held: Held,
    ) -> Result<Self, Failure> {
        if let Some(s3) = &file.s3 {
            needs_aws(&s3.endpoint)?;
        }
        let objects = HostObjects::open(&file, Arc::new(S3Objects::ambient()), foreign_objects);
        let objects = objects.map_err(Failure::failed)?;
        let calls = Arc::new(ServiceCalls::new(&file).telling(objects.chunk_bytes()));
        let (link, ports) = ports(Arc::clone(&calls) as _, Arc::new(objects), operators)?;
        let folders = FolderRegistry::new(&file.state_dir);
        let (ns, bucket) = (file.namespace.clone(), file.bucket.clone());
        let local = Some(Arc::new(LocalService { file, calls, folders }));
        Ok(Self {
            aws: None,
            ns,
            bucket,
            ports,
            link,
            local,
            held: Arc::new(Mutex::new(Some(held))),
        })
    }

    /// The kind of service it is.
    pub fn backend(&self) -> Backend {
        if self.local.is_some() { Backend::Local } else { Backend::Aws }
    }

    /// Folders of this machine that the service offers as buckets.
    pub async fn folders(&self) -> Folders {
        match &self.local {
            Some(local) => Folders::new(local.folders.all().unwrap_or_default()),
            None => Folders::default(),
        }
    }

    /// Resolves, with the reason, once a service on this machine has been unable to work for `patience`. Until
    /// then [`Service::link`] reports the problem.
    pub async fn given_up(&self, patience: Duration) -> Failure {
        let Some(local) = &self.local else { return std::future::pending().await };
        let trouble = async || Some(local.calls.status().await.ok()?.trouble);
        Failure::failed(give_up(trouble, &self.link, (patience, TROUBLE_LOOK)).await)
    }
}

/// The ports to a service, for a trainer with the user's `operators`.
fn ports(
    coordinator: Arc<dyn Coordinator>,
    objects: Arc<dyn Objects>,
    operators: Arc<Registry>,
) -> Result<(Arc<Link>, FetcherPorts), Failure> {
    let link = Arc::new(Link::new(coordinator));
    let objects = WithWeb::from_env(objects, Reach::Any).map_err(Failure::usage)?;
    let ports = FetcherPorts::new(Arc::clone(&link) as _, Arc::new(objects));
    Ok((link, FetcherPorts { operators, ..ports }))
}

/// The objects that another service keeps for one on this machine.
fn foreign_objects(s3: &ForeignS3) -> Arc<dyn Objects> {
    let ForeignS3 { endpoint, region, access_key_id, secret_access_key } = s3.clone();
    let credentials = Credentials { access_key_id, secret_access_key, session_token: None };
    Arc::new(S3Objects::at(endpoint, region, credentials))
}

/// Refuses `named`, which is on AWS, in a program that reaches no AWS.
///
/// # Errors
/// [`Failure::Usage`], with the remedy.
pub fn needs_aws(named: &str) -> Result<(), Failure> {
    is_built().map_err(|error| Failure::usage(format!("{named}: {error}")))
}
