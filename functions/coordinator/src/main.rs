//! The coordinator function: wiring only.

use gristmill_aws::{Aws, Settings};
use gristmill_coordinator::Coordinator;
use gristmill_ports::{Metrics, SystemClock};
use std::sync::Arc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    lambda_http::tracing::init_default_subscriber();
    let settings = Settings::from_lookup(|name| std::env::var(name).ok())?;
    let aws = Aws::of_function()?;
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
