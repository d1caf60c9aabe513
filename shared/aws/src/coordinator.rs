//! The coordinator behind its function URL: one signed POST per call.

use crate::{
    SettingsError,
    connect::HttpPool,
    counts::RequestCounts,
    credentials::CredentialsCache,
    fault::{is_passing_status, one_line, reason},
    signing::sign_post,
};
use async_trait::async_trait;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::byte_stream::ByteStream;
use gristmill_model::Namespace;
use gristmill_model::wire::{AnyCall, AnyReply, MAX_MESSAGE_BYTES, VERSION};
use gristmill_ports::{CallError, Coordinator, encode_call};
use http::{Uri, header};
use std::time::Duration;

/// Deadline of one call, from signing to the last byte of the response.
const DEADLINE: Duration = Duration::from_secs(10);
const URL_SETTING: &str = "GRISTMILL_COORDINATOR_URL";

/// Calls the coordinator of one namespace. Share it behind an `Arc`.
#[derive(Debug)]
pub struct HttpCoordinator {
    uri: Uri,
    /// Text of `uri`, for signing and messages.
    url: String,
    ns: Namespace,
    region: String,
    credentials: CredentialsCache,
    pool: HttpPool,
    counts: RequestCounts,
}

impl HttpCoordinator {
    pub(crate) fn new(
        url: &str,
        ns: Namespace,
        region: &str,
        credentials: Option<SharedCredentialsProvider>,
        pool: HttpPool,
        counts: RequestCounts,
    ) -> Result<Self, SettingsError> {
        let invalid = |reason: &str| SettingsError::invalid(URL_SETTING, url, reason);
        let uri: Uri = url.parse().map_err(|_| invalid("not a URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(invalid("not a URL that starts with https:// or http://"));
        }
        let region = function_url_region(&uri).unwrap_or(region).to_owned();
        let credentials = CredentialsCache::new(credentials);
        Ok(Self { url: uri.to_string(), uri, ns, region, credentials, pool, counts })
    }

    /// Region in its URL; `None` if it is not an AWS function URL.
    pub fn url_region(&self) -> Option<&str> {
        function_url_region(&self.uri)
    }

    async fn send(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let body = encode_call(&self.ns, call)?;
        let identity = self.credentials.identity().await;
        let identity = identity.map_err(|error| CallError::Rejected(reason(&error)))?;
        let signed = sign_post(&self.uri, &self.region, body, &identity);
        let request =
            signed.map_err(|text| CallError::Rejected(format!("{}: {text}", self.url)))?;
        self.counts.add("coordinator", call.name());
        let answer = self.pool.call(request).await;
        let answer = answer.map_err(|error| {
            CallError::Unavailable(format!("{} to {}: {}", call.name(), self.url, reason(&error)))
        })?;
        let status = answer.status().as_u16();
        if status == 403 {
            self.credentials.forget().await;
        }
        let body = read_answer(answer).await.map_err(|error| match error {
            Unread::TooLong => CallError::Rejected(format!(
                "{}: the answer of {} has more than {MAX_MESSAGE_BYTES} bytes",
                call.name(),
                self.url
            )),
            Unread::Broken(text) => {
                CallError::Unavailable(format!("{} to {}: {text}", call.name(), self.url))
            }
        })?;
        judge(call.name(), &self.url, status, &body)
    }
}

#[async_trait]
impl Coordinator for HttpCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        match tokio::time::timeout(DEADLINE, self.send(call)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CallError::Unavailable(format!(
                "{} to {}: no answer within {} s",
                call.name(),
                self.url,
                DEADLINE.as_secs()
            ))),
        }
    }
}

/// Region of a function URL: `ID.lambda-url.REGION.on.aws`.
fn function_url_region(uri: &Uri) -> Option<&str> {
    let (_, rest) = uri.host()?.split_once(".lambda-url.")?;
    rest.strip_suffix(".on.aws")
}

enum Unread {
    TooLong,
    Broken(String),
}

async fn read_answer(answer: HttpResponse) -> Result<Vec<u8>, Unread> {
    let length = answer.headers().get(header::CONTENT_LENGTH.as_str());
    let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    if length > MAX_MESSAGE_BYTES {
        return Err(Unread::TooLong);
    }
    let mut body = Vec::with_capacity(length);
    let mut stream = ByteStream::new(answer.into_body());
    loop {
        match stream.try_next().await {
            Ok(Some(frame)) if body.len() + frame.len() > MAX_MESSAGE_BYTES => {
                return Err(Unread::TooLong);
            }
            Ok(Some(frame)) => body.extend_from_slice(&frame),
            Ok(None) => return Ok(body),
            Err(error) => return Err(Unread::Broken(reason(&error))),
        }
    }
}

/// Converts a response to a reply or an error.
fn judge(call: &str, url: &str, status: u16, body: &[u8]) -> Result<AnyReply, CallError> {
    let quote = || message(body);
    match status {
        200..=299 => match serde_json::from_slice(body) {
            Ok(AnyReply::Refused(refusal)) => Err(CallError::Refused(refusal)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(CallError::Rejected(format!(
                "{call}: cannot read the answer of {url} as protocol version {VERSION}: {error}"
            ))),
        },
        403 => Err(CallError::Denied(format!(
            "{call}: {url} answers 403: {}: check the AWS credentials, their permission \
             lambda:InvokeFunctionUrl and the clock of this machine",
            quote()
        ))),
        status if is_passing_status(status) => {
            Err(CallError::Unavailable(format!("{call}: {url} answers {status}: {}", quote())))
        }
        status => Err(CallError::Denied(format!("{call}: {url} answers {status}: {}", quote()))),
    }
}

/// The message of an error response; the platform puts it into `Message` or `message`.
fn message(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let named = json.as_ref().and_then(|json| json.get("Message").or_else(|| json.get("message")));
    match named.and_then(|message| message.as_str()) {
        Some(message) => one_line(message),
        None => one_line(&String::from_utf8_lossy(&body[..body.len().min(1000)])),
    }
}

#[cfg(test)]
mod tests;
