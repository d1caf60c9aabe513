//! The worker of a stack on AWS: its settings, its ports, and its events.

use crate::WorkerFunction;
use gristmill_aws::{Aws, StackSettings};
use gristmill_model::wire::{WorkerEvent, protocol};
use gristmill_pipeline::OperatorRegistry;
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{FunctionMetrics, SystemClock};
use gristmill_runner::{ComputeMode, Runner, RunnerConfig};
use gristmill_web::{AllowedServers, WebRoutedStore};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use std::sync::Arc;

impl WorkerFunction {
    /// The worker of the stack that `settings` names, with the access that `aws` gives, in a function of `memory_mb`.
    pub fn from_settings(
        settings: &StackSettings,
        aws: &Aws,
        memory_mb: Option<u32>,
        operators: Arc<OperatorRegistry>,
    ) -> Result<Self, Error> {
        let bucket = settings.bucket()?.to_owned();
        let shape = FunctionShape::default();
        let shape = FunctionShape { memory_mb: memory_mb.unwrap_or(shape.memory_mb), ..shape };
        // The function may reach the account's private networks, and data addresses come from users: restrict
        // them to public addresses unless the deployment allows private ones.
        let reach =
            if settings.private_sources { AllowedServers::Any } else { AllowedServers::Public };
        let coordinator = aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?;
        let ns = settings.ns.clone();
        let runner = Runner {
            coordinator: Arc::new(coordinator),
            objects: Arc::new(WebRoutedStore::from_env(Arc::new(aws.objects()), reach)?),
            clock: Arc::new(SystemClock),
            compute: ComputeMode::from_function_memory(memory_mb),
            operators,
            config: RunnerConfig { ns, bucket, local: false, shape: Some(shape) },
        };
        let metrics = FunctionMetrics::new("worker", settings.ns.clone(), settings.metrics);
        Ok(Self::new(runner, metrics))
    }
}

/// Serves worker events until the platform ends the environment.
pub async fn serve(worker: WorkerFunction) -> Result<(), Error> {
    let worker = Arc::new(worker);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<serde_json::Value>| {
        let worker = Arc::clone(&worker);
        async move {
            let (event, context) = event.into_parts();
            let event = protocol::read_event::<WorkerEvent>(event)?;
            worker.handle(&event, context.request_id, context.deadline).await.map_err(Error::from)
        }
    }))
    .await
}
