//! The scaler function.

use gristmill_aws::{Aws, Settings};
use gristmill_scaler::{Scaler, serve};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    lambda_runtime::tracing::init_default_subscriber();
    serve(Scaler::from_settings(&Settings::from_env()?, &Aws::of_function()?)?).await
}
