//! The scaler function.

use gristmill_aws::{Aws, StackSettings};
use gristmill_scaler::{ScalerFunction, serve};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    lambda_runtime::tracing::init_default_subscriber();
    serve(ScalerFunction::from_settings(&StackSettings::from_env()?, &Aws::from_function_env()?)?)
        .await
}
