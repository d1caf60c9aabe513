//! `gristmill function NAME`: one function of the local service, in a process of its own. The same
//! wiring as the deployed functions' `main`.

use crate::failure::Failure;
use gristmill_aws::{Aws, Settings};
use gristmill_coordinator::Coordinator;
use gristmill_ports::SystemClock;
use gristmill_runner::{Runner, RunnerConfig};
use gristmill_scaler::Scaler;
use gristmill_worker::WorkerFunction;
use std::sync::Arc;

type Wired = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Runs the named function until the platform ends its environment.
pub fn run(name: &str) -> Result<(), Failure> {
    lambda_runtime::tracing::init_default_subscriber();
    let mut builder = match name {
        // Its work is CPU-bound on threads of its own; I/O needs few.
        "worker" => tokio::runtime::Builder::new_multi_thread(),
        "coordinator" | "scaler" => tokio::runtime::Builder::new_current_thread(),
        _ => return Err(Failure::usage(format!("there is no function {name:?}"))),
    };
    let runtime = builder.worker_threads(2).enable_all().build().map_err(Failure::failed)?;
    let served = runtime.block_on(async {
        match name {
            "worker" => worker().await,
            "coordinator" => coordinator().await,
            _ => scaler().await,
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
        ),
    );
    gristmill_coordinator::serve(coordinator).await
}

async fn worker() -> Wired {
    let (settings, aws) = (settings()?, Aws::from_env().await?);
    let runner = Runner {
        coordinator: Arc::new(aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?),
        objects: Arc::new(aws.objects()),
        clock: Arc::new(SystemClock),
        config: RunnerConfig {
            ns: settings.ns.clone(),
            bucket: settings.bucket()?.to_owned(),
            local: false,
        },
    };
    gristmill_worker::serve(WorkerFunction::new(runner)).await
}

async fn scaler() -> Wired {
    let (settings, aws) = (settings()?, Aws::from_env().await?);
    let scaler = Scaler {
        table: Arc::new(aws.table(settings.table()?)),
        invoker: Arc::new(aws.invoker()),
        worker_function: settings.worker_function()?.to_owned(),
    };
    gristmill_scaler::serve(scaler).await
}
