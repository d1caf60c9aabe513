//! The Lambda Runtime API, used by the processes of environments.
//!
//! One listener serves all environments. Each gets an address with a random token in its path, which both identifies
//! and authenticates it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;

use super::environment::{Environment, Reply, Taken};
use super::host::Host;
use crate::http_server::{self, BodyError};

/// Lambda's limit for a response: 6 MiB and 100 bytes.
pub(crate) const MAX_RESPONSE_BYTES: usize = 6_291_556;

const BASE: &str = "2018-06-01/runtime/";

pub(crate) async fn answer(host: Arc<Host>, request: Request<Incoming>) -> http_server::Reply {
    let path = request.uri().path().to_owned();
    let Some((environment, route)) = find(&host, &path) else {
        return refusal(
            StatusCode::NOT_FOUND,
            "InvalidEnvironment",
            "no such environment or route",
        );
    };
    let mut segments = route.split('/');
    let route = (segments.next(), segments.next(), segments.next(), segments.next());
    match (request.method(), route) {
        (&Method::GET, (Some("invocation"), Some("next"), None, None)) => {
            let arn = environment.arn.clone();
            given(environment.next().await, &arn)
        }
        (&Method::POST, (Some("invocation"), Some(id), Some("response"), None)) => {
            let id = id.to_owned();
            match http_server::read_body(request.into_body(), MAX_RESPONSE_BYTES).await {
                Ok(body) => accept(&environment, &id, Reply::Response(body)),
                Err(BodyError::TooLarge) => {
                    environment.answer(&id, Reply::TooLarge);
                    let message = format!("the response is longer than {MAX_RESPONSE_BYTES} bytes");
                    refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &message)
                }
                Err(BodyError::Broken) => broken(),
            }
        }
        (&Method::POST, (Some("invocation"), Some(id), Some("error"), None)) => {
            let id = id.to_owned();
            match http_server::read_body(request.into_body(), MAX_RESPONSE_BYTES).await {
                Ok(body) => accept(&environment, &id, Reply::Error(body)),
                Err(BodyError::TooLarge) => accept(&environment, &id, Reply::TooLarge),
                Err(BodyError::Broken) => broken(),
            }
        }
        (&Method::POST, (Some("init"), Some("error"), None, None)) => {
            match http_server::read_body(request.into_body(), MAX_RESPONSE_BYTES).await {
                Ok(body) => {
                    environment.init_failed(body);
                    accepted()
                }
                Err(_) => broken(),
            }
        }
        _ => refusal(StatusCode::NOT_FOUND, "InvalidRoute", "no such route"),
    }
}

fn find<'p>(host: &Host, path: &'p str) -> Option<(Arc<Environment>, &'p str)> {
    let (token, rest) = path.strip_prefix('/')?.split_once('/')?;
    Some((host.environment(token)?, rest.strip_prefix(BASE)?))
}

fn given(taken: Taken, arn: &str) -> http_server::Reply {
    let Taken { invocation, deadline_ms } = taken;
    let mut reply = http::Response::new(Full::new(invocation.payload));
    let headers = reply.headers_mut();
    let mut set = |name: &'static str, value: &str| {
        // Only the client context comes from a caller; it is omitted if no header can carry it.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set("content-type", "application/json");
    set("lambda-runtime-aws-request-id", &invocation.request_id);
    set("lambda-runtime-deadline-ms", &deadline_ms.to_string());
    set("lambda-runtime-invoked-function-arn", arn);
    set("lambda-runtime-trace-id", &trace_id(&invocation.request_id));
    if let Some(context) = &invocation.client_context {
        set("lambda-runtime-client-context", context);
    }
    reply
}

/// An X-Ray id derived from the request id: unique and never sampled.
fn trace_id(request_id: &str) -> String {
    let hex: String = request_id.chars().filter(|c| *c != '-').collect();
    let (time, rest) = hex.split_at(hex.len().min(8));
    let (unique, _) = rest.split_at(rest.len().min(24));
    format!("Root=1-{time}-{unique};Parent=0000000000000000;Sampled=0")
}

fn accept(environment: &Environment, id: &str, reply: Reply) -> http_server::Reply {
    if environment.answer(id, reply) {
        accepted()
    } else {
        refusal(StatusCode::BAD_REQUEST, "InvalidRequestID", "that invocation is not running here")
    }
}

fn accepted() -> http_server::Reply {
    http_server::json(StatusCode::ACCEPTED, Bytes::from_static(b"{\"status\":\"OK\"}"))
}

fn broken() -> http_server::Reply {
    refusal(StatusCode::BAD_REQUEST, "InvalidRequest", "the body broke off")
}

fn refusal(status: StatusCode, error_type: &str, message: &str) -> http_server::Reply {
    let body = serde_json::json!({"errorType": error_type, "errorMessage": message});
    http_server::json(status, body.to_string())
}
