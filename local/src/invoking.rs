//! The functions that the coordinator and the scaler invoke: the scaler in this process, workers in theirs; and Lambda as
//! it is imitated: throttled calls, and events that wait for an environment or expire.

use crate::{counts::ServiceCounts, pool::WorkerPool};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{
    Clock as _, InvokeError, InvokeOutcome, Invoker, SystemClock, chance,
    limits::{EVENT_AGE, EventWaits, StackConcurrency, StackLimits, event_backoff},
};
use gristmill_scaler::ScalerFunction;
use std::{sync::Arc, time::Duration};

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

/// The functions of one stack, behind their limits; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct LambdaImitation {
    limits: Arc<StackLimits>,
    event_age: Duration,
}

/// A call of the coordinator under way.
pub(crate) struct CallPlace(LambdaImitation);

/// The environment of a worker under way.
pub(crate) struct WorkerPlace(LambdaImitation);

impl LambdaImitation {
    /// Lambda with this concurrency and no function at work.
    pub fn new(concurrency: StackConcurrency) -> Self {
        Self { limits: Arc::new(StackLimits::new(concurrency)), event_age: EVENT_AGE }
    }

    /// The same, but events expire at `event_age`.
    #[cfg(test)]
    pub fn expiring(self, event_age: Duration) -> Self {
        Self { event_age, ..self }
    }

    /// Takes a request to the URL; none if it is throttled.
    pub fn begin_call(&self) -> Option<CallPlace> {
        self.limits.begin_call(SystemClock.monotonic()).then(|| CallPlace(self.clone()))
    }

    /// Takes an event of the coordinator, once there is concurrency for it.
    pub async fn begin_event(&self) -> CallPlace {
        let mut tries = 0;
        while !self.limits.begin_event() {
            tries += 1;
            tokio::time::sleep(event_backoff(tries, chance(&SystemClock))).await;
        }
        CallPlace(self.clone())
    }

    /// Takes an environment for a worker; none if the account has no room, or adds no more at present.
    fn begin_worker(&self) -> Option<WorkerPlace> {
        self.limits.begin_worker(SystemClock.monotonic()).then(|| WorkerPlace(self.clone()))
    }

    /// Waits as an asynchronous event does until `start` succeeds with an environment. Returns whether it does before the
    /// event expires.
    pub async fn wait_as_event(&self, mut start: impl FnMut(WorkerPlace) -> bool) -> bool {
        let mut waits = EventWaits::begin(SystemClock.monotonic(), self.event_age);
        while !self.begin_worker().is_some_and(&mut start) {
            match waits.next(SystemClock.monotonic(), chance(&SystemClock)) {
                Some(wait) => tokio::time::sleep(wait.max(Duration::from_millis(1))).await,
                None => return false,
            }
        }
        true
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.0.limits.end_call();
    }
}

impl Drop for WorkerPlace {
    fn drop(&mut self) {
        self.0.limits.end_worker();
    }
}
