//! The scaler of a stack, on AWS or a local service: its settings and ports.

use crate::Scaler;
use gristmill_aws::{Aws, Settings, SettingsError};
use gristmill_model::wire::SpokenVersions;
use gristmill_ports::Metrics;
use std::sync::Arc;

impl Scaler {
    /// The scaler of the stack that `settings` names, with the access that `aws` gives.
    ///
    /// # Errors
    /// A setting is missing.
    pub fn from_settings(settings: &Settings, aws: &Aws) -> Result<Self, SettingsError> {
        Ok(Self {
            table: Arc::new(aws.table(settings.table()?)),
            invoker: Arc::new(aws.invoker()),
            worker_function: settings.worker_function()?.to_owned(),
            max_workers: settings.max_workers,
            spoken: SpokenVersions::BUILD,
            metrics: Metrics::new("scaler", settings.ns.clone(), settings.metrics),
        })
    }
}
