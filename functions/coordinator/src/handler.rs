//! The function's edge: HTTP requests to its URL, and failure reports of the platform.

use crate::Coordinator;
use gristmill_protocol::{
    Call, MAX_MESSAGE_BYTES, Refusal, RefusalKind, Release, Reply, Request, VERSION, WorkerEvent,
};
use gristmill_types::InvocationId;
use lambda_http::{
    Body, Error, Request as HttpRequest, Response, request::RequestContext, service_fn,
};
use serde::Deserialize;

/// Serves calls until the platform ends the environment.
pub async fn serve(coordinator: Coordinator) -> Result<(), Error> {
    lambda_http::run(service_fn(move |request: HttpRequest| {
        let coordinator = coordinator.clone();
        async move { handle(&coordinator, &request).await }
    }))
    .await
}

/// Answers one event: a call to the function's URL, or a report of the platform that an
/// asynchronous invocation failed.
pub async fn handle(
    coordinator: &Coordinator,
    request: &HttpRequest,
) -> Result<Response<Body>, Error> {
    let body: &[u8] = request.body();
    let reported = request.extensions().get::<RequestContext>();
    if matches!(reported, Some(RequestContext::PassThrough)) {
        release_failed(coordinator, body).await;
        return Ok(Response::new(Body::Text("null".to_owned())));
    }
    let reply = match parse(body) {
        Ok(request) => coordinator.answer(&request).await,
        Err(refusal) => Reply::Refused(refusal),
    };
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Body::Text(serde_json::to_string(&reply)?))?)
}

fn parse(body: &[u8]) -> Result<Request, Refusal> {
    let invalid = |message: String| Refusal { kind: RefusalKind::Invalid, message };
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(invalid(format!("the call is larger than {MAX_MESSAGE_BYTES} bytes")));
    }
    serde_json::from_slice(body)
        .map_err(|error| invalid(format!("the call cannot be read: {error}")))
}

/// The record of a failed asynchronous invocation, as Lambda sends it to a failure destination.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailureReport {
    request_context: FailureContext,
    request_payload: WorkerEvent,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailureContext {
    request_id: String,
    condition: String,
}

/// RELEASE: whatever the dead invocation held may be claimed at once. It never starts a worker:
/// that would be a loop, worker -> report -> worker.
async fn release_failed(coordinator: &Coordinator, body: &[u8]) {
    let report: FailureReport = match serde_json::from_slice(body) {
        Ok(report) => report,
        Err(error) => return tracing::warn!(%error, "an event that is not a failure report"),
    };
    let FailureReport { request_context, request_payload: event } = report;
    let request = Request {
        v: VERSION,
        ns: event.ns,
        call: Call::Release(Release {
            job: event.job,
            // Only a function that ran and failed can have been brought down by a split.
            blameless: request_context.condition != "RetriesExhausted",
            invocation: InvocationId(request_context.request_id),
            worker: Some(event.worker),
        }),
    };
    if let Reply::Refused(refusal) = coordinator.answer(&request).await {
        tracing::warn!(%refusal, "cannot release what a dead worker held; its lease will run out");
    }
}
