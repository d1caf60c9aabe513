//! Outcomes of invocations, and the error documents that Lambda returns for failures.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::process::Exit;

/// Outcome of an invocation.
#[derive(Debug)]
pub(crate) enum Outcome {
    Response(Bytes),
    Failed(Failure),
}

/// A failure with Lambda's error document.
#[derive(Debug)]
pub(crate) struct Failure {
    pub kind: FailureKind,
    pub payload: Bytes,
}

/// Kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Handler,
    Crash,
    Timeout,
    Init,
    ResponseTooLarge,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, error_type: &str, message: &str) -> Self {
        let payload = json!({"errorType": error_type, "errorMessage": message}).to_string();
        Self { kind, payload: payload.into() }
    }

    pub(super) fn exited(kind: FailureKind, request_id: &str, exit: Exit) -> Self {
        let message = format!("RequestId: {request_id} Error: {}", exit.describe());
        Self::new(kind, "Runtime.ExitError", &message)
    }

    pub(super) fn timed_out(request_id: &str, after: Duration) -> Self {
        let seconds = after.as_secs_f64();
        let message =
            format!("RequestId: {request_id} Error: Task timed out after {seconds:.2} seconds");
        Self::new(FailureKind::Timeout, "Sandbox.Timedout", &message)
    }

    pub(super) fn init(request_id: &str, reason: &str) -> Self {
        let message = format!("RequestId: {request_id} Error: {reason}");
        Self::new(FailureKind::Init, "Runtime.InitError", &message)
    }
}
