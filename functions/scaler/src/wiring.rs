//! The scaler of a stack on AWS: its settings, its ports, and its events.

use crate::ScalerFunction;
use gristmill_aws::{Aws, SettingsError, StackSettings};
use gristmill_model::wire::{ScalerEvent, SpokenVersions, protocol};
use gristmill_ports::FunctionMetrics;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use std::sync::Arc;

impl ScalerFunction {
    /// The scaler of the stack that `settings` names, with the access that `aws` gives.
    pub fn from_settings(settings: &StackSettings, aws: &Aws) -> Result<Self, SettingsError> {
        Ok(Self {
            table: aws.table(settings.table()?),
            invoker: Arc::new(aws.invoker()),
            worker_function: settings.worker_function()?.to_owned(),
            region: std::env::var("AWS_REGION").unwrap_or_default(),
            max_workers: settings.max_workers,
            spoken: SpokenVersions::BUILD,
            metrics: FunctionMetrics::new("scaler", settings.ns.clone(), settings.metrics),
        })
    }
}

/// Serves scaler events until the platform ends the environment.
pub async fn serve(scaler: ScalerFunction) -> Result<(), Error> {
    let scaler = Arc::new(scaler);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<serde_json::Value>| {
        let scaler = Arc::clone(&scaler);
        async move {
            let event = protocol::read_event::<ScalerEvent>(event.payload)?;
            scaler.handle(&event).await.map_err(Error::from)
        }
    }))
    .await
}
