//! The connection pool of all clients. Cleartext and TLS connectors are created on first use: reading the
//! machine's root certificates takes tens of milliseconds, which processes with only local endpoints
//! save.

use aws_smithy_http_client::{
    Builder, Connector,
    proxy::ProxyConfig,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::client::{
    http::{
        HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
        SharedHttpConnector,
    },
    orchestrator::HttpRequest,
    runtime_components::RuntimeComponents,
};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Timeout of connecting: a peer in the same region answers within milliseconds.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The pool, as the SDK's HTTP client. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub(crate) struct HttpPool {
    shared: SharedHttpConnector,
    /// For the SDK's credential and region providers, which set timeouts of their own.
    others: Arc<OnceLock<SharedHttpClient>>,
}

impl Default for HttpPool {
    fn default() -> Self {
        Self { shared: SharedHttpConnector::new(ByScheme::default()), others: Arc::default() }
    }
}

impl HttpPool {
    /// Sends a request of this crate's own over the shared connections.
    pub fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        self.shared.call(request)
    }
}

impl HttpClient for HttpPool {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        match (settings.connect_timeout(), settings.read_timeout()) {
            (Some(CONNECT_TIMEOUT), None) => self.shared.clone(),
            _ => {
                let others = self
                    .others
                    .get_or_init(|| Builder::new().tls_provider(tls_provider()).build_https());
                others.http_connector(settings, components)
            }
        }
    }
}

#[derive(Debug, Default)]
struct ByScheme {
    plain: OnceLock<Connector>,
    tls: OnceLock<Connector>,
}

impl HttpConnector for ByScheme {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let connector = if request.uri().starts_with("http://") {
            self.plain.get_or_init(plain)
        } else {
            self.tls.get_or_init(tls)
        };
        connector.call(request)
    }
}

fn tls_provider() -> Provider {
    Provider::Rustls(CryptoMode::AwsLc)
}

fn settings() -> HttpConnectorSettings {
    HttpConnectorSettings::builder().connect_timeout(CONNECT_TIMEOUT).build()
}

/// A connector without trusted certificates, for `http://` only, and without a proxy: cleartext endpoints
/// are local.
fn plain() -> Connector {
    let builder = Connector::builder().connector_settings(settings()).tls_provider(tls_provider());
    match TlsContext::builder().with_trust_store(TrustStore::empty()).build() {
        Ok(context) => builder.tls_context(context).build(),
        Err(_) => builder.build(),
    }
}

fn tls() -> Connector {
    Connector::builder()
        .connector_settings(settings())
        .proxy_config(ProxyConfig::from_env())
        .tls_provider(tls_provider())
        .build()
}
