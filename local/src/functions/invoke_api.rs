//! The Lambda Invoke API, as called by `aws-sdk-lambda`, with the admin routes beside it.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::de::IgnoredAny;

use super::admin;
use super::environment::Invocation;
use super::events::{self, NotAccepted};
use super::function::{Function, Throttle};
use super::host::Host;
use super::outcome::Outcome;
use super::stats::bump;
use crate::http_server::{self, BodyError, Reply, with_header};

/// Lambda's limits for the payload of a synchronous and of an asynchronous invocation.
pub(crate) const MAX_SYNC_BYTES: usize = 6 * 1024 * 1024;
const MAX_ASYNC_BYTES: usize = 1024 * 1024;

const PREFIX: &str = "/2015-03-31/functions/";
const ACCOUNT_SETTINGS: &str = "/2016-08-19/account-settings";

pub(crate) async fn answer(host: Arc<Host>, request: Request<Incoming>) -> Reply {
    let (parts, body) = request.into_parts();
    if let Some(reply) = admin::open_route(&host, &parts) {
        return reply;
    }

    let body = match http_server::read_body(body, MAX_SYNC_BYTES).await {
        Ok(body) => body,
        Err(BodyError::TooLarge) => return too_large(MAX_SYNC_BYTES),
        Err(BodyError::Broken) => {
            return error(
                StatusCode::BAD_REQUEST,
                "InvalidRequestContentException",
                "the body broke off",
            );
        }
    };
    if let Err(refused) = host.verifier.verify(&parts, &body, SystemTime::now()) {
        return error(StatusCode::FORBIDDEN, refused.code(), &refused.to_string());
    }
    if parts.method == Method::GET && parts.uri.path() == ACCOUNT_SETTINGS {
        return account_settings(&host);
    }
    match parts.uri.path().strip_prefix(PREFIX) {
        Some(rest) => match (rest.strip_suffix("/invocations"), &parts.method) {
            (Some(name), &Method::POST) => invoke(&host, &parts, name, body).await,
            _ => no_route(&parts),
        },
        None => admin::signed_route(&host, &parts, &body).unwrap_or_else(|| no_route(&parts)),
    }
}

/// GetAccountSettings, concurrency only.
fn account_settings(host: &Host) -> Reply {
    let limit = serde_json::json!({
        "ConcurrentExecutions": host.concurrency_limit,
        "UnreservedConcurrentExecutions": host.unreserved_limit,
    });
    http_server::json(StatusCode::OK, serde_json::json!({ "AccountLimit": limit }).to_string())
}

fn no_route(parts: &Parts) -> Reply {
    let message = format!("no operation {} {} here", parts.method, parts.uri.path());
    error(StatusCode::NOT_FOUND, "UnknownOperationException", &message)
}

async fn invoke(host: &Arc<Host>, parts: &Parts, name: &str, payload: Bytes) -> Reply {
    let Some(function) = find(host, parts, name) else {
        return function_not_found(host, name);
    };
    // Lambda delivers a missing event as an empty document.
    let payload = if payload.is_empty() { Bytes::from_static(b"{}") } else { payload };
    if serde_json::from_slice::<IgnoredAny>(&payload).is_err() {
        let message = "Could not parse request body into json";
        return error(StatusCode::BAD_REQUEST, "InvalidRequestContentException", message);
    }
    let Ok(invocation) = host.invocation(payload) else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "ServiceException", "no random bytes");
    };
    let invocation = Invocation { client_context: client_context(parts), ..invocation };
    let id = invocation.request_id.clone();
    let kind =
        parts.headers.get("x-amz-invocation-type").map_or(Ok("RequestResponse"), |v| v.to_str());
    let reply = match kind {
        Ok("RequestResponse") => run(host, &function, invocation).await,
        Ok("Event") => accept(host, &function, invocation),
        Ok("DryRun") => http_server::empty(StatusCode::NO_CONTENT),
        _ => error(
            StatusCode::BAD_REQUEST,
            "InvalidParameterValueException",
            "x-amz-invocation-type must be RequestResponse, Event or DryRun",
        ),
    };
    with_header(reply, "x-amzn-requestid", &id)
}

async fn run(host: &Arc<Host>, function: &Arc<Function>, invocation: Invocation) -> Reply {
    let permit = match function.admit(host) {
        Ok(permit) => permit,
        Err(throttle) => {
            bump(&function.counters.throttles);
            return throttled(throttle);
        }
    };
    bump(&function.counters.sync);
    let reply = match host.run(permit, invocation).await {
        Some(Outcome::Response(payload)) => http_server::json(StatusCode::OK, payload),
        Some(Outcome::Failed(failure)) => with_header(
            http_server::json(StatusCode::OK, failure.payload),
            "x-amz-function-error",
            "Unhandled",
        ),
        None => {
            return error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "ServiceException",
                "the host is stopping",
            );
        }
    };
    with_header(reply, "x-amz-executed-version", &function.config.version)
}

fn accept(host: &Host, function: &Function, invocation: Invocation) -> Reply {
    if invocation.payload.len() > MAX_ASYNC_BYTES {
        return too_large(MAX_ASYNC_BYTES);
    }
    match events::accept(host, function, invocation) {
        Ok(()) => http_server::empty(StatusCode::ACCEPTED),
        Err(NotAccepted::Full) => throttled(Throttle::Function),
        Err(failed @ NotAccepted::Journal(_)) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, "ServiceException", &failed.to_string())
        }
    }
}

/// Accepts a name, `name:qualifier`, a partial or a whole ARN, and a `Qualifier` parameter.
fn find(host: &Host, parts: &Parts, given: &str) -> Option<Arc<Function>> {
    let decoded: String = given.replace("%3A", ":").replace("%3a", ":").replace("%24", "$");
    let tail = decoded.rsplit_once("function:").map_or(decoded.as_str(), |(_, tail)| tail);
    let (name, in_name) = tail.split_once(':').map_or((tail, None), |(n, q)| (n, Some(q)));
    let query = parts.uri.query().unwrap_or("");
    let in_query = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "Qualifier");
    let function = host.functions.get(name)?;
    let qualifier = in_name.or(in_query.as_ref().map(|(_, value)| &**value));
    let known = qualifier.is_none_or(|q| q == "$LATEST" || q == function.config.version);
    known.then(|| Arc::clone(function))
}

fn client_context(parts: &Parts) -> Option<String> {
    let encoded = parts.headers.get("x-amz-client-context")?;
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

fn function_not_found(host: &Host, name: &str) -> Reply {
    let settings = &host.settings;
    let (region, account) = (&settings.region, &settings.account_id);
    let message = format!("Function not found: arn:aws:lambda:{region}:{account}:function:{name}");
    error(StatusCode::NOT_FOUND, "ResourceNotFoundException", &message)
}

fn throttled(throttle: Throttle) -> Reply {
    let reason = match throttle {
        Throttle::Function => "ReservedFunctionConcurrentInvocationLimitExceeded",
        Throttle::Account => "ConcurrentInvocationLimitExceeded",
    };
    let body = serde_json::json!({"Reason": reason, "Type": "User", "message": "Rate Exceeded."});
    let reply = http_server::json(StatusCode::TOO_MANY_REQUESTS, body.to_string());
    with_header(reply, "x-amzn-errortype", "TooManyRequestsException")
}

fn too_large(cap_bytes: usize) -> Reply {
    let message =
        format!("Request must be smaller than {cap_bytes} bytes for the InvokeFunction operation");
    error(StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeException", &message)
}

/// An error in the SDK's format.
pub(crate) fn error(status: StatusCode, code: &str, message: &str) -> Reply {
    let fault = if status.is_server_error() { "Service" } else { "User" };
    let body = serde_json::json!({"Type": fault, "message": message, "Message": message});
    with_header(http_server::json(status, body.to_string()), "x-amzn-errortype", code)
}
