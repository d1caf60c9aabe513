//! Endpoints and credentials of AWS, or of services that speak its protocols, and one lazily built client per service.

use crate::sdk::{
    AwsCredentials, AwsEndpoints, DeploymentProbes, HttpCoordinator, LambdaInvoker, S3Objects,
    SettingsError,
    coordinator::CallAddress,
    dynamodb::DynamoClient,
    lambda::{LAMBDA, LambdaClient},
    service::endpoint_of,
    table::DynamoTable,
};
use aws_config::{
    BehaviorVersion, Region, SdkConfig, environment::EnvironmentVariableRegionProvider,
    identity::IdentityCache, meta::region::RegionProviderChain,
    profile::region::ProfileFileRegionProvider, retry::RetryConfig,
    stalled_stream_protection::StalledStreamProtectionConfig, timeout::TimeoutConfig,
};
use aws_credential_types::provider::{
    ProvideCredentials, SharedCredentialsProvider, error::CredentialsError,
};
use aws_sdk_s3::config::{RequestChecksumCalculation, ResponseChecksumValidation};
use aws_smithy_http_client::{
    Builder, Connector,
    proxy::ProxyConfig,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use aws_smithy_runtime::client::retries::classifiers::HttpStatusCodeClassifier;
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        http::{
            HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings,
            SharedHttpClient, SharedHttpConnector,
        },
        identity::Identity,
        interceptors::{
            Intercept, context::BeforeTransmitInterceptorContextRef, dyn_dispatch_hint,
        },
        orchestrator::{HttpRequest, Metadata},
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::config_bag::ConfigBag;
use gristmill_model::Namespace;
use gristmill_ports::Table;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    env,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

/// Tries of one request, the first included.
const MAX_ATTEMPTS: u32 = 4;
/// Delay before the second try, doubled for each further one, with jitter. Far below the SDK's second: most
/// faults here are a closed connection, or a process that is restarting.
const INITIAL_BACKOFF: Duration = Duration::from_millis(40);
/// Timeout of one try of a small request.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of all tries of a small request.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of all tries of a put or get.
pub(crate) const DATA_OPERATION_TIMEOUT: Duration = Duration::from_secs(120);

/// AWS as configured for one process. Clones share connections, clients and counts.
#[derive(Debug, Clone)]
pub struct Aws(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sdk: SdkConfig,
    region: Region,
    pool: HttpPool,
    counts: RequestCounts,
    at: AwsEndpoints,
    path_style: bool,
    dynamodb: OnceLock<DynamoClient>,
    s3: OnceLock<aws_sdk_s3::Client>,
    lambda: OnceLock<LambdaClient>,
}

impl Aws {
    /// Configures itself as the AWS SDKs do: region, credentials and `AWS_ENDPOINT_URL[_SERVICE]` from the
    /// environment or the shared configuration files. The instance metadata service is queried only for what
    /// neither provides.
    pub async fn from_env() -> Result<Self, SettingsError> {
        let pool = HttpPool::default();
        let sdk = load(&pool, None).await;
        let region = sdk.region().cloned().ok_or(SettingsError::Missing("AWS_REGION"))?;
        Ok(Self::new(sdk, region, pool, AwsEndpoints::default(), has_own_endpoint()))
    }

    /// The same, for reading public or other data: without a region it assumes us-east-1.
    pub(crate) async fn ambient() -> Self {
        let pool = HttpPool::default();
        let region = Region::from_static("us-east-1");
        let sdk = load(&pool, Some(region.clone())).await;
        let region = sdk.region().cloned().unwrap_or(region);
        Self::new(sdk, region, pool, AwsEndpoints::default(), has_own_endpoint())
    }

    /// Configures itself from the environment variables of a function: region and credentials, which are valid for
    /// the function's life. Queries nothing else. Respects `AWS_ENDPOINT_URL[_SERVICE]`.
    pub fn from_function_env() -> Result<Self, SettingsError> {
        let get = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let needed = |name| get(name).ok_or(SettingsError::Missing(name));
        let region = needed("AWS_REGION")?;
        let credentials = AwsCredentials {
            access_key_id: needed("AWS_ACCESS_KEY_ID")?,
            secret_access_key: needed("AWS_SECRET_ACCESS_KEY")?,
            session_token: get("AWS_SESSION_TOKEN"),
        };
        let any = get("AWS_ENDPOINT_URL");
        let own = |name: &str| get(name).or_else(|| any.clone());
        let at = AwsEndpoints {
            s3: own("AWS_ENDPOINT_URL_S3"),
            dynamodb: own("AWS_ENDPOINT_URL_DYNAMODB"),
            lambda: own("AWS_ENDPOINT_URL_LAMBDA"),
        };
        let path_style = at.s3.is_some();
        Ok(Self::known(region, credentials, at, path_style))
    }

    /// Services at known addresses, with known credentials; reads no environment.
    pub fn with(
        endpoints: AwsEndpoints,
        region: String,
        credentials: AwsCredentials,
    ) -> Result<Self, SettingsError> {
        Ok(Self::known(region, credentials, endpoints, true))
    }

    pub(crate) fn known(
        region: String,
        credentials: AwsCredentials,
        at: AwsEndpoints,
        path_style: bool,
    ) -> Self {
        let AwsCredentials { access_key_id, secret_access_key, session_token } = credentials;
        let credentials = aws_credential_types::Credentials::new(
            access_key_id,
            secret_access_key,
            session_token,
            None,
            "gristmill",
        );
        Self::provided(region, SharedCredentialsProvider::new(credentials), at, path_style)
    }

    pub(crate) fn provided(
        region: String,
        credentials: SharedCredentialsProvider,
        at: AwsEndpoints,
        path_style: bool,
    ) -> Self {
        let pool = HttpPool::default();
        let region = Region::new(region);
        let sdk = SdkConfig::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .credentials_provider(credentials)
            .http_client(pool.clone())
            .identity_cache(IdentityCache::lazy().build())
            .region(region.clone())
            .retry_config(retries())
            .stalled_stream_protection(StalledStreamProtectionConfig::enabled().build())
            .timeout_config(timeouts(ATTEMPT_TIMEOUT, OPERATION_TIMEOUT))
            .build();
        Self::new(sdk, region, pool, at, path_style)
    }

    fn new(
        sdk: SdkConfig,
        region: Region,
        pool: HttpPool,
        at: AwsEndpoints,
        path_style: bool,
    ) -> Self {
        Self(Arc::new(Shared {
            sdk,
            region,
            pool,
            counts: RequestCounts::default(),
            at,
            path_style,
            dynamodb: OnceLock::new(),
            s3: OnceLock::new(),
            lambda: OnceLock::new(),
        }))
    }

    /// The DynamoDB table `name`, with string keys `pk` and `sk`.
    pub fn table(&self, name: impl Into<String>) -> Arc<dyn Table> {
        Arc::new(DynamoTable { client: self.dynamodb().clone(), name: name.into() })
    }

    pub(crate) fn dynamodb(&self) -> &DynamoClient {
        self.0.dynamodb.get_or_init(|| {
            let Shared { sdk, at, .. } = &*self.0;
            DynamoClient::new(sdk, at.dynamodb.as_deref(), self.counting("dynamodb"))
        })
    }

    /// S3, in any bucket.
    pub fn objects(&self) -> S3Objects {
        S3Objects::new(self.s3().clone())
    }

    pub(crate) fn s3(&self) -> &aws_sdk_s3::Client {
        self.0.s3.get_or_init(|| {
            let Shared { sdk, at, path_style, .. } = &*self.0;
            let config = s3_config(sdk, at, *path_style)
                .interceptor(self.counting("s3"))
                .retry_classifier(HttpStatusCodeClassifier::new_from_codes(&[408, 429]));
            aws_sdk_s3::Client::from_conf(config.build())
        })
    }

    /// Lambda's asynchronous invocation.
    pub fn invoker(&self) -> LambdaInvoker {
        let client = self.0.lambda.get_or_init(|| {
            let Shared { sdk, at, .. } = &*self.0;
            LambdaClient::new(sdk, at.lambda.as_deref(), self.counting("lambda"))
        });
        LambdaInvoker::new(client.clone())
    }

    /// The coordinator of namespace `ns`. `url` is its function URL, or its ARN: then Lambda's own
    /// endpoint is called, which a subnet without internet can reach.
    pub fn coordinator(&self, url: &str, ns: Namespace) -> Result<HttpCoordinator, SettingsError> {
        let Shared { sdk, at, pool, counts, region, .. } = &*self.0;
        let address = CallAddress::parse(url, region.as_ref(), |region| {
            at.lambda.clone().unwrap_or_else(|| endpoint_of(LAMBDA, sdk, region))
        })?;
        let provider = sdk.credentials_provider();
        Ok(HttpCoordinator::new(address, ns, provider, pool.clone(), counts.clone()))
    }

    /// Whether services were given addresses of their own, as those of emulators.
    pub fn has_own_endpoints(&self) -> bool {
        self.0.path_style
    }

    /// Read-only queries about the deployment, with short deadlines.
    pub fn probes(&self) -> DeploymentProbes {
        let Shared { sdk, at, path_style, .. } = &*self.0;
        DeploymentProbes::new(sdk, at, *path_style)
    }

    /// Requests sent so far, retries included, by `service.Operation`; calls of the coordinator are
    /// `coordinator.call`.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.counts.snapshot()
    }

    fn counting(&self, service: &'static str) -> RequestCountInterceptor {
        RequestCountInterceptor { service, counts: self.0.counts.clone() }
    }
}

/// Whether an S3 endpoint is configured; only such a one may lack a host name per bucket.
fn has_own_endpoint() -> bool {
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].iter().any(|name| env::var_os(name).is_some())
}

/// Configuration from environment and shared files, with `fallback` as the default region.
async fn load(pool: &HttpPool, fallback: Option<Region>) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(pool.clone())
        .retry_config(retries())
        .timeout_config(timeouts(ATTEMPT_TIMEOUT, OPERATION_TIMEOUT))
        .stalled_stream_protection(StalledStreamProtectionConfig::enabled().build());
    if fallback.is_some() || env::var_os("AWS_ACCESS_KEY_ID").is_some() {
        // With keys in the environment, the metadata service is probably absent; querying it for a region
        // would take seconds to fail.
        let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
            .or_else(ProfileFileRegionProvider::new());
        loader = loader.region(match fallback {
            Some(fallback) => region.or_else(fallback),
            None => region,
        });
    }
    loader.load().await
}

/// S3 without the SDK's checksums: chunks carry their own, per frame; another pass over every byte would gain nothing.
pub(crate) fn s3_config(
    sdk: &SdkConfig,
    at: &AwsEndpoints,
    path_style: bool,
) -> aws_sdk_s3::config::Builder {
    let mut config = aws_sdk_s3::config::Builder::from(sdk)
        .force_path_style(path_style)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    if let Some(endpoint) = &at.s3 {
        config.set_endpoint_url(Some(endpoint.clone()));
    }
    config
}

fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(MAX_ATTEMPTS).with_initial_backoff(INITIAL_BACKOFF)
}

pub(crate) fn timeouts(attempt: Duration, operation: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(attempt)
        .operation_timeout(operation)
        .build()
}

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

/// Requests by service and operation. A lock, held for a map look-up, costs nothing beside a
/// request.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestCounts(Arc<Mutex<BTreeMap<(&'static str, String), u64>>>);

impl RequestCounts {
    /// Counts one request of `operation`.
    pub fn add(&self, service: &'static str, operation: &str) {
        *self.0.lock().entry((service, operation.to_owned())).or_default() += 1;
    }

    /// All counts so far, by `service.Operation`.
    pub fn snapshot(&self) -> BTreeMap<String, u64> {
        let counts = self.0.lock();
        let flat =
            counts.iter().map(|((service, name), count)| (format!("{service}.{name}"), *count));
        flat.collect()
    }
}

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

/// Credentials are renewed this long before they expire: longer than any call takes.
const EXPIRY_BUFFER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct CredentialsCache {
    provider: Option<SharedCredentialsProvider>,
    cached: tokio::sync::Mutex<Option<Identity>>,
}

impl CredentialsCache {
    /// Credentials of `provider`; none for requests without a signature.
    pub fn new(provider: Option<SharedCredentialsProvider>) -> Self {
        Self { provider, cached: tokio::sync::Mutex::default() }
    }

    /// Credentials for signing. Concurrent callers share one load.
    pub async fn identity(&self) -> Result<Identity, CredentialsError> {
        let mut cached = self.cached.lock().await;
        let lasts = |identity: &&Identity, until: SystemTime| {
            identity.expiration().is_none_or(|end| end > until)
        };
        let now = SystemTime::now();
        if let Some(identity) = cached.as_ref().filter(|found| lasts(found, now + EXPIRY_BUFFER)) {
            return Ok(identity.clone());
        }
        let none = || CredentialsError::not_loaded("no provider");
        let provider = self.provider.as_ref().ok_or_else(none)?;
        match provider.provide_credentials().await {
            Ok(credentials) => Ok(cached.insert(credentials.into()).clone()),
            // The next call renews them again.
            Err(error) => cached.clone().filter(|found| lasts(&found, now)).ok_or(error),
        }
    }

    /// Discards the cached credentials after the service refused them.
    pub async fn forget(&self) {
        self.cached.lock().await.take();
    }
}

#[cfg(test)]
mod credentials_tests;
