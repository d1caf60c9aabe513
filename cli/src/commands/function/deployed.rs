//! The functions of a stack on AWS.

use super::{WORKER, serve, unknown};
use crate::user_operators;
use gristmill_aws::{Aws, StackSettings, function_memory_mb};
use gristmill_client::ProgramFailure;
use gristmill_coordinator::CoordinatorFunction;
use gristmill_scaler::ScalerFunction;
use gristmill_worker::WorkerFunction;

type Served = Result<(), lambda_runtime::Error>;

/// Runs the function `name` until its events end.
pub fn run(name: &str) -> Result<(), ProgramFailure> {
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
    let coordinator = CoordinatorFunction::from_settings(&StackSettings::from_env()?, &Aws::from_function_env()?)?;
    gristmill_coordinator::serve(coordinator).await
}

async fn scaler() -> Served {
    let scaler = ScalerFunction::from_settings(&StackSettings::from_env()?, &Aws::from_function_env()?)?;
    gristmill_scaler::serve(scaler).await
}

async fn worker() -> Served {
    let (settings, aws) = (StackSettings::from_env()?, Aws::from_function_env()?);
    let memory_mb = function_memory_mb();
    gristmill_worker::serve(WorkerFunction::from_settings(
        &settings,
        &aws,
        memory_mb,
        user_operators::get(),
    )?)
    .await
}
