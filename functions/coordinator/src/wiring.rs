//! The coordinator of a stack, on AWS or a local service: its settings and ports.

use crate::{CoordinatorFunction, CoordinatorSettings};
use gristmill_aws::{Aws, SettingsError};
use gristmill_ports::{FunctionMetrics, SystemClock};
use std::sync::Arc;

impl CoordinatorFunction {
    /// The coordinator of the stack that `settings` names, with the access that `aws` gives.
    pub fn from_settings(
        settings: &gristmill_aws::StackSettings,
        aws: &Aws,
    ) -> Result<Self, SettingsError> {
        let own = CoordinatorSettings::new(
            settings.ns.clone(),
            settings.bucket()?.to_owned(),
            settings.scaler_function()?.to_owned(),
        )
        .with_retention(settings.retention_days)
        .with_cache(settings.cache_gib);
        let coordinator = Self::new(
            aws.table(settings.table()?),
            Arc::new(aws.objects()),
            Arc::new(aws.invoker()),
            Arc::new(SystemClock),
            own,
        );
        let metrics = FunctionMetrics::new("coordinator", settings.ns.clone(), settings.metrics);
        Ok(coordinator.metered(metrics))
    }
}
