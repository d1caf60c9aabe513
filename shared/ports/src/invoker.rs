//! Starting functions.

use async_trait::async_trait;
use bytes::Bytes;

/// What became of an asynchronous invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invoked {
    /// The platform has the event; it may still wait for an environment, or run twice.
    Accepted,
    /// Too many requests: not accepted.
    Throttled,
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot invoke {function}: {reason}")]
pub struct InvokeError {
    pub function: String,
    pub reason: String,
    /// There is no such function, or no such version of it.
    pub gone: bool,
}

/// The function platform.
#[async_trait]
pub trait Invoker: Send + Sync {
    /// Sends `payload` to `function` without waiting for it to run.
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError>;
}
