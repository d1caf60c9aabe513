//! The worker of a stack, on AWS or a local service: its settings and ports.

use crate::WorkerFunction;
use gristmill_aws::{Aws, Settings};
use gristmill_pipeline::Registry;
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{Metrics, Objects, SystemClock};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_web::{Reach, WithWeb};
use lambda_runtime::Error;
use std::sync::Arc;

/// The platform that runs a worker.
#[derive(Debug, Clone)]
pub enum Platform {
    /// Lambda.
    Lambda,
    /// A local service, which also serves folders of its machine as buckets, at the endpoint `folders`.
    Local { folders: String },
}

impl WorkerFunction {
    /// The worker of the stack that `settings` names, with the access that `aws` gives, in a function of `memory_mb`.
    ///
    /// # Errors
    /// A setting is missing or invalid.
    pub fn from_settings(
        settings: &Settings,
        aws: &Aws,
        platform: &Platform,
        memory_mb: Option<u32>,
        operators: Arc<Registry>,
    ) -> Result<Self, Error> {
        let bucket = settings.bucket()?.to_owned();
        let (objects, shape): (Arc<dyn Objects>, _) = match platform {
            Platform::Lambda => {
                let shape = FunctionShape::default();
                let memory_mb = memory_mb.unwrap_or(shape.memory_mb);
                (Arc::new(aws.objects()), Some(FunctionShape { memory_mb, ..shape }))
            }
            // Objects stay on this machine.
            Platform::Local { folders } => {
                (Arc::new(aws.objects_beside(bucket.clone(), folders)), None)
            }
        };
        // The function may reach the account's private networks, and data addresses come from users: restrict
        // them to public addresses unless the deployment allows private ones.
        let reach = if settings.private_sources { Reach::Any } else { Reach::Public };
        let coordinator = aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?;
        let runner = Runner {
            coordinator: Arc::new(coordinator),
            objects: Arc::new(WithWeb::from_env(objects, reach)?),
            clock: Arc::new(SystemClock),
            compute: Compute::of_function(memory_mb),
            operators,
            config: RunnerConfig { ns: settings.ns.clone(), bucket, local: false, shape },
        };
        let metrics = Metrics::new("worker", settings.ns.clone(), settings.metrics);
        Ok(Self::new(runner, metrics))
    }
}
