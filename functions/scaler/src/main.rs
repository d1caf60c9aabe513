//! The scaler function: wiring only.

use gristmill_aws::{Aws, Settings};
use gristmill_ports::Metrics;
use gristmill_scaler::Scaler;
use std::sync::Arc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    lambda_runtime::tracing::init_default_subscriber();
    let settings = Settings::from_lookup(|name| std::env::var(name).ok())?;
    let aws = Aws::of_function()?;
    let scaler = Scaler {
        table: Arc::new(aws.table(settings.table()?)),
        invoker: Arc::new(aws.invoker()),
        worker_function: settings.worker_function()?.to_owned(),
        max_workers: settings.max_workers,
        metrics: Metrics::new("scaler", settings.ns.clone(), settings.metrics),
    };
    gristmill_scaler::serve(scaler).await
}
