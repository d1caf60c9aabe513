//! Asynchronous invocations of functions.

use async_trait::async_trait;
use bytes::Bytes;

/// Outcome of an asynchronous invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvokeOutcome {
    /// The platform accepted the event. It may still wait for an environment, or run twice.
    Accepted,
    /// Too many requests; the event was not accepted.
    Throttled,
}

/// The function could not be invoked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot invoke {function}: {reason}")]
pub struct InvokeError {
    pub function: String,
    pub reason: String,
    /// The function, or this version of it, does not exist.
    pub gone: bool,
}

/// The function platform.
#[async_trait]
pub trait Invoker: Send + Sync {
    /// Sends `payload` to `function` without waiting for it to run.
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError>;
}
