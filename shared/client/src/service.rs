//! A connection to a service: a deployed stack, or one on this machine.

use crate::{
    AttachError, Backend, Failure, FetcherPorts, Folders, ServiceFile, ServiceOptions, give_up,
    own::OwnService, waiting::Link,
};
use gristmill_aws::{Aws, Credentials, Endpoints, LocalService, Settings};
use gristmill_model::Namespace;
use gristmill_pipeline::Registry;
use gristmill_ports::{Coordinator, Objects};
use gristmill_web::{Reach, WithWeb};
use std::{sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// A connection to a service; clones share it.
#[derive(Clone)]
pub struct Service {
    pub aws: Aws,
    pub ns: Namespace,
    /// Bucket of the service's own objects.
    pub bucket: String,
    pub ports: FetcherPorts,
    /// The coordinator of `ports`; remembers the outcome of its last call.
    pub link: Arc<Link>,
    /// The service's process on this machine; none on AWS.
    pub local: Option<Arc<LocalHost>>,
    pub(crate) own: Arc<Mutex<Option<OwnService>>>,
}

/// The process of a service on this machine.
#[derive(Debug)]
pub struct LocalHost {
    pub admin: LocalService,
    pub pid: u32,
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
            (Backend::Aws, None, None) => Ok(Target::Deployed),
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
        Target::Local(file) => Service::of_file(&*file.map_err(Failure::usage)?, operators),
    }
}

impl Service {
    /// The deployed stack that GRISTMILL_* and AWS_* variables name.
    async fn deployed(operators: Arc<Registry>) -> Result<Self, Failure> {
        let settings = Settings::from_env();
        let settings = settings.map_err(Failure::usage)?;
        let url = settings.coordinator_url().map_err(Failure::usage)?;
        let bucket = settings.bucket().map_err(Failure::usage)?.to_owned();
        let aws = Aws::from_env().await.map_err(Failure::usage)?;
        let coordinator = aws.coordinator(url, settings.ns.clone()).map_err(Failure::usage)?;
        let objects = Arc::new(aws.objects());
        let (link, ports) = ports(Arc::new(coordinator), objects, operators)?;
        let own = Arc::default();
        Ok(Self { aws, ns: settings.ns, bucket, ports, link, local: None, own })
    }

    /// The service on this machine that `file` describes.
    pub(crate) fn of_file(file: &ServiceFile, operators: Arc<Registry>) -> Result<Self, Failure> {
        let ns: Namespace = file.namespace.parse().map_err(Failure::failed)?;
        let aws = aws_of(file);
        let coordinator = aws.coordinator(&file.coordinator_url, ns.clone());
        let coordinator = coordinator.map_err(Failure::failed)?;
        let objects = Arc::new(aws.objects_beside(&file.bucket, &file.folders));
        let (link, ports) = ports(Arc::new(coordinator), objects, operators)?;
        let local = LocalHost { admin: aws.local_service(&file.endpoint), pid: file.pid };
        let (local, bucket) = (Some(Arc::new(local)), file.bucket.clone());
        Ok(Self { aws, ns, bucket, ports, link, local, own: Arc::default() })
    }

    /// The kind of service it is.
    pub fn backend(&self) -> Backend {
        if self.local.is_some() { Backend::Local } else { Backend::Aws }
    }

    /// Folders of this machine that the service offers as buckets.
    pub async fn folders(&self) -> Folders {
        match &self.local {
            Some(local) => Folders::new(local.admin.mounts().await.unwrap_or_default()),
            None => Folders::default(),
        }
    }

    /// Resolves, with the reason, once a service on this machine has been unable to work for `patience`. Until
    /// then [`Service::link`] reports the problem.
    pub async fn given_up(&self, patience: Duration) -> Failure {
        let trouble = self.local.as_ref().map(|local| async || local.admin.trouble().await.ok());
        Failure::failed(give_up(trouble, &self.link, patience).await)
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

/// The AWS APIs of a service on this machine.
pub fn aws_of(file: &ServiceFile) -> Aws {
    let endpoints = Endpoints {
        s3: file.s3.clone(),
        dynamodb: file.dynamodb.clone(),
        lambda: file.endpoint.clone(),
        region: file.region.clone(),
    };
    let credentials = Credentials {
        access_key_id: file.access_key_id.clone(),
        secret_access_key: file.secret_access_key.clone(),
        session_token: None,
    };
    Aws::with(endpoints, credentials)
}
