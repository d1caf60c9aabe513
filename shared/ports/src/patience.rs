//! How long a read waits for a server's next bytes before it asks again.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// A server in use answers within a fraction of this.
const SHORTEST: Duration = Duration::from_secs(3);
/// Longest wait, as a multiple of the shortest.
const LONGEST: u64 = 10;

/// The time after which a silent request is given up, shared by all reads of one kind of server. A request that got
/// lost costs seconds; a server that is slow by nature is waited for longer with every silence.
#[derive(Debug)]
pub struct ReadTimeout {
    shortest_ms: u64,
    now_ms: AtomicU64,
}

impl Default for ReadTimeout {
    fn default() -> Self {
        Self::from_shortest(SHORTEST)
    }
}

impl ReadTimeout {
    /// A patience that is `shortest` with servers that answer.
    pub fn from_shortest(shortest: Duration) -> Self {
        let shortest_ms = u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX);
        Self { shortest_ms, now_ms: AtomicU64::new(shortest_ms) }
    }

    /// Waits for the first bytes of an answer; none if the server was silent.
    pub async fn wait<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let began = Instant::now();
        let answer = self.wait_for_more(answer).await?;
        let quick = |ms: u64| Duration::from_millis(ms / 4) > began.elapsed();
        let less = |ms: u64| quick(ms).then_some((ms * 3 / 4).max(self.shortest_ms));
        // An error leaves it as it is.
        let _ = self.now_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        Some(answer)
    }

    /// Waits for further bytes of an answer; none if the server was silent.
    pub async fn wait_for_more<T>(&self, more: impl Future<Output = T>) -> Option<T> {
        let waited_ms = self.now_ms.load(Ordering::Relaxed);
        let more = tokio::time::timeout(Duration::from_millis(waited_ms), more).await.ok();
        if more.is_none() {
            // Reads that waited together count once.
            let longer_ms =
                waited_ms.saturating_mul(2).min(self.shortest_ms.saturating_mul(LONGEST));
            self.now_ms.fetch_max(longer_ms, Ordering::Relaxed);
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    /// The patience after each of `times` silences that two reads meet together.
    async fn silences(patience: &ReadTimeout, times: usize) -> Vec<u64> {
        let mut after = Vec::new();
        for _ in 0..times {
            let both = tokio::join!(patience.wait(pending::<()>()), patience.wait(pending::<()>()));
            assert_eq!(both, (None, None));
            after.push(patience.now_ms.load(Ordering::Relaxed));
        }
        after
    }

    #[tokio::test]
    async fn a_silent_server_is_waited_for_twice_as_long_up_to_a_limit() {
        let patience = ReadTimeout::from_shortest(Duration::from_millis(10));
        assert_eq!(patience.wait(ready(7)).await, Some(7));
        assert_eq!(silences(&patience, 5).await, [20, 40, 80, 100, 100]);
    }

    #[tokio::test]
    async fn quick_answers_shorten_the_wait_again_and_slow_ones_do_not() {
        let patience = ReadTimeout::from_shortest(Duration::from_secs(1));
        patience.now_ms.store(8_000, Ordering::Relaxed);
        let slow = tokio::time::sleep(Duration::from_millis(2_050));
        assert!(patience.wait(slow).await.is_some());
        assert_eq!(patience.now_ms.load(Ordering::Relaxed), 8_000);
        for _ in 0..20 {
            assert!(patience.wait(ready(())).await.is_some());
        }
        assert_eq!(patience.now_ms.load(Ordering::Relaxed), 1_000);
    }
}
