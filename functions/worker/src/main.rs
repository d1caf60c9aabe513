//! The worker function, with the operators of gristmill.

use gristmill_aws::{Aws, StackSettings, function_memory_mb};
use gristmill_worker::{WorkerFunction, serve};
use std::sync::Arc;

// Splits are computed on separate threads.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    lambda_runtime::tracing::init_default_subscriber();
    let (settings, aws) = (StackSettings::from_env()?, Aws::from_function_env()?);
    let operators = Arc::new(gristmill_operators::registry().clone());
    let memory_mb = function_memory_mb();
    serve(WorkerFunction::from_settings(&settings, &aws, memory_mb, operators)?).await
}
