//! The coordinator function.

use gristmill_aws::{Aws, StackSettings};
use gristmill_coordinator::{CoordinatorFunction, serve};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    lambda_http::tracing::init_default_subscriber();
    serve(CoordinatorFunction::from_settings(
        &StackSettings::from_env()?,
        &Aws::from_function_env()?,
    )?)
    .await
}
