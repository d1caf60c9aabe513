//! The coordinator behind its function URL, or behind Lambda's endpoint: one signed POST per call.

use crate::sdk::{
    SettingsError,
    aws::{CredentialsCache, HttpPool, RequestCounts},
    fault::{is_passing_status, one_line, reason},
    lambda::{TOO_MANY_REQUESTS, invocations},
};
use async_trait::async_trait;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sigv4::{
    http_request::{PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4::SigningParams,
};
use aws_smithy_runtime_api::client::{
    identity::Identity,
    orchestrator::{HttpRequest, HttpResponse},
};
use aws_smithy_types::{body::SdkBody, byte_stream::ByteStream};
use gristmill_model::{
    Namespace,
    wire::{AnyCall, AnyReply, MAX_MESSAGE_BYTES, protocol},
};
use gristmill_ports::{CallError, CallTransport, CallVersion, Coordinator, encode_call};
use http::{Method, Uri, header};
use std::time::{Duration, SystemTime};

/// Deadline of one call, from signing to the last byte of the response.
const DEADLINE: Duration = Duration::from_secs(10);
const URL_SETTING: &str = "GRISTMILL_COORDINATOR_URL";

/// Header of an answer that the function did not give: it failed.
const FUNCTION_ERROR: &str = "x-amz-function-error";

/// Calls the coordinator of one namespace. Share it behind an `Arc`.
#[derive(Debug)]
pub struct HttpCoordinator {
    address: CallAddress,
    ns: Namespace,
    credentials: CredentialsCache,
    pool: HttpPool,
    counts: RequestCounts,
    version: CallVersion,
}

#[derive(Debug)]
pub(crate) struct CallAddress {
    uri: Uri,
    /// Text of `uri`, or the function's ARN, for messages.
    name: String,
    /// Region in signatures.
    region: String,
    /// Whether the address is on AWS.
    is_aws: bool,
    /// Permission that a call needs.
    permission: &'static str,
}

impl CallAddress {
    /// Parses a function URL, the URL of a local service, or an ARN. `endpoint` gives Lambda's
    /// endpoint in a region; `region` is the one of addresses that name none.
    pub fn parse(
        text: &str,
        region: &str,
        endpoint: impl FnOnce(&str) -> String,
    ) -> Result<Self, SettingsError> {
        let invalid = |reason: &str| SettingsError::invalid(URL_SETTING, text, reason);
        if text.starts_with("arn:") {
            let parts: Vec<&str> = text.split(':').collect();
            let ["arn", _, "lambda", region, _, "function", _, ..] = parts[..] else {
                return Err(invalid("not the ARN of a function"));
            };
            let uri = format!("{}{}", endpoint(region).trim_end_matches('/'), invocations(text));
            return Ok(Self {
                uri: uri.parse().map_err(|_| invalid("not the ARN of a function"))?,
                name: text.to_owned(),
                region: region.to_owned(),
                is_aws: true,
                permission: "lambda:InvokeFunction (parameter TrainersInvoke of the stack)",
            });
        }
        let uri: Uri = text.parse().map_err(|_| invalid("not a URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(invalid("not a URL that starts with https:// or http://, nor an ARN"));
        }
        let own = function_url_region(&uri);
        Ok(Self {
            name: uri.to_string(),
            region: own.unwrap_or(region).to_owned(),
            is_aws: own.is_some(),
            permission: "lambda:InvokeFunctionUrl",
            uri,
        })
    }
}

impl HttpCoordinator {
    pub(crate) fn new(
        address: CallAddress,
        ns: Namespace,
        credentials: Option<SharedCredentialsProvider>,
        pool: HttpPool,
        counts: RequestCounts,
    ) -> Self {
        let (credentials, version) = (CredentialsCache::new(credentials), CallVersion::default());
        Self { address, ns, credentials, pool, counts, version }
    }

    /// Region in its address; `None` if that is not on AWS.
    pub fn url_region(&self) -> Option<&str> {
        self.address.is_aws.then_some(self.address.region.as_str())
    }

    async fn post(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
        let CallAddress { uri, name, region, .. } = &self.address;
        let body = encode_call(&self.ns, call, version)?;
        let identity = self.credentials.identity().await;
        let identity = identity.map_err(|error| CallError::Rejected(reason(&error)))?;
        let signed = sign_post(uri, region, body, &identity);
        let request = signed.map_err(|text| CallError::Rejected(format!("{name}: {text}")))?;
        self.counts.add("coordinator", call.name());
        let answer = self.pool.call(request).await;
        let answer = answer.map_err(|error| {
            CallError::Unavailable(format!("{} to {name}: {}", call.name(), reason(&error)))
        })?;
        let has_failed = answer.headers().contains_key(FUNCTION_ERROR);
        let status = if has_failed { 502 } else { answer.status().as_u16() };
        if status == 403 {
            self.credentials.forget().await;
        }
        let body = read_answer(answer).await.map_err(|error| match error {
            Unread::TooLong => CallError::Rejected(format!(
                "{}: the answer of {name} has more than {MAX_MESSAGE_BYTES} bytes",
                call.name(),
            )),
            Unread::Broken(text) => {
                CallError::Unavailable(format!("{} to {name}: {text}", call.name()))
            }
        })?;
        judge(call.name(), version, &self.address, status, &body)
    }
}

#[async_trait]
impl CallTransport for HttpCoordinator {
    async fn send(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
        match tokio::time::timeout(DEADLINE, self.post(call, version)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CallError::Unavailable(format!(
                "{} to {}: no answer within {} s",
                call.name(),
                self.address.name,
                DEADLINE.as_secs()
            ))),
        }
    }
}

#[async_trait]
impl Coordinator for HttpCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        self.version.exchange(self, call).await
    }

    fn speak(&self, version: u32) {
        self.version.speak(version);
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

fn judge(
    call: &str,
    version: u32,
    address: &CallAddress,
    status: u16,
    body: &[u8],
) -> Result<AnyReply, CallError> {
    let CallAddress { name, permission, .. } = address;
    let quote = || message(body);
    match status {
        200..=299 => match protocol::read(body, version) {
            Ok(AnyReply::Refused(refusal)) => Err(CallError::Refused(refusal)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(CallError::Rejected(format!(
                "{call}: cannot read the answer of {name} as protocol version {version}: {error}"
            ))),
        },
        403 => Err(CallError::Denied(format!(
            "{call}: {name} answers 403: {}: check the AWS credentials, their permission \
             {permission} and the clock of this machine",
            quote()
        ))),
        TOO_MANY_REQUESTS => {
            Err(CallError::Throttled(format!("{call}: {name} answers {status}: {}", quote())))
        }
        status if is_passing_status(status) => {
            Err(CallError::Unavailable(format!("{call}: {name} answers {status}: {}", quote())))
        }
        status => Err(CallError::Denied(format!("{call}: {name} answers {status}: {}", quote()))),
    }
}

/// The message of an error response; the platform puts it into `Message` or `message`, and that of a
/// failed function into `errorMessage`.
fn message(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let named = json.as_ref().and_then(|json| {
        ["Message", "message", "errorMessage"].iter().find_map(|key| json.get(key))
    });
    match named.and_then(|message| message.as_str()) {
        Some(message) => one_line(message),
        None => one_line(&String::from_utf8_lossy(&body[..body.len().min(1000)])),
    }
}

const JSON: &str = "application/json";

/// A POST of JSON, signed (Signature Version 4) for the service `lambda`.
pub(crate) fn sign_post(
    uri: &Uri,
    region: &str,
    body: Vec<u8>,
    identity: &Identity,
) -> Result<HttpRequest, String> {
    let mut settings = SigningSettings::default();
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    let params = SigningParams::builder()
        .identity(identity)
        .region(region)
        .name("lambda")
        .time(SystemTime::now())
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?;
    let headers = [(header::CONTENT_TYPE.as_str(), JSON)];
    let url = uri.to_string();
    let body_to_sign = SignableBody::Bytes(&body);
    let signable =
        SignableRequest::new(Method::POST.as_str(), &url, headers.into_iter(), body_to_sign);
    let signed = signable.and_then(|signable| sign(signable, &params.into()));
    let (instructions, _) = signed.map_err(|error| error.to_string())?.into_parts();
    let mut request = http::Request::builder()
        .method(Method::POST)
        .uri(uri.clone())
        .header(header::CONTENT_TYPE, JSON)
        .body(SdkBody::from(body))
        .map_err(|error| error.to_string())?;
    instructions.apply_to_request_http1x(&mut request);
    request.try_into().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests;
