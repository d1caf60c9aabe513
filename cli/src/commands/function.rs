//! `gristmill function NAME`: one function of the local service in its own process, built as the deployed one.

use crate::user_operators;
use gristmill_aws::{Aws, Credentials, Endpoints, Settings, function_memory_mb};
use gristmill_client::Failure;
use gristmill_coordinator::Coordinator;
use gristmill_scaler::Scaler;
use gristmill_worker::{Platform, WorkerFunction};

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

type Served = Result<(), lambda_runtime::Error>;

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

async fn coordinator() -> Served {
    let coordinator = Coordinator::from_settings(&Settings::from_env()?, &Aws::of_function()?)?;
    gristmill_coordinator::serve(coordinator).await
}

async fn scaler() -> Served {
    let scaler = Scaler::from_settings(&Settings::from_env()?, &Aws::of_function()?)?;
    gristmill_scaler::serve(scaler).await
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

async fn worker() -> Served {
    let (aws, platform) = match local_aws() {
        Some(aws) => {
            let folders = std::env::var(LOCAL_FOLDERS).unwrap_or_default();
            (aws, Platform::Local { folders })
        }
        None => (Aws::of_function()?, Platform::Lambda),
    };
    let (settings, operators) = (Settings::from_env()?, user_operators::get());
    let memory_mb = function_memory_mb();
    let worker =
        WorkerFunction::from_settings(&settings, &aws, &platform, memory_mb, operators)?;
    gristmill_worker::serve(worker).await
}
