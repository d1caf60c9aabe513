//! Function URLs: HTTP in front of a function, in events of payload format 2.0.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::config::UrlAuth;
use super::environment::Invocation;
use super::function::Function;
use super::host::Host;
use super::invoke_api::MAX_SYNC_BYTES;
use super::outcome::{FailureKind, Outcome};
use super::stats::bump;
use crate::http_server::{self, BodyError, Reply, with_header};

pub(crate) async fn answer(
    host: Arc<Host>,
    function: Arc<Function>,
    auth: UrlAuth,
    request: Request<Incoming>,
) -> Reply {
    let (parts, body) = request.into_parts();
    let body = match http_server::read_body(body, MAX_SYNC_BYTES).await {
        Ok(body) => body,
        Err(BodyError::TooLarge) => {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request is longer than 6 MiB");
        }
        Err(BodyError::Broken) => return refusal(StatusCode::BAD_REQUEST, "the body broke off"),
    };
    let now = SystemTime::now();
    if auth == UrlAuth::AwsIam
        && let Err(error) = host.verifier.verify(&parts, &body, now)
    {
        let reply = refusal(StatusCode::FORBIDDEN, &format!("Forbidden: {error}"));
        return with_header(reply, "x-amzn-errortype", "AccessDeniedException");
    }
    let permit = match function.admit(&host) {
        Ok(permit) => permit,
        Err(_) => {
            bump(&function.counters.throttles);
            let reply = refusal(StatusCode::TOO_MANY_REQUESTS, "Rate Exceeded.");
            return with_header(reply, "x-amzn-errortype", "TooManyRequestsException");
        }
    };
    bump(&function.counters.url);
    let Ok(invocation) = host.invocation(Bytes::new()) else {
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "no random bytes");
    };
    let id = invocation.request_id.clone();
    let Ok(payload) = event(&host, auth, &parts, &body, &id, now) else {
        return refusal(StatusCode::BAD_REQUEST, "the request cannot be written as an event");
    };
    let outcome = host.run(permit, Invocation { payload: payload.into(), ..invocation }).await;
    let reply = match outcome {
        Some(Outcome::Response(payload)) => respond(&payload),
        Some(Outcome::Failed(failure)) if failure.kind == FailureKind::Timeout => {
            refusal(StatusCode::GATEWAY_TIMEOUT, "the function timed out")
        }
        Some(Outcome::Failed(_)) => refusal(StatusCode::BAD_GATEWAY, "Internal Server Error"),
        None => refusal(StatusCode::SERVICE_UNAVAILABLE, "the host is stopping"),
    };
    // The local cause replaces a generic server error.
    let reply = match host.admin.trouble().filter(|_| reply.status().is_server_error()) {
        Some(trouble) => refusal(StatusCode::INSUFFICIENT_STORAGE, &trouble),
        None => reply,
    };
    with_header(reply, "x-amzn-requestid", &id)
}

fn refusal(status: StatusCode, message: &str) -> Reply {
    http_server::json(status, serde_json::json!({"Message": message}).to_string())
}

/// The event of a request. Names and nesting are AWS's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UrlEvent<'a> {
    version: &'static str,
    route_key: &'static str,
    raw_path: &'a str,
    raw_query_string: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cookies: Vec<&'a str>,
    headers: BTreeMap<&'a str, Cow<'a, str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    query_string_parameters: BTreeMap<Cow<'a, str>, String>,
    request_context: RequestContext<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
    is_base64_encoded: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestContext<'a> {
    account_id: &'a str,
    api_id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorizer: Option<Authorizer<'a>>,
    domain_name: &'a str,
    domain_prefix: &'static str,
    http: HttpContext<'a>,
    request_id: &'a str,
    route_key: &'static str,
    stage: &'static str,
    time: String,
    time_epoch: u64,
}

#[derive(Serialize)]
struct Authorizer<'a> {
    iam: Iam<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Iam<'a> {
    access_key: &'a str,
    account_id: &'a str,
    caller_id: &'a str,
    cognito_identity: Option<()>,
    principal_org_id: Option<()>,
    user_arn: String,
    user_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpContext<'a> {
    method: &'a str,
    path: &'a str,
    protocol: &'static str,
    source_ip: &'static str,
    user_agent: &'a str,
}

fn event(
    host: &Host,
    auth: UrlAuth,
    parts: &Parts,
    body: &Bytes,
    request_id: &str,
    now: SystemTime,
) -> Result<Vec<u8>, serde_json::Error> {
    let settings = &host.settings;
    let account_id = settings.account_id.as_str();
    let path = parts.uri.path();
    let query = parts.uri.query().unwrap_or("");
    let text =
        |name: &HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let (body, is_base64_encoded) = carry(&parts.headers, body);
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let iam = || Iam {
        access_key: &settings.credentials.access_key_id,
        account_id,
        caller_id: "gristmill",
        cognito_identity: None,
        principal_org_id: None,
        user_arn: format!("arn:aws:iam::{account_id}:user/gristmill"),
        user_id: "gristmill",
    };
    serde_json::to_vec(&UrlEvent {
        version: "2.0",
        route_key: "$default",
        raw_path: path,
        raw_query_string: query,
        cookies: text(&header::COOKIE).split("; ").filter(|c| !c.is_empty()).collect(),
        headers: joined(&parts.headers),
        query_string_parameters: parameters(query),
        request_context: RequestContext {
            account_id,
            api_id: "local",
            authorizer: (auth == UrlAuth::AwsIam).then(|| Authorizer { iam: iam() }),
            domain_name: text(&header::HOST),
            domain_prefix: "local",
            http: HttpContext {
                method: parts.method.as_str(),
                path,
                protocol: "HTTP/1.1",
                source_ip: "127.0.0.1",
                user_agent: text(&header::USER_AGENT),
            },
            request_id,
            route_key: "$default",
            stage: "$default",
            time: log_time(since_epoch),
            time_epoch: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
        },
        body,
        is_base64_encoded,
    })
}

/// Text is sent as it is, anything else in base64.
fn carry<'a>(headers: &HeaderMap, body: &'a Bytes) -> (Option<Cow<'a, str>>, bool) {
    if body.is_empty() {
        return (None, false);
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let textual = kind.starts_with("text/")
        || ["application/json", "application/javascript", "application/xml"]
            .iter()
            .any(|t| kind.starts_with(t));
    match std::str::from_utf8(body) {
        Ok(text) if textual => (Some(Cow::Borrowed(text)), false),
        _ => (Some(Cow::Owned(BASE64_STANDARD.encode(body))), true),
    }
}

/// Joins repeated headers by commas; cookies are separate.
fn joined(headers: &HeaderMap) -> BTreeMap<&str, Cow<'_, str>> {
    let mut map: BTreeMap<&str, Cow<'_, str>> = BTreeMap::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        if name == header::COOKIE {
            continue;
        }
        map.entry(name.as_str())
            .and_modify(|all| *all = Cow::Owned(format!("{all},{value}")))
            .or_insert(Cow::Borrowed(value));
    }
    map
}

fn parameters(query: &str) -> BTreeMap<Cow<'_, str>, String> {
    let mut map: BTreeMap<Cow<'_, str>, String> = BTreeMap::new();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        map.entry(key)
            .and_modify(|all| {
                all.push(',');
                all.push_str(&value);
            })
            .or_insert_with(|| value.clone().into_owned());
    }
    map
}

/// `21/Nov/2026:10:56:17 +0000`, from `Sat, 21 Nov 2026 10:56:17 GMT`.
fn log_time(since_epoch: Duration) -> String {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    let date = DateTime::from_secs(seconds).fmt(Format::HttpDate).unwrap_or_default();
    let mut words = date.split_whitespace().skip(1);
    let mut word = || words.next().unwrap_or("");
    let (day, month, year, time) = (word(), word(), word(), word());
    format!("{day}/{month}/{year}:{time} +0000")
}

/// Response of a function in payload format 2.0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UrlResponse<'a> {
    status_code: u16,
    #[serde(default)]
    headers: Option<BTreeMap<String, HeaderText>>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
    #[serde(default, borrow)]
    body: Option<Cow<'a, str>>,
    #[serde(default)]
    is_base64_encoded: bool,
}

/// A header value; may be a number or a boolean.
#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderText {
    Text(String),
    Other(serde_json::Value),
}

fn respond(payload: &Bytes) -> Reply {
    let Ok(response) = serde_json::from_slice::<UrlResponse<'_>>(payload) else {
        // As Lambda infers: any other valid document is the body itself.
        return http_server::json(StatusCode::OK, payload.clone());
    };
    let body = match response.body {
        None => Bytes::new(),
        Some(text) if response.is_base64_encoded => match BASE64_STANDARD.decode(text.as_bytes()) {
            Ok(bytes) => bytes.into(),
            Err(_) => return refusal(StatusCode::BAD_GATEWAY, "the function's body is not base64"),
        },
        Some(Cow::Borrowed(text)) => payload.slice_ref(text.as_bytes()),
        Some(Cow::Owned(text)) => text.into(),
    };
    let Ok(status) = StatusCode::from_u16(response.status_code) else {
        return refusal(StatusCode::BAD_GATEWAY, "the function's status code is not one of HTTP");
    };
    let mut reply = http::Response::new(Full::new(body));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    for (name, value) in response.headers.unwrap_or_default() {
        let value = match value {
            HeaderText::Text(text) => text,
            HeaderText::Other(other) => other.to_string(),
        };
        let named = (HeaderName::try_from(name), HeaderValue::try_from(value));
        // This server determines length and framing.
        if let (Ok(name), Ok(value)) = named
            && ![header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION]
                .contains(&name)
        {
            headers.append(name, value);
        }
    }
    for cookie in response.cookies.unwrap_or_default() {
        if let Ok(cookie) = HeaderValue::try_from(cookie) {
            headers.append(header::SET_COOKIE, cookie);
        }
    }
    if !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    reply
}
