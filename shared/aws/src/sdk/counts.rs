//! Counts requests as they leave, retries included: what a bill counts.

use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{
            Intercept, context::BeforeTransmitInterceptorContextRef, dyn_dispatch_hint,
        },
        orchestrator::Metadata,
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::config_bag::ConfigBag;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Requests by service and operation. A lock, held for a map look-up, costs nothing beside a
/// request.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestCounts(Arc<Mutex<BTreeMap<(&'static str, String), u64>>>);

impl RequestCounts {
    pub fn add(&self, service: &'static str, operation: &str) {
        *self.lock().entry((service, operation.to_owned())).or_default() += 1;
    }

    /// All counts so far, by `service.Operation`.
    pub fn snapshot(&self) -> BTreeMap<String, u64> {
        let counts = self.lock();
        let flat =
            counts.iter().map(|((service, name), count)| (format!("{service}.{name}"), *count));
        flat.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the requests of one service's client.
#[derive(Debug)]
pub(crate) struct RequestCountInterceptor {
    pub service: &'static str,
    pub counts: RequestCounts,
}

#[dyn_dispatch_hint]
impl Intercept for RequestCountInterceptor {
    fn name(&self) -> &'static str {
        "RequestCountInterceptor"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let operation = bag.load::<Metadata>().map_or("unknown", Metadata::name);
        self.counts.add(self.service, operation);
        Ok(())
    }
}
