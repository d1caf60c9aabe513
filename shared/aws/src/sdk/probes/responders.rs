//! Facts about the servers that answer: address, clock and name.

use crate::sdk::ServiceResponder;
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{
            Intercept,
            context::{
                BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
            },
            dyn_dispatch_hint,
        },
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::{DateTime, config_bag::ConfigBag, date_time::Format};
use http::Uri;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

/// Servers by service.
#[derive(Debug, Clone, Default)]
pub(super) struct RespondersByService(Arc<Mutex<BTreeMap<&'static str, ServiceResponder>>>);

impl RespondersByService {
    pub fn snapshot(&self) -> BTreeMap<&'static str, ServiceResponder> {
        self.lock().clone()
    }

    pub fn address(&self, service: &str) -> Option<String> {
        self.lock().get(service).map(|responder| responder.address.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, ServiceResponder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the server of one service's client.
#[derive(Debug)]
pub(super) struct ResponderInterceptor {
    service: &'static str,
    responders: RespondersByService,
}

impl ResponderInterceptor {
    pub fn new(service: &'static str, responders: &RespondersByService) -> Self {
        Self { service, responders: responders.clone() }
    }
}

#[dyn_dispatch_hint]
impl Intercept for ResponderInterceptor {
    fn name(&self) -> &'static str {
        "ResponderInterceptor"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let uri: Uri = context.request().uri().parse()?;
        let scheme = uri.scheme_str().unwrap_or("https");
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let mut responders = self.responders.lock();
        responders.entry(self.service).or_default().address = format!("{scheme}://{authority}");
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        let mut responders = self.responders.lock();
        let responder = responders.entry(self.service).or_default();
        responder.server = headers.get("server").map(str::to_owned).or(responder.server.take());
        responder.ahead_s = headers.get("date").and_then(ahead_s).or(responder.ahead_s);
        Ok(())
    }
}

fn ahead_s(date: &str) -> Option<i64> {
    let there = DateTime::from_str(date, Format::HttpDate).ok()?.secs();
    let here = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(there - i64::try_from(here).ok()?)
}
