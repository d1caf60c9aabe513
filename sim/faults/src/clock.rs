//! The clock of a simulated process.

use crate::SimProcess;
use async_trait::async_trait;
use gristmill_model::Nonce;
use gristmill_ports::Clock;
use std::time::Duration;

/// The clock of one process: virtual time with its own error, and nonces from the simulation's randomness.
pub struct SimClock(pub(crate) SimProcess);

#[async_trait]
impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        let now = self.0.sim().time.unix_time().as_millis() as i64;
        now.saturating_add(self.0.skew_ms()).unsigned_abs()
    }

    fn monotonic(&self) -> Duration {
        self.0.sim().time.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.0.sim().time.sleep(duration).await;
    }

    fn nonce(&self) -> Nonce {
        Nonce(self.0.sim().below(u64::MAX).to_be_bytes())
    }
}
