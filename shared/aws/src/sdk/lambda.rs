//! The part of Lambda's API that is used.

use crate::sdk::{
    fault::RequestFault,
    service::{AwsService, AwsServiceError, JsonOperation, ServiceClient},
};
use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{Intercept, context::InterceptorContext},
        orchestrator::HttpRequest,
        retries::classifiers::{ClassifyRetry, RetryAction, SharedRetryClassifier},
    },
};
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use gristmill_ports::{InvokeError, InvokeOutcome, Invoker};
use serde_json::Value;

pub(crate) const TOO_MANY_REQUESTS: u16 = 429;
pub(crate) const LAMBDA: AwsService = AwsService {
    id: "Lambda",
    name: "lambda",
    gov_is_fips: false,
    retries: Some(|| SharedRetryClassifier::new(ThrottledInvocations)),
};

/// A client. Clones share connections and credentials.
#[derive(Debug, Clone)]
pub(crate) struct LambdaClient {
    invoke: JsonOperation<Value>,
    configuration: JsonOperation<Value>,
    concurrency: JsonOperation<Value>,
    settings: JsonOperation<Value>,
}

impl LambdaClient {
    /// A client for `endpoint`, or as `sdk` finds Lambda. Every request passes `interceptor`.
    pub fn new(
        sdk: &SdkConfig,
        endpoint: Option<&str>,
        interceptor: impl Intercept + 'static,
    ) -> Self {
        let client = ServiceClient::new(LAMBDA, sdk, endpoint, interceptor);
        Self {
            invoke: client.prepare("Invoke"),
            configuration: client.prepare("GetFunctionConfiguration"),
            concurrency: client.prepare("GetFunctionConcurrency"),
            settings: client.prepare("GetAccountSettings"),
        }
    }

    /// Starts `function` with `event` without waiting for it to run.
    pub async fn invoke(&self, function: &str, event: Bytes) -> Result<Value, AwsServiceError> {
        send(&self.invoke, &invocations(function), Some(event)).await
    }

    /// `GetFunctionConfiguration`.
    pub async fn function_configuration(&self, function: &str) -> Result<Value, AwsServiceError> {
        let path = format!("/2015-03-31/functions/{}/configuration", encoded(function));
        send(&self.configuration, &path, None).await
    }

    /// `GetFunctionConcurrency`.
    pub async fn function_concurrency(&self, function: &str) -> Result<Value, AwsServiceError> {
        let path = format!("/2019-09-30/functions/{}/concurrency", encoded(function));
        send(&self.concurrency, &path, None).await
    }

    /// `GetAccountSettings`.
    pub async fn account_settings(&self) -> Result<Value, AwsServiceError> {
        send(&self.settings, "/2016-08-19/account-settings", None).await
    }
}

/// Posts `event` if there is one, else gets. The response is JSON, or null if empty.
async fn send(
    operation: &JsonOperation<Value>,
    path: &str,
    event: Option<Bytes>,
) -> Result<Value, AwsServiceError> {
    operation.invoke(request(path, event).map_err(AwsServiceError::construction_failure)?).await
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

/// Path that a function, by name or ARN, is invoked at.
pub(crate) fn invocations(function: &str) -> String {
    format!("/2015-03-31/functions/{}/invocations", encoded(function))
}

/// Encodes a path segment: names of functions and ARNs contain colons.
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

/// Does not retry throttled invocations: the scaler decides when to try again.
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

/// Most bytes of an asynchronous event.
const MAX_EVENT_BYTES: usize = 1 << 20;
const NOT_FOUND: u16 = 404;

/// Starts functions by name or ARN without waiting for them to run.
#[derive(Debug, Clone)]
pub struct LambdaInvoker {
    client: LambdaClient,
}

impl LambdaInvoker {
    pub(crate) fn new(client: LambdaClient) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Invoker for LambdaInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let failed = |reason, gone| InvokeError { function: function.to_owned(), reason, gone };
        if payload.len() > MAX_EVENT_BYTES {
            let reason = format!("an event of {} bytes is over the 1 MiB limit", payload.len());
            return Err(failed(reason, false));
        }
        match self.client.invoke(function, payload).await {
            Ok(_) => Ok(InvokeOutcome::Accepted),
            Err(error) => {
                let fault = RequestFault::new("Invoke", function, &error);
                match fault.status {
                    Some(TOO_MANY_REQUESTS) => Ok(InvokeOutcome::Throttled),
                    status => Err(failed(fault.text, status == Some(NOT_FOUND))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arn_is_one_segment_of_a_path() {
        let arn = "arn:aws:lambda:eu-west-1:123456789012:function:g-worker_2";
        let expected = "arn%3Aaws%3Alambda%3Aeu-west-1%3A123456789012%3Afunction%3Ag-worker_2";
        assert_eq!(encoded(arn), expected);
    }
}

#[cfg(test)]
mod invoker_tests {
    use super::*;
    use crate::sdk::testing::{Answer, Server};

    async fn invoked(answer: u16) -> (Result<InvokeOutcome, InvokeError>, Server) {
        let server = Server::start(move |_, _| Answer::status(answer, "{}")).await;
        let event = Bytes::from_static(b"{\"v\":1}");
        (server.aws().invoker().invoke("worker", event).await, server)
    }

    #[tokio::test]
    async fn an_event_is_sent_without_waiting() {
        let (outcome, server) = invoked(202).await;
        assert_eq!(outcome.unwrap(), InvokeOutcome::Accepted);
        let asked = &server.asked()[0];
        assert_eq!(asked.target, "/2015-03-31/functions/worker/invocations");
        assert_eq!(asked.header("x-amz-invocation-type"), "Event");
        assert_eq!(asked.body, "{\"v\":1}");
    }

    #[tokio::test]
    async fn a_throttle_is_an_answer_and_not_tried_again() {
        let (outcome, server) = invoked(429).await;
        assert_eq!(outcome.unwrap(), InvokeOutcome::Throttled);
        assert_eq!(server.asked().len(), 1);
    }

    #[tokio::test]
    async fn faults_are_retried_and_then_returned() {
        let (outcome, server) = invoked(500).await;
        let error = outcome.unwrap_err().to_string();
        assert!(error.starts_with("cannot invoke worker: ") && error.contains("500"), "{error}");
        assert_eq!(server.asked().len(), 4);
    }

    #[tokio::test]
    async fn an_event_over_the_limit_is_not_sent() {
        let server = Server::start(|_, _| Answer::status(202, "")).await;
        let event = Bytes::from(vec![b' '; MAX_EVENT_BYTES + 1]);
        assert!(server.aws().invoker().invoke("worker", event).await.is_err());
        assert!(server.asked().is_empty());
    }
}
