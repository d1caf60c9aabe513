//! The function's entry points: calls to its URL or through Lambda's endpoint, failure reports of the
//! platform, and a schedule.

use crate::CoordinatorFunction;
use gristmill_model::InvocationId;
use gristmill_model::wire::{
    AnyReply, CallEnvelope, CallRefusal, MAX_MESSAGE_BYTES, RefusalKind, ReleaseCall, WorkerEvent,
    protocol,
};
use lambda_http::{
    Body, Error, Request as HttpRequest, Response, request::RequestContext, service_fn,
};
use serde::Deserialize;

/// Serves calls until the platform ends the environment.
pub async fn serve(coordinator: CoordinatorFunction) -> Result<(), Error> {
    lambda_http::run(service_fn(move |request: HttpRequest| {
        let coordinator = coordinator.clone();
        async move { handle(&coordinator, &request).await }
    }))
    .await
}

/// Answers one request to the function's URL, or one event that does not arrive through it.
pub async fn handle(
    coordinator: &CoordinatorFunction,
    request: &HttpRequest,
) -> Result<Response<Body>, Error> {
    let body: &[u8] = request.body();
    let reported = request.extensions().get::<RequestContext>();
    if matches!(reported, Some(RequestContext::PassThrough)) {
        match serde_json::from_slice(body) {
            Ok(Event::Call { .. }) => return answer(coordinator, body).await,
            Ok(Event::Failed(report)) => release_failed(coordinator, report).await,
            // A scheduled event has no caller to answer: the error makes the platform count it as failed.
            Ok(Event::Scheduled { upkeep: true }) => {
                coordinator.upkeep().await.map(|_| ())?;
            }
            Ok(Event::Scheduled { upkeep: false }) | Err(_) => {
                tracing::warn!(
                    "ignored an event that is no call, failure report or scheduled event"
                );
            }
        }
        return Ok(Response::new(Body::Text("null".to_owned())));
    }
    answer(coordinator, body).await
}

async fn answer(coordinator: &CoordinatorFunction, body: &[u8]) -> Result<Response<Body>, Error> {
    let (version, reply) = match parse(coordinator, body) {
        Ok(request) => (request.v, coordinator.answer(&request).await),
        Err(refusal) => (CallEnvelope::version_of(body), AnyReply::Refused(refusal)),
    };
    let reply = protocol::write(&reply, version)?;
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Body::Text(String::from_utf8(reply)?))?)
}

fn parse(coordinator: &CoordinatorFunction, body: &[u8]) -> Result<CallEnvelope, CallRefusal> {
    if body.len() > MAX_MESSAGE_BYTES {
        let message = format!("the call is larger than {MAX_MESSAGE_BYTES} bytes");
        return Err(CallRefusal { kind: RefusalKind::Invalid, message });
    }
    CallEnvelope::read(body, coordinator.spoken())
}

/// Events that do not arrive through the URL.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Event {
    /// A call ([`Request`]) of a trainer that cannot reach the URL.
    Call {
        #[serde(rename = "v")]
        _version: u32,
    },
    Failed(FailureReport),
    /// `{"upkeep": true}`, sent on a schedule.
    Scheduled {
        upkeep: bool,
    },
}

/// The record of a failed asynchronous invocation, as Lambda sends it to a failure destination.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailureReport {
    request_context: FailureContext,
    /// A [`WorkerEvent`].
    request_payload: serde_json::Value,
    #[serde(default)]
    response_payload: Option<FailurePayload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailureContext {
    request_id: String,
    condition: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FailurePayload {
    error_message: String,
}

/// Releases the bundles of a dead invocation, so that they are claimable at once. Never starts a worker:
/// that could loop, from worker to report to worker.
async fn release_failed(coordinator: &CoordinatorFunction, report: FailureReport) {
    let FailureReport { request_context, request_payload, response_payload } = report;
    // A worker may have died because nobody here speaks the version of its event.
    let read = protocol::read_event::<WorkerEvent>(request_payload.clone());
    let event = match read.or_else(|_| serde_json::from_value::<WorkerEvent>(request_payload)) {
        Ok(event) => event,
        Err(error) => return tracing::warn!(%error, "cannot read the event of a dead worker"),
    };
    let release = ReleaseCall {
        job: event.job,
        // A split can be at fault only if the function ran and failed.
        blameless: request_context.condition != "RetriesExhausted",
        // One that ran for longer than an event lives has a response.
        expired: request_context.condition == "EventAgeExceeded" && response_payload.is_none(),
        invocation: InvocationId::new(event.worker, &request_context.request_id),
        worker: Some(event.worker),
        error: response_payload.unwrap_or_default().error_message,
    };
    if let AnyReply::Refused(refusal) = coordinator.answer_own(release).await {
        tracing::warn!(%refusal, "cannot release the bundle of a dead worker; its lease will \
                                  expire");
    }
}
