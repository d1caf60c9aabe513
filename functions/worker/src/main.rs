//! The worker function: wiring only.

use gristmill_aws::{Aws, Settings, function_memory_mb};
use gristmill_ports::{Metrics, SystemClock};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_worker::WorkerFunction;
use std::sync::Arc;

// Splits are computed on threads of their own.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    lambda_runtime::tracing::init_default_subscriber();
    let settings = Settings::from_lookup(|name| std::env::var(name).ok())?;
    let aws = Aws::from_env().await?;
    let runner = Runner {
        coordinator: Arc::new(aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?),
        objects: Arc::new(aws.objects()),
        clock: Arc::new(SystemClock),
        compute: Compute::of_function(function_memory_mb(|name| std::env::var(name).ok())),
        operators: Arc::default(),
        config: RunnerConfig {
            ns: settings.ns.clone(),
            bucket: settings.bucket()?.to_owned(),
            local: false,
        },
    };
    let metrics = Metrics::new("worker", settings.ns.clone(), settings.metrics);
    gristmill_worker::serve(WorkerFunction::new(runner, metrics)).await
}
