//! A connection to a service: a deployed stack, or one on this machine.

use crate::{
    ProgramFailure, ServiceBackend, ServiceOptions, complain, service_launcher::ServiceHold,
};
use gristmill_aws::{
    Aws, AwsCredentials, OUTSIDE_AWS, S3Objects, StackSettings, is_built, is_on_aws,
};
use gristmill_host::{
    AttachError, ClientLock, FolderRegistry, ForeignS3, HostObjects, HostServiceClient, ServiceFile,
};
use gristmill_model::Namespace;
use gristmill_pipeline::OperatorRegistry;
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{CallError, Coordinator, ObjectStore, SystemClock, time_run};
use gristmill_stream::{FetcherPorts, FolderBuckets, waiting::TrackedCoordinator};
use gristmill_web::{AllowedServers, WebRoutedStore};
use std::{future::Future, path::Path, sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// Interval between questions about a service's trouble.
const TROUBLE_LOOK: Duration = Duration::from_secs(1);

/// A connection to a service; clones share it.
#[derive(Clone)]
pub struct ServiceConnection {
    /// The APIs of a deployed stack; none on this machine.
    pub aws: Option<Aws>,
    pub ns: Namespace,
    /// Bucket of the service's own objects.
    pub bucket: String,
    pub ports: FetcherPorts,
    /// The coordinator of `ports`; remembers the outcome of its last call.
    pub link: Arc<TrackedCoordinator>,
    /// The service on this machine; none on AWS.
    pub local: Option<Arc<LocalService>>,
    pub(crate) held: Arc<Mutex<Option<ServiceHold>>>,
}

/// A service on this machine.
pub struct LocalService {
    pub file: ServiceFile,
    pub calls: Arc<HostServiceClient>,
    folders: FolderRegistry,
}

impl LocalService {
    /// Makes the folder `path` of this machine readable as the bucket `name`.
    pub fn offer(&self, name: &str, path: &Path) -> Result<(), CallError> {
        self.folders
            .add(name, path)
            .map_err(|error| CallError::Rejected(format!("{}: {error}", path.display())))
    }
}

/// The service that options name.
#[derive(Debug)]
pub enum NamedService {
    Deployed,
    /// A service on this machine, if there is one.
    Local(Result<Box<ServiceFile>, AttachError>),
}

impl ServiceOptions {
    /// The one service that the options name; sends no request.
    pub fn target(&self) -> Result<NamedService, ProgramFailure> {
        let local = |file: Result<_, _>| Ok(NamedService::Local(file.map(Box::new)));
        match (self.backend, &self.endpoint, &self.state_dir) {
            (ServiceBackend::Aws, None, None) => {
                needs_aws("--backend aws").map(|()| NamedService::Deployed)
            }
            (ServiceBackend::Aws, ..) => Err(ProgramFailure::usage(
                "--endpoint and --state-dir name a local service, --backend aws a deployed one",
            )),
            (ServiceBackend::Local, Some(endpoint), _) => {
                local(ServiceFile::from_endpoint(endpoint))
            }
            (ServiceBackend::Local, None, Some(dir)) => local(ServiceFile::from_state_dir(dir)),
            (ServiceBackend::Local, None, None) => Err(ProgramFailure::usage(
                "no service is named: use --endpoint, --state-dir or --backend aws",
            )),
        }
    }
}

/// Connects to the running service that `options` name. `operators` are those of the user, for local workers
/// and for reading pipelines.
pub async fn connect(
    options: &ServiceOptions,
    operators: Arc<OperatorRegistry>,
) -> Result<ServiceConnection, ProgramFailure> {
    match options.target()? {
        NamedService::Deployed => ServiceConnection::deployed(operators).await,
        NamedService::Local(file) => {
            let file = file.map_err(ProgramFailure::usage)?;
            let lock = ClientLock::take(&file.state_dir).await.map_err(ProgramFailure::failed)?;
            ServiceConnection::from_file(*file, operators, ServiceHold::Shared { _lock: lock })
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

impl ServiceConnection {
    /// The deployed stack that GRISTMILL_* and AWS_* variables name.
    async fn deployed(operators: Arc<OperatorRegistry>) -> Result<Self, ProgramFailure> {
        let settings = StackSettings::from_env();
        let settings = settings.map_err(ProgramFailure::usage)?;
        parse_shape().map_err(|why| ProgramFailure::usage(format!("{WORKER_SHAPE}: {why}")))?;
        let url = settings.coordinator_url().map_err(ProgramFailure::usage)?;
        let bucket = settings.bucket().map_err(ProgramFailure::usage)?.to_owned();
        let aws = Aws::from_env().await.map_err(ProgramFailure::usage)?;
        if is_on_aws() == Some(false) && !aws.has_own_endpoints() {
            let (found, advice) = OUTSIDE_AWS;
            complain!("{found}: {advice}");
        }
        let coordinator =
            aws.coordinator(url, settings.ns.clone()).map_err(ProgramFailure::usage)?;
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
    pub(crate) fn from_file(
        file: ServiceFile,
        operators: Arc<OperatorRegistry>,
        held: ServiceHold,
    ) -> Result<Self, ProgramFailure> {
        if let Some(s3) = &file.s3 {
            needs_aws(&s3.endpoint)?;
        }
        let objects = HostObjects::open(&file, Arc::new(S3Objects::ambient()), foreign_objects);
        let objects = objects.map_err(ProgramFailure::failed)?;
        let calls = Arc::new(HostServiceClient::new(&file).telling(objects.chunk_bytes()));
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
    pub fn backend(&self) -> ServiceBackend {
        if self.local.is_some() { ServiceBackend::Local } else { ServiceBackend::Aws }
    }

    /// Folders of this machine that the service offers as buckets.
    pub async fn folders(&self) -> FolderBuckets {
        match &self.local {
            Some(local) => FolderBuckets::new(local.folders.all().unwrap_or_default()),
            None => FolderBuckets::default(),
        }
    }

    /// Resolves, with the reason, once a service on this machine has been unable to work for `patience`. Until
    /// then [`ServiceConnection::link`] reports the problem.
    pub async fn given_up(&self, patience: Duration) -> ProgramFailure {
        let Some(local) = &self.local else { return std::future::pending().await };
        let trouble = async || Some(local.calls.status().await.ok()?.trouble);
        ProgramFailure::failed(give_up(trouble, &self.link, (patience, TROUBLE_LOOK)).await)
    }
}

/// Objects on S3 and on web servers, read as the environment says.
pub(crate) fn ambient_objects() -> Result<WebRoutedStore, ProgramFailure> {
    WebRoutedStore::from_env(Arc::new(S3Objects::ambient()), AllowedServers::Any)
        .map_err(ProgramFailure::usage)
}

/// The ports to a service, for a trainer with the user's `operators`.
fn ports(
    coordinator: Arc<dyn Coordinator>,
    objects: Arc<dyn ObjectStore>,
    operators: Arc<OperatorRegistry>,
) -> Result<(Arc<TrackedCoordinator>, FetcherPorts), ProgramFailure> {
    let link = Arc::new(TrackedCoordinator::new(coordinator));
    let objects =
        WebRoutedStore::from_env(objects, AllowedServers::Any).map_err(ProgramFailure::usage)?;
    let ports = FetcherPorts::new(Arc::clone(&link) as _, Arc::new(objects));
    Ok((link, FetcherPorts { operators, ..ports }))
}

/// The objects that another service keeps for one on this machine.
fn foreign_objects(s3: &ForeignS3) -> Arc<dyn ObjectStore> {
    let ForeignS3 { endpoint, region, access_key_id, secret_access_key } = s3.clone();
    let credentials = AwsCredentials { access_key_id, secret_access_key, session_token: None };
    Arc::new(S3Objects::at(endpoint, region, credentials))
}

/// Refuses `named`, which is on AWS, in a program that reaches no AWS.
pub fn needs_aws(named: &str) -> Result<(), ProgramFailure> {
    is_built().map_err(|error| ProgramFailure::usage(format!("{named}: {error}")))
}

// Problems of a service on this machine, polled from the service: its clients only see that no batch comes.

/// Records in `link` the problem that keeps a service from working, asking every `look`. Resolves, with the reason, only
/// when the problem has lasted for `patience`.
///
/// `ask` returns the problem, if there is one; nothing if the service does not answer.
pub(crate) async fn give_up<F>(
    ask: impl Fn() -> F,
    link: &TrackedCoordinator,
    (patience, look): (Duration, Duration),
) -> String
where
    F: Future<Output = Option<Option<String>>>,
{
    // Time between looks, of which none lasts longer than some seconds.
    let mut waited = Duration::ZERO;
    loop {
        if let Some(said) = ask().await {
            link.service_says(said.clone());
            if said.is_none() {
                waited = Duration::ZERO;
            }
            if let Some(trouble) = said
                && waited >= patience
            {
                let what = trouble.rsplit_once(": ").map_or(&*trouble, |(what, _)| what);
                let seconds = patience.as_secs();
                return format!("{what}, for {seconds} s: free some space and start the job again");
            }
        }
        waited += time_run(&SystemClock, look).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_stream::samples::SilentCoordinator;
    use std::{cell::Cell, future::ready, sync::Arc};

    #[tokio::test]
    async fn trouble_is_known_while_it_lasts_and_ends_a_run_after_its_patience() {
        let (link, asked) = (TrackedCoordinator::new(Arc::new(SilentCoordinator)), Cell::new(0));
        let ask = || {
            asked.set(asked.get() + 1);
            // Full, then not for a moment, then full.
            let full = !(5..8).contains(&asked.get());
            if asked.get() > 1 {
                let was_full = !(5..8).contains(&(asked.get() - 1));
                assert_eq!(link.waiting().text.contains("is full"), was_full, "{}", asked.get());
            }
            ready(Some(full.then(|| "the disk under /a: b is full (0 bytes free): do".to_owned())))
        };
        let ms = Duration::from_millis;
        let ended = give_up(ask, &link, (ms(200), ms(2))).await;
        assert_eq!(
            ended,
            "the disk under /a: b is full (0 bytes free), for 0 s: free some space and start the \
             job again"
        );
        assert!(asked.get() > 10, "{}", asked.get());
    }
}
