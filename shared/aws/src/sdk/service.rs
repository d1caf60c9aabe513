//! A client of one AWS service for only the operations used, on the SDK's runtime, which signs, retries and times out as in
//! the generated clients. Those contain every operation and take minutes to compile.

use crate::sdk::{Aws, fault::RequestFault};
use aws_config::SdkConfig;
use aws_runtime::{
    auth::{
        SigV4OperationSigningConfig,
        sigv4::{SCHEME_ID, SigV4AuthScheme},
    },
    invocation_id::InvocationIdInterceptor,
    recursion_detection::RecursionDetectionInterceptor,
    request_info::RequestInfoInterceptor,
    retries::classifiers::AwsErrorCodeClassifier,
    service_clock_skew::{ServiceClockSkewClassifier, ServiceClockSkewInterceptor},
    user_agent::{ApiMetadata, UserAgentInterceptor},
};
use aws_smithy_runtime::client::{
    http::connection_poisoning::ConnectionPoisoningInterceptor,
    orchestrator::operation::Operation,
    retries::classifiers::{HttpStatusCodeClassifier, TransientErrorClassifier},
};
use aws_smithy_runtime_api::client::{
    auth::{AuthSchemeOptionResolverParams, static_resolver::StaticAuthSchemeOptionResolver},
    identity::SharedIdentityResolver,
    interceptors::Intercept,
    orchestrator::{HttpRequest, HttpResponse, OrchestratorError},
    result::SdkError,
    retries::classifiers::SharedRetryClassifier,
    runtime_components::RuntimeComponentsBuilder,
    runtime_plugin::{SharedRuntimePlugin, StaticRuntimePlugin},
};
use aws_smithy_types::{
    config_bag::Layer,
    error::metadata::{ErrorMetadata, ProvideErrorMetadata},
    retry::RetryConfig,
    timeout::TimeoutConfig,
};
use aws_types::{SigningName, region::SigningRegion, service_config::ServiceConfigKey};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt, time::Duration};

/// Host name suffixes by region prefix, for IPv4 and for dual stack; the last entry is the default.
const PARTITIONS: [(&str, &str, &str); 7] = [
    ("cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    ("eusc-", "amazonaws.eu", "api.amazonwebservices.eu"),
    ("us-iso-", "c2s.ic.gov", "api.aws.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov", "api.aws.scloud"),
    ("us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
    ("", "amazonaws.com", "api.aws"),
];

pub(crate) type AwsServiceError = SdkError<ServiceErrorResponse, HttpResponse>;

/// An operation with a JSON response of type `O`; an empty response is null.
pub(crate) type JsonOperation<O> = Operation<HttpRequest, O, ServiceErrorResponse>;

#[derive(Debug)]
pub(crate) struct ServiceErrorResponse(ErrorMetadata);

impl fmt::Display for ServiceErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ServiceErrorResponse {}

impl ProvideErrorMetadata for ServiceErrorResponse {
    fn meta(&self) -> &ErrorMetadata {
        &self.0
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AwsService {
    /// Id in configuration files and, in capitals, at the end of `AWS_ENDPOINT_URL_`.
    pub id: &'static str,
    /// First part of its host names, and name in signatures.
    pub name: &'static str,
    /// Whether its FIPS endpoints in `us-gov-*` are the ordinary ones.
    pub gov_is_fips: bool,
    /// Classifies errors for retries, before the SDK's own rules.
    pub retries: Option<fn() -> SharedRetryClassifier>,
}

/// A client of one service. Clones share connections and credentials.
#[derive(Debug, Clone)]
pub(crate) struct ServiceClient {
    service: AwsService,
    plugin: SharedRuntimePlugin,
    retries: RetryConfig,
    endpoint: String,
}

impl ServiceClient {
    /// A client for `endpoint`, or as `sdk` finds the service. Every request passes `interceptor`.
    pub fn new(
        service: AwsService,
        sdk: &SdkConfig,
        endpoint: Option<&str>,
        interceptor: impl Intercept + 'static,
    ) -> Self {
        let sigv4 = StaticAuthSchemeOptionResolver::new(vec![SCHEME_ID]);
        let mut components = RuntimeComponentsBuilder::new(service.id)
            .with_http_client(sdk.http_client())
            .with_identity_cache(sdk.identity_cache())
            .with_sleep_impl(sdk.sleep_impl())
            .with_time_source(sdk.time_source())
            .with_auth_scheme(SigV4AuthScheme::new())
            .with_auth_scheme_option_resolver(Some(sigv4))
            .with_retry_classifier(HttpStatusCodeClassifier::default())
            .with_retry_classifier(TransientErrorClassifier::<ServiceErrorResponse>::new())
            .with_retry_classifier(AwsErrorCodeClassifier::<ServiceErrorResponse>::new())
            .with_retry_classifier(ServiceClockSkewClassifier::<ServiceErrorResponse>::new())
            .with_interceptor(ConnectionPoisoningInterceptor::new())
            .with_interceptor(ServiceClockSkewInterceptor::new())
            .with_interceptor(RequestInfoInterceptor::new())
            .with_interceptor(UserAgentInterceptor::new())
            .with_interceptor(InvocationIdInterceptor::new())
            .with_interceptor(RecursionDetectionInterceptor::new())
            .with_interceptor(interceptor);
        if let Some(classifier) = service.retries {
            components.push_retry_classifier(classifier());
        }
        if let Some(provider) = sdk.credentials_provider() {
            components.set_identity_resolver(SCHEME_ID, SharedIdentityResolver::new(provider));
        }
        let mut config = Layer::new(service.id);
        config.store_put(ApiMetadata::new(service.name, env!("CARGO_PKG_VERSION")));
        config.store_put(AuthSchemeOptionResolverParams::new(()));
        config.store_put(SigV4OperationSigningConfig::default());
        config.store_put(SigningName::from_static(service.name));
        if let Some(region) = sdk.region() {
            config.store_put(region.clone());
            config.store_put(SigningRegion::from(region.clone()));
        }
        config.store_put(sdk.timeout_config().cloned().unwrap_or_else(TimeoutConfig::disabled));
        config.store_or_unset(sdk.app_name().cloned());
        config.store_or_unset(sdk.stalled_stream_protection());
        let plugin = StaticRuntimePlugin::new()
            .with_config(config.freeze())
            .with_runtime_components(components);
        let region = sdk.region().map_or("us-east-1", |region| region.as_ref());
        let endpoint = endpoint.map_or_else(|| endpoint_of(service, sdk, region), str::to_owned);
        let retries = sdk.retry_config().cloned().unwrap_or_else(RetryConfig::standard);
        Self { service, plugin: SharedRuntimePlugin::new(plugin), retries, endpoint }
    }

    /// The operation `name`, which can be invoked repeatedly.
    pub fn prepare<O>(&self, name: &'static str) -> JsonOperation<O>
    where
        O: DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        Operation::builder()
            .service_name(self.service.id)
            .operation_name(name)
            .endpoint_url(&self.endpoint)
            .standard_retry(&self.retries)
            .runtime_plugin(self.plugin.clone())
            .serializer(Ok)
            .deserializer(answer)
            .build()
    }
}

fn answer<O: DeserializeOwned>(
    response: &HttpResponse,
) -> Result<O, OrchestratorError<ServiceErrorResponse>> {
    let body = response.body().bytes().unwrap_or_default();
    if !response.status().is_success() {
        return Err(OrchestratorError::operation(refused(response, body)));
    }
    let body = if body.is_empty() { b"null" } else { body };
    serde_json::from_slice(body).map_err(|error| OrchestratorError::response(error.into()))
}

/// Parses an error. The code is in a header or in the body, possibly before a URL or after a namespace.
fn refused(response: &HttpResponse, body: &[u8]) -> ServiceErrorResponse {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |keys: &[&str]| keys.iter().find_map(|key| json.get(key)?.as_str());
    let code = response.headers().get("x-amzn-errortype").or_else(|| text(&["__type", "code"]));
    let code = code.map(|code| code.split(':').next().unwrap_or(code));
    let code = code.map(|code| code.rsplit('#').next().unwrap_or(code));
    let mut refused = ErrorMetadata::builder();
    if let Some(code) = code {
        refused = refused.code(code);
    }
    if let Some(message) = text(&["message", "Message"]) {
        refused = refused.message(message);
    }
    ServiceErrorResponse(refused.build())
}

/// Endpoint configured in environment or shared files, or the service's public one in `region`.
pub(crate) fn endpoint_of(service: AwsService, sdk: &SdkConfig, region: &str) -> String {
    let key = ServiceConfigKey::builder()
        .service_id(service.id)
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build();
    let own = sdk.service_config().zip(key.ok()).and_then(|(config, key)| config.load_config(key));
    match own.or_else(|| sdk.endpoint_url().map(str::to_owned)) {
        Some(endpoint) => endpoint,
        None => {
            let (fips, dual_stack) = (sdk.use_fips(), sdk.use_dual_stack());
            public(service, region, fips == Some(true), dual_stack == Some(true))
        }
    }
}

fn public(service: AwsService, region: &str, fips: bool, dual_stack: bool) -> String {
    let has_own_fips = !(service.gov_is_fips && region.starts_with("us-gov-"));
    let fips = if fips && has_own_fips { "-fips" } else { "" };
    let partition = PARTITIONS.iter().find(|(prefix, ..)| region.starts_with(prefix));
    let (_, ipv4, both) = partition.unwrap_or(&PARTITIONS[PARTITIONS.len() - 1]);
    format!("https://{}{fips}.{region}.{}", service.name, if dual_stack { both } else { ipv4 })
}

/// Checks of a new table until it must be active.
const TABLE_LOOKS: u32 = 120;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// A table or bucket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProvisionError(String);

impl From<RequestFault> for ProvisionError {
    fn from(fault: RequestFault) -> Self {
        Self(fault.text)
    }
}

impl Aws {
    /// Creates the table `name` like the deployed stack's, unless it exists, and waits until it is active.
    pub async fn make_table(&self, name: &str) -> Result<(), ProvisionError> {
        let client = self.dynamodb();
        let key = |name, kind| json!({ "AttributeName": name, "KeyType": kind });
        let string = |name| json!({ "AttributeName": name, "AttributeType": "S" });
        let table = json!({
            "TableName": name,
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [key("pk", "HASH"), key("sk", "RANGE")],
            "AttributeDefinitions": [string("pk"), string("sk")],
        });
        let is_new = match client.create_table.send(&table).await {
            Ok(_) => true,
            Err(error) => {
                let fault = RequestFault::new("CreateTable", name, &error);
                if !fault.has_code("ResourceInUseException") {
                    return Err(fault.into());
                }
                false
            }
        };
        for _ in 0..TABLE_LOOKS {
            let found = client.describe_table.send(&json!({ "TableName": name })).await;
            let found = found.map_err(|error| RequestFault::new("DescribeTable", name, &error))?;
            let status = found["Table"]["TableStatus"].as_str();
            if status.is_none_or(|status| status == "ACTIVE") {
                return if is_new { self.expire_items(name).await } else { Ok(()) };
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(ProvisionError(format!("table {name} was created but does not become active")))
    }

    async fn expire_items(&self, name: &str) -> Result<(), ProvisionError> {
        let expiry = json!({
            "TableName": name,
            "TimeToLiveSpecification": { "AttributeName": "ttl", "Enabled": true },
        });
        let sent = self.dynamodb().update_time_to_live.send(&expiry).await;
        sent.map_err(|error| RequestFault::new("UpdateTimeToLive", name, &error))?;
        Ok(())
    }

    /// Creates the bucket `name`, unless it exists and belongs to these credentials.
    pub async fn make_bucket(&self, name: &str) -> Result<(), ProvisionError> {
        let client = self.s3();
        if client.head_bucket().bucket(name).send().await.is_ok() {
            return Ok(());
        }
        match client.create_bucket().bucket(name).send().await {
            Ok(_) => Ok(()),
            Err(error) => match RequestFault::new("CreateBucket", name, &error) {
                fault if fault.has_code("BucketAlreadyOwnedByYou") => Ok(()),
                fault => Err(fault.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdk::{dynamodb::DYNAMODB, lambda::LAMBDA};

    #[test]
    fn addresses_are_those_of_the_region() {
        let cases = [
            (LAMBDA, "eu-west-1", false, false, "https://lambda.eu-west-1.amazonaws.com"),
            (
                LAMBDA,
                "us-gov-west-1",
                true,
                false,
                "https://lambda-fips.us-gov-west-1.amazonaws.com",
            ),
            (LAMBDA, "us-east-2", false, true, "https://lambda.us-east-2.api.aws"),
            (LAMBDA, "cn-north-1", false, false, "https://lambda.cn-north-1.amazonaws.com.cn"),
            (LAMBDA, "us-isob-east-1", false, false, "https://lambda.us-isob-east-1.sc2s.sgov.gov"),
            (DYNAMODB, "eu-west-1", false, false, "https://dynamodb.eu-west-1.amazonaws.com"),
            (DYNAMODB, "us-east-1", true, false, "https://dynamodb-fips.us-east-1.amazonaws.com"),
            (
                DYNAMODB,
                "us-gov-east-1",
                true,
                false,
                "https://dynamodb.us-gov-east-1.amazonaws.com",
            ),
        ];
        for (service, region, fips, dual_stack, expected) in cases {
            assert_eq!(public(service, region, fips, dual_stack), expected);
        }
    }
}
