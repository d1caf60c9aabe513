//! Time and nonces, as a port, so that a simulation controls both.

use async_trait::async_trait;
use gristmill_model::Nonce;
use std::{
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Wall time, monotonic time, sleep and nonces.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch. Never trusted for safety: clocks may be wrong.
    fn now_ms(&self) -> u64;

    /// Time since a fixed moment of this process. Never goes back.
    fn monotonic(&self) -> Duration;

    async fn sleep(&self, duration: Duration);

    /// A nonce that was never returned before.
    fn nonce(&self) -> Nonce;
}

/// A random number from 0 to 1.
pub fn chance(clock: &dyn Clock) -> f64 {
    u64::from_be_bytes(clock.nonce().0) as f64 / u64::MAX as f64
}

/// A sleep that takes so much longer than it should was one of the whole process: it was stopped, or its machine slept.
const LONGEST_GAP: Duration = Duration::from_secs(5);

/// Sleeps for `duration`. Returns the time that passed in which this process ran.
pub async fn time_run(clock: &dyn Clock, duration: Duration) -> Duration {
    let began = clock.monotonic();
    clock.sleep(duration).await;
    let passed = clock.monotonic().saturating_sub(began);
    if passed > duration + LONGEST_GAP { Duration::ZERO } else { passed }
}

/// Resolves once `limit` has passed in which this process ran.
pub async fn outlast(clock: &dyn Clock, limit: Duration) {
    let mut left = limit;
    while !left.is_zero() {
        left = left.saturating_sub(time_run(clock, left.min(Duration::from_secs(1))).await);
    }
}

/// The machine's clock and entropy.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn nonce(&self) -> Nonce {
        let mut bytes = [0; 8];
        match getrandom::fill(&mut bytes) {
            Ok(()) => Nonce(bytes),
            Err(error) => unreachable!("the system has no entropy: {error}"),
        }
    }
}
