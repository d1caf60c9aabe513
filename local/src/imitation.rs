//! Lambda as it is imitated: calls that it throttles, and events of workers that wait for an environment or expire.

use gristmill_ports::{
    Clock as _, SystemClock, chance,
    limits::{EVENT_AGE, EventWaits, StackConcurrency, StackLimits, event_backoff},
};
use std::{sync::Arc, time::Duration};

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
