//! `gristmill function NAME`: one function of the local service, in a process of its own. The same
//! wiring as the deployed functions' `main`.

use crate::{failure::Failure, operators};
use gristmill_aws::{Aws, Settings, function_memory_mb};
use gristmill_coordinator::Coordinator;
use gristmill_ports::{Metrics, SystemClock};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_scaler::Scaler;
use gristmill_worker::WorkerFunction;
use std::sync::Arc;

/// The one of them that runs operators.
pub const WORKER: &str = "worker";

type Wired = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Runs the named function until the platform ends its environment.
pub fn run(name: &str) -> Result<(), Failure> {
    lambda_runtime::tracing::init_default_subscriber();
    // Splits are computed on threads of their own; one thread is enough for what is sent and received.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.map_err(Failure::failed)?.block_on(async {
        match name {
            WORKER => worker().await,
            "coordinator" => coordinator().await,
            "scaler" => scaler().await,
            _ => Err(format!("there is no function {name:?}").into()),
        }
    });
    served.map_err(Failure::failed)
}

fn settings() -> Result<Settings, gristmill_aws::SettingsError> {
    Settings::from_lookup(|name| std::env::var(name).ok())
}

async fn coordinator() -> Wired {
    let (settings, aws) = (settings()?, Aws::from_env().await?);
    let coordinator = Coordinator::new(
        Arc::new(aws.table(settings.table()?)),
        Arc::new(aws.objects()),
        Arc::new(aws.invoker()),
        Arc::new(SystemClock),
        gristmill_coordinator::Settings::new(
            settings.ns.clone(),
            settings.bucket()?.to_owned(),
            settings.scaler_function()?.to_owned(),
        )
        .with_retention(settings.retention_days)
        .with_cache(settings.cache_gib),
    );
    let metrics = Metrics::new("coordinator", settings.ns.clone(), settings.metrics);
    gristmill_coordinator::serve(coordinator.metered(metrics)).await
}

async fn worker() -> Wired {
    let (settings, aws) = (settings()?, Aws::from_env().await?);
    let runner = Runner {
        coordinator: Arc::new(aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?),
        objects: Arc::new(aws.objects()),
        clock: Arc::new(SystemClock),
        compute: Compute::of_function(function_memory_mb(|name| std::env::var(name).ok())),
        operators: operators::get(),
        config: RunnerConfig {
            ns: settings.ns.clone(),
            bucket: settings.bucket()?.to_owned(),
            local: false,
        },
    };
    let metrics = Metrics::new("worker", settings.ns.clone(), settings.metrics);
    gristmill_worker::serve(WorkerFunction::new(runner, metrics)).await
}

async fn scaler() -> Wired {
    let (settings, aws) = (settings()?, Aws::from_env().await?);
    let scaler = Scaler {
        table: Arc::new(aws.table(settings.table()?)),
        invoker: Arc::new(aws.invoker()),
        worker_function: settings.worker_function()?.to_owned(),
        max_workers: settings.max_workers,
        metrics: Metrics::new("scaler", settings.ns.clone(), settings.metrics),
    };
    gristmill_scaler::serve(scaler).await
}
