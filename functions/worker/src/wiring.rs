//! The worker of a stack on AWS: its settings and ports; and the objects of a service on this machine.

use crate::WorkerFunction;
use gristmill_aws::{Aws, Credentials, Endpoints, S3Objects, Settings};
use gristmill_host::{ForeignS3, HostError, HostObjects, ServiceFile};
use gristmill_pipeline::Registry;
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{Metrics, Objects, SystemClock};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_web::{Reach, WithWeb};
use lambda_runtime::Error;
use std::sync::Arc;

impl WorkerFunction {
    /// The worker of the stack that `settings` names, with the access that `aws` gives, in a function of `memory_mb`.
    ///
    /// # Errors
    /// A setting is missing or invalid.
    pub fn from_settings(
        settings: &Settings,
        aws: &Aws,
        memory_mb: Option<u32>,
        operators: Arc<Registry>,
    ) -> Result<Self, Error> {
        let bucket = settings.bucket()?.to_owned();
        let shape = FunctionShape::default();
        let shape = FunctionShape { memory_mb: memory_mb.unwrap_or(shape.memory_mb), ..shape };
        // The function may reach the account's private networks, and data addresses come from users: restrict
        // them to public addresses unless the deployment allows private ones.
        let reach = if settings.private_sources { Reach::Any } else { Reach::Public };
        let coordinator = aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?;
        let ns = settings.ns.clone();
        let runner = Runner {
            coordinator: Arc::new(coordinator),
            objects: Arc::new(WithWeb::from_env(Arc::new(aws.objects()), reach)?),
            clock: Arc::new(SystemClock),
            compute: Compute::of_function(memory_mb),
            operators,
            config: RunnerConfig { ns, bucket, local: false, shape: Some(shape) },
        };
        let metrics = Metrics::new("worker", settings.ns.clone(), settings.metrics);
        Ok(Self::new(runner, metrics))
    }
}

/// The objects of the service that `file` describes; other buckets are those that the user may read.
pub(crate) fn host_objects(file: &ServiceFile) -> Result<HostObjects, HostError> {
    HostObjects::open(file, Arc::new(S3Objects::ambient()), |s3| {
        let ForeignS3 { endpoint, region, access_key_id, secret_access_key } = s3.clone();
        let credentials = Credentials { access_key_id, secret_access_key, session_token: None };
        let endpoints = Endpoints { s3: Some(endpoint), ..Endpoints::default() };
        let objects: Arc<dyn Objects> =
            Arc::new(Aws::with(endpoints, region, credentials).objects());
        objects
    })
}
