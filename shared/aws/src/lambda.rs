//! Lambda's API as far as it is used: four operations on the runtime of the SDK, which signs, retries and times them as
//! it does for the clients it generates. The generated client of Lambda has ninety operations, and compiling them
//! takes a minute.

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
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        auth::{AuthSchemeOptionResolverParams, static_resolver::StaticAuthSchemeOptionResolver},
        identity::SharedIdentityResolver,
        interceptors::{Intercept, context::InterceptorContext},
        orchestrator::{HttpRequest, HttpResponse, OrchestratorError},
        result::SdkError,
        retries::classifiers::{ClassifyRetry, RetryAction},
        runtime_components::RuntimeComponentsBuilder,
        runtime_plugin::{SharedRuntimePlugin, StaticRuntimePlugin},
    },
};
use aws_smithy_types::{
    body::SdkBody,
    config_bag::Layer,
    error::metadata::{ErrorMetadata, ProvideErrorMetadata},
    retry::RetryConfig,
    timeout::TimeoutConfig,
};
use aws_types::{SigningName, region::SigningRegion, service_config::ServiceConfigKey};
use bytes::Bytes;
use serde_json::Value;
use std::fmt;

pub(crate) const TOO_MANY_REQUESTS: u16 = 429;
const SERVICE: &str = "Lambda";
/// Suffixes of host names by prefix of the region, with IPv4 alone and with both; the last is everybody else's.
const PARTITIONS: [(&str, &str, &str); 7] = [
    ("cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    ("eusc-", "amazonaws.eu", "api.amazonwebservices.eu"),
    ("us-iso-", "c2s.ic.gov", "api.aws.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov", "api.aws.scloud"),
    ("us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
    ("", "amazonaws.com", "api.aws"),
];

pub(crate) type LambdaError = SdkError<Refused, HttpResponse>;

/// A refusal in the service's words.
#[derive(Debug)]
pub(crate) struct Refused(ErrorMetadata);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refused {}

impl ProvideErrorMetadata for Refused {
    fn meta(&self) -> &ErrorMetadata {
        &self.0
    }
}

/// A client. Clones share connections and credentials.
#[derive(Debug, Clone)]
pub(crate) struct LambdaClient {
    plugin: SharedRuntimePlugin,
    retries: RetryConfig,
    endpoint: String,
}

impl LambdaClient {
    /// At `endpoint`, or where `sdk` finds Lambda. Every request passes `interceptor`.
    pub fn new(
        sdk: &SdkConfig,
        endpoint: Option<&str>,
        interceptor: impl Intercept + 'static,
    ) -> Self {
        let sigv4 = StaticAuthSchemeOptionResolver::new(vec![SCHEME_ID]);
        let mut components = RuntimeComponentsBuilder::new(SERVICE)
            .with_http_client(sdk.http_client())
            .with_identity_cache(sdk.identity_cache())
            .with_sleep_impl(sdk.sleep_impl())
            .with_time_source(sdk.time_source())
            .with_auth_scheme(SigV4AuthScheme::new())
            .with_auth_scheme_option_resolver(Some(sigv4))
            .with_retry_classifier(HttpStatusCodeClassifier::default())
            .with_retry_classifier(TransientErrorClassifier::<Refused>::new())
            .with_retry_classifier(AwsErrorCodeClassifier::<Refused>::new())
            .with_retry_classifier(ServiceClockSkewClassifier::<Refused>::new())
            .with_retry_classifier(ThrottledInvocations)
            .with_interceptor(ConnectionPoisoningInterceptor::new())
            .with_interceptor(ServiceClockSkewInterceptor::new())
            .with_interceptor(RequestInfoInterceptor::new())
            .with_interceptor(UserAgentInterceptor::new())
            .with_interceptor(InvocationIdInterceptor::new())
            .with_interceptor(RecursionDetectionInterceptor::new())
            .with_interceptor(interceptor);
        if let Some(provider) = sdk.credentials_provider() {
            components.set_identity_resolver(SCHEME_ID, SharedIdentityResolver::new(provider));
        }
        let mut config = Layer::new(SERVICE);
        config.store_put(ApiMetadata::new("lambda", env!("CARGO_PKG_VERSION")));
        config.store_put(AuthSchemeOptionResolverParams::new(()));
        config.store_put(SigV4OperationSigningConfig::default());
        config.store_put(SigningName::from_static("lambda"));
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
        let endpoint = endpoint.map_or_else(|| endpoint_of(sdk), str::to_owned);
        let retries = sdk.retry_config().cloned().unwrap_or_else(RetryConfig::standard);
        Self { plugin: SharedRuntimePlugin::new(plugin), retries, endpoint }
    }

    /// Starts `function` with `event`, and does not wait for it to run.
    pub async fn invoke(&self, function: &str, event: Bytes) -> Result<Value, LambdaError> {
        let path = format!("/2015-03-31/functions/{}/invocations", encoded(function));
        self.send("Invoke", path, Some(event)).await
    }

    pub async fn function_configuration(&self, function: &str) -> Result<Value, LambdaError> {
        let path = format!("/2015-03-31/functions/{}/configuration", encoded(function));
        self.send("GetFunctionConfiguration", path, None).await
    }

    pub async fn function_concurrency(&self, function: &str) -> Result<Value, LambdaError> {
        let path = format!("/2019-09-30/functions/{}/concurrency", encoded(function));
        self.send("GetFunctionConcurrency", path, None).await
    }

    pub async fn account_settings(&self) -> Result<Value, LambdaError> {
        self.send("GetAccountSettings", "/2016-08-19/account-settings".to_owned(), None).await
    }

    /// Posts `event` if there is one, and gets otherwise. The answer is JSON, or null when it is empty.
    async fn send(
        &self,
        operation: &'static str,
        path: String,
        event: Option<Bytes>,
    ) -> Result<Value, LambdaError> {
        let operation = Operation::builder()
            .service_name(SERVICE)
            .operation_name(operation)
            .endpoint_url(&self.endpoint)
            .standard_retry(&self.retries)
            .runtime_plugin(self.plugin.clone())
            .serializer(|(path, event): (String, Option<Bytes>)| request(&path, event))
            .deserializer(answer)
            .build();
        operation.invoke((path, event)).await
    }
}

fn request(path: &str, event: Option<Bytes>) -> Result<HttpRequest, BoxError> {
    let request = http::Request::builder().uri(path);
    let request = match event {
        Some(event) => request
            .method(http::Method::POST)
            .header(http::header::CONTENT_TYPE, "application/octet-stream")
            .header("x-amz-invocation-type", "Event")
            .body(SdkBody::from(event)),
        None => request.body(SdkBody::empty()),
    };
    Ok(request?.try_into()?)
}

fn answer(response: &HttpResponse) -> Result<Value, OrchestratorError<Refused>> {
    let body = response.body().bytes().unwrap_or_default();
    if !response.status().is_success() {
        return Err(OrchestratorError::operation(refused(response, body)));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| OrchestratorError::response(error.into()))
}

/// The code is in a header or in the body, and may be followed by a URL, or come after a namespace.
fn refused(response: &HttpResponse, body: &[u8]) -> Refused {
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
    Refused(refused.build())
}

/// Where environment and shared files say that Lambda is, or its public address in the region.
fn endpoint_of(sdk: &SdkConfig) -> String {
    let key = ServiceConfigKey::builder()
        .service_id(SERVICE)
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build();
    let own = sdk.service_config().zip(key.ok()).and_then(|(config, key)| config.load_config(key));
    match own.or_else(|| sdk.endpoint_url().map(str::to_owned)) {
        Some(endpoint) => endpoint,
        None => {
            let region = sdk.region().map_or("us-east-1", |region| region.as_ref());
            public(region, sdk.use_fips() == Some(true), sdk.use_dual_stack() == Some(true))
        }
    }
}

fn public(region: &str, fips: bool, dual_stack: bool) -> String {
    let fips = if fips { "-fips" } else { "" };
    let partition = PARTITIONS.iter().find(|(prefix, ..)| region.starts_with(prefix));
    let (_, ipv4, both) = partition.unwrap_or(&PARTITIONS[PARTITIONS.len() - 1]);
    format!("https://lambda{fips}.{region}.{}", if dual_stack { both } else { ipv4 })
}

/// A segment of a path: names of functions and ARNs have colons.
fn encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// A throttled invocation is an answer the scaler plans with; waiting for room is its decision.
#[derive(Debug)]
struct ThrottledInvocations;

impl ClassifyRetry for ThrottledInvocations {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let is_invocation = context.request().is_some_and(|request| request.method() == "POST");
        match context.response() {
            Some(response) if is_invocation && response.status().as_u16() == TOO_MANY_REQUESTS => {
                RetryAction::RetryForbidden
            }
            _ => RetryAction::NoActionIndicated,
        }
    }

    fn name(&self) -> &'static str {
        "ThrottledInvocations"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_region() {
        let cases = [
            ("eu-west-1", false, false, "https://lambda.eu-west-1.amazonaws.com"),
            ("us-gov-west-1", true, false, "https://lambda-fips.us-gov-west-1.amazonaws.com"),
            ("us-east-2", false, true, "https://lambda.us-east-2.api.aws"),
            ("cn-north-1", false, false, "https://lambda.cn-north-1.amazonaws.com.cn"),
            ("us-isob-east-1", false, false, "https://lambda.us-isob-east-1.sc2s.sgov.gov"),
        ];
        for (region, fips, dual_stack, expected) in cases {
            assert_eq!(public(region, fips, dual_stack), expected);
        }
    }

    #[test]
    fn an_arn_is_one_segment_of_a_path() {
        let arn = "arn:aws:lambda:eu-west-1:123456789012:function:g-worker_2";
        let expected = "arn%3Aaws%3Alambda%3Aeu-west-1%3A123456789012%3Afunction%3Ag-worker_2";
        assert_eq!(encoded(arn), expected);
    }
}
