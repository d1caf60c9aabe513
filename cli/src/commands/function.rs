//! `gristmill function NAME`: one function of the local service in its own process, wired as the
//! deployed functions' `main`.

use crate::user_operators;
use gristmill_aws::{Aws, Credentials, Endpoints, Settings, function_memory_mb};
use gristmill_coordinator::Coordinator;
use gristmill_client::Failure;
use gristmill_ports::{Metrics, Objects, SystemClock};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_scaler::Scaler;
use gristmill_web::{Reach, WithWeb};
use gristmill_worker::WorkerFunction;
use std::sync::Arc;

/// Endpoint of the local service's objects, for its worker.
pub const LOCAL_S3: &str = "GRISTMILL_LOCAL_S3";
/// Endpoint of folders of this machine.
pub const LOCAL_FOLDERS: &str = "GRISTMILL_LOCAL_FOLDERS";
/// Name of the function that runs operators.
pub const WORKER: &str = "worker";

/// Run one function of a local service (started by the service itself)
#[derive(Debug, clap::Args)]
pub struct Args {
    pub name: String,
}

type Wired = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Runs the named function until the platform ends its environment.
pub fn run(name: &str) -> Result<(), Failure> {
    lambda_runtime::tracing::init_default_subscriber();
    // Splits are computed on their own threads; one thread is enough for I/O.
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
    let (settings, aws) = (settings()?, Aws::of_function()?);
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

/// AWS access of a local service's worker, whose `AWS_*` variables are the user's.
fn local_aws() -> Option<Aws> {
    let get = |name: &str| std::env::var(name).ok();
    let endpoints = Endpoints {
        s3: get(LOCAL_S3)?,
        // Workers use neither.
        dynamodb: String::new(),
        lambda: String::new(),
        region: get("GRISTMILL_LOCAL_REGION")?,
    };
    let credentials = Credentials {
        access_key_id: get("GRISTMILL_LOCAL_ACCESS_KEY_ID")?,
        secret_access_key: get("GRISTMILL_LOCAL_SECRET_ACCESS_KEY")?,
        session_token: None,
    };
    Some(Aws::with(endpoints, credentials))
}

async fn worker() -> Wired {
    let settings = settings()?;
    let folders = std::env::var(LOCAL_FOLDERS).unwrap_or_default();
    let (aws, objects): (Aws, Arc<dyn Objects>) = match local_aws() {
        Some(aws) => (aws.clone(), Arc::new(aws.objects_beside(settings.bucket()?, &folders))),
        None => {
            let aws = Aws::from_env().await?;
            (aws.clone(), Arc::new(aws.objects()))
        }
    };
    let runner = Runner {
        coordinator: Arc::new(aws.coordinator(settings.coordinator_url()?, settings.ns.clone())?),
        objects: Arc::new(WithWeb::from_env(objects, Reach::Any)?),
        clock: Arc::new(SystemClock),
        compute: Compute::of_function(function_memory_mb(|name| std::env::var(name).ok())),
        operators: user_operators::get(),
        config: RunnerConfig {
            ns: settings.ns.clone(),
            bucket: settings.bucket()?.to_owned(),
            local: false,
            // Objects stay on this machine.
            shape: None,
        },
    };
    let metrics = Metrics::new("worker", settings.ns.clone(), settings.metrics);
    gristmill_worker::serve(WorkerFunction::new(runner, metrics)).await
}

async fn scaler() -> Wired {
    let (settings, aws) = (settings()?, Aws::of_function()?);
    let scaler = Scaler {
        table: Arc::new(aws.table(settings.table()?)),
        invoker: Arc::new(aws.invoker()),
        worker_function: settings.worker_function()?.to_owned(),
        max_workers: settings.max_workers,
        metrics: Metrics::new("scaler", settings.ns.clone(), settings.metrics),
    };
    gristmill_scaler::serve(scaler).await
}
