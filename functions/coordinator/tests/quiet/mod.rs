//! A quiet world: time stands still unless a test advances it, and no worker runs.

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::Nonce;
use gristmill_ports::{Clock, InvokeError, InvokeOutcome, Invoker};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Long enough for the next poll to look at the window again.
pub const BETWEEN_POLLS: Duration = Duration::from_millis(200);

/// Time, in milliseconds since the Unix epoch.
pub struct ManualClock(pub AtomicU64);

#[async_trait]
impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }

    async fn sleep(&self, duration: Duration) {
        self.0.fetch_add(duration.as_millis() as u64, Ordering::Relaxed);
    }

    fn nonce(&self) -> Nonce {
        Nonce(self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes())
    }
}

#[allow(dead_code)] // Not every test program that has this module uses it.
pub struct NoWorkers;

#[async_trait]
impl Invoker for NoWorkers {
    async fn invoke(&self, _function: &str, _payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        Ok(InvokeOutcome::Accepted)
    }
}
