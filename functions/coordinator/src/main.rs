//! The coordinator function.

use gristmill_aws::{Aws, Settings};
use gristmill_coordinator::{Coordinator, serve};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    lambda_http::tracing::init_default_subscriber();
    serve(Coordinator::from_settings(&Settings::from_env()?, &Aws::of_function()?)?).await
}
