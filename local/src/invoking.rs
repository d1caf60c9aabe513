//! The functions that the coordinator and the scaler invoke: the scaler in this process, workers in theirs.

use crate::{counts::ServiceCounts, pool::WorkerPool};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{InvokeError, InvokeOutcome, Invoker};
use gristmill_scaler::ScalerFunction;
use std::sync::Arc;

pub(crate) const SCALER: &str = "scaler";
pub(crate) const WORKER: &str = "worker";

/// Starts workers in the pool.
pub(crate) struct WorkerInvoker {
    pub pool: WorkerPool,
    pub counts: ServiceCounts,
}

#[async_trait]
impl Invoker for WorkerInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let event = serde_json::from_slice(&payload).map_err(|error| unread(function, &error))?;
        self.counts.invoked(WORKER);
        Ok(self.pool.invoke(event))
    }
}

/// Runs the scaler beside the caller.
pub(crate) struct ScalerInvoker {
    pub scaler: Arc<ScalerFunction>,
    pub counts: ServiceCounts,
}

#[async_trait]
impl Invoker for ScalerInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let event = serde_json::from_slice(&payload).map_err(|error| unread(function, &error))?;
        self.counts.invoked(SCALER);
        let scaler = Arc::clone(&self.scaler);
        tokio::spawn(async move {
            if let Err(error) = scaler.handle(&event).await {
                tracing::warn!(%error, "the scaler failed; the next poll asks it again");
            }
        });
        Ok(InvokeOutcome::Accepted)
    }
}

fn unread(function: &str, error: &serde_json::Error) -> InvokeError {
    InvokeError { function: function.to_owned(), reason: error.to_string(), gone: false }
}
