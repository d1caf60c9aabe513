//! The worker function: wiring only.

use gristmill_aws::{Aws, Settings, function_memory_mb};
use gristmill_policy::cost::FunctionShape;
use gristmill_ports::{Metrics, SystemClock};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_web::{Reach, WithWeb};
use gristmill_worker::WorkerFunction;
use std::sync::Arc;

// Splits are computed on separate threads.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    lambda_runtime::tracing::init_default_subscriber();
    let settings = Settings::from_lookup(|name| std::env::var(name).ok())?;
    let aws = Aws::of_function()?;
    let memory_mb = function_memory_mb(|name| std::env::var(name).ok());
    let shape = FunctionShape::default();
    let shape = FunctionShape { memory_mb: memory_mb.unwrap_or(shape.memory_mb), ..shape };
    // The function may reach the account's private networks, and data addresses come from users: restrict
    // them to public addresses unless the deployment allows private ones.
    let reach = if settings.private_sources { Reach::Any } else { Reach::Public };
    let runner = Runner {
        coordinator: Arc::new(aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?),
        objects: Arc::new(WithWeb::from_env(Arc::new(aws.objects()), reach)?),
        clock: Arc::new(SystemClock),
        compute: Compute::of_function(memory_mb),
        operators: Arc::new(gristmill_operators::registry().clone()),
        config: RunnerConfig {
            ns: settings.ns.clone(),
            bucket: settings.bucket()?.to_owned(),
            local: false,
            shape: Some(shape),
        },
    };
    let metrics = Metrics::new("worker", settings.ns.clone(), settings.metrics);
    gristmill_worker::serve(WorkerFunction::new(runner, metrics)).await
}
