//! The functions of a stack on AWS.

use super::{WORKER, serve, unknown};
use crate::user_operators;
use gristmill_aws::{Aws, Settings, function_memory_mb};
use gristmill_client::Failure;
use gristmill_coordinator::Coordinator;
use gristmill_scaler::Scaler;
use gristmill_worker::WorkerFunction;

type Served = Result<(), lambda_runtime::Error>;

/// Runs the function `name` until its events end.
pub fn run(name: &str) -> Result<(), Failure> {
    lambda_runtime::tracing::init_default_subscriber();
    serve(async {
        match name {
            WORKER => worker().await,
            "coordinator" => coordinator().await,
            "scaler" => scaler().await,
            name => Err(unknown(name).into()),
        }
    })
}

async fn coordinator() -> Served {
    let coordinator = Coordinator::from_settings(&Settings::from_env()?, &Aws::of_function()?)?;
    gristmill_coordinator::serve(coordinator).await
}

async fn scaler() -> Served {
    let scaler = Scaler::from_settings(&Settings::from_env()?, &Aws::of_function()?)?;
    gristmill_scaler::serve(scaler).await
}

async fn worker() -> Served {
    let (settings, aws) = (Settings::from_env()?, Aws::of_function()?);
    let memory_mb = function_memory_mb();
    gristmill_worker::serve(WorkerFunction::from_settings(
        &settings,
        &aws,
        memory_mb,
        user_operators::get(),
    )?)
    .await
}
