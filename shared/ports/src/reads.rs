//! How a process reads objects: how many reads of one prefix are under way, and how long each waits for the next bytes.
//!
//! Reads of a prefix become fewer once the store refuses some, and more again while it does not. Processes that read one
//! folder so come to share the rate that the store gives to its prefix.

use crate::ObjectPath;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Reads under way of a prefix that the store does not refuse: more than a worker has.
const MOST: f64 = 128.0;
/// Prefixes that are remembered.
const MOST_PREFIXES: usize = 256;

/// The pace of one prefix: after a refusal half as many reads, after each round without one more.
#[derive(Debug)]
struct PrefixPace {
    allowed: f64,
    under_way: u32,
    /// Reads that were under way at the last refusal: their refusals say the same.
    of_before: u32,
}

impl Default for PrefixPace {
    fn default() -> Self {
        Self { allowed: MOST, under_way: 0, of_before: 0 }
    }
}

impl PrefixPace {
    fn begin(&mut self) -> bool {
        let begins = f64::from(self.under_way) + 1.0 <= self.allowed;
        self.under_way += u32::from(begins);
        begins
    }

    fn end(&mut self, is_refused: bool) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.of_before > 0 {
            self.of_before -= 1;
        } else if is_refused {
            self.allowed = (f64::from(self.under_way + 1).min(self.allowed) / 2.0).max(1.0);
            self.of_before = self.under_way;
        } else {
            self.allowed = (self.allowed + 1.0 / self.allowed).min(MOST);
        }
    }

    fn is_usual(&self) -> bool {
        self.under_way == 0 && self.allowed >= MOST
    }
}

/// The paces of all prefixes that a process reads.
#[derive(Debug, Default)]
pub struct PrefixReadLimits {
    paces: Mutex<BTreeMap<String, PrefixPace>>,
    ended: Notify,
}

/// A read under way.
#[derive(Debug)]
pub struct PrefixRead<'a> {
    paces: &'a PrefixReadLimits,
    prefix: String,
    is_refused: bool,
}

impl PrefixReadLimits {
    /// Waits until a read of `path` may begin; it ends when the answer is dropped.
    pub async fn begin(&self, path: &ObjectPath) -> PrefixRead<'_> {
        let prefix = path.first_folder();
        loop {
            let ended = self.ended.notified();
            if self.paces.lock().entry(prefix.clone()).or_default().begin() {
                return PrefixRead { paces: self, prefix, is_refused: false };
            }
            ended.await;
        }
    }
}

impl PrefixRead<'_> {
    /// The store refused it because too much is asked of the prefix.
    pub fn refused(mut self) {
        self.is_refused = true;
    }
}

impl Drop for PrefixRead<'_> {
    fn drop(&mut self) {
        let mut paces = self.paces.paces.lock();
        if let Some(pace) = paces.get_mut(&self.prefix) {
            pace.end(self.is_refused);
        }
        if paces.len() > MOST_PREFIXES {
            paces.retain(|_, pace| !pace.is_usual());
        }
        drop(paces);
        self.paces.ended.notify_waiters();
    }
}

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
    use futures::FutureExt as _;

    fn at(key: &str) -> ObjectPath {
        ObjectPath::new("b", key)
    }

    /// Reads of `key` that begin at once.
    fn begun<'a>(paces: &'a PrefixReadLimits, key: &str) -> Vec<PrefixRead<'a>> {
        std::iter::from_fn(|| paces.begin(&at(key)).now_or_never()).take(1_000).collect()
    }

    #[test]
    fn a_prefix_at_its_rate_is_asked_less_and_others_are_not() {
        let paces = PrefixReadLimits::default();
        let mut reads = begun(&paces, "slow/1.jpg");
        assert_eq!(reads.len(), MOST as usize);
        reads.truncate(16);
        // Those that were under way together are refused together, and count once.
        reads.into_iter().for_each(PrefixRead::refused);
        assert_eq!(begun(&paces, "slow/2.jpg").len(), 8);
        begun(&paces, "slow/3.jpg").pop().unwrap().refused();
        assert_eq!(begun(&paces, "slow/4.jpg").len(), 4);
        assert_eq!(begun(&paces, "quick/1.jpg").len(), MOST as usize);
    }

    #[test]
    fn reads_that_are_answered_are_followed_by_more() {
        let paces = PrefixReadLimits::default();
        let mut reads = begun(&paces, "a/1");
        reads.truncate(2);
        reads.into_iter().for_each(PrefixRead::refused);
        let rounds: Vec<_> = (0..5).map(|_| begun(&paces, "a/1").len()).collect();
        assert_eq!(rounds[0], 1);
        assert!(rounds.is_sorted() && (3..8).contains(&rounds[4]), "{rounds:?}");
    }

    #[test]
    fn a_read_waits_for_the_end_of_another() {
        let paces = PrefixReadLimits::default();
        begun(&paces, "a/1").into_iter().take(1).for_each(PrefixRead::refused);
        let mut reads = begun(&paces, "a/1");
        let (first, next) = (at("a/1"), at("a/2"));
        let mut waits = Box::pin(paces.begin(&first));
        assert!((&mut waits).now_or_never().is_none());
        assert!(paces.begin(&next).now_or_never().is_none());
        reads.pop();
        assert!(waits.now_or_never().is_some());
    }
}

#[cfg(test)]
mod patience_tests {
    use super::*;
    use std::future::{pending, ready};

    /// The patience after each of `times` silences that two reads meet together.
    async fn silences(read_timeout: &ReadTimeout, times: usize) -> Vec<u64> {
        let mut after = Vec::new();
        for _ in 0..times {
            let both = tokio::join!(
                read_timeout.wait(pending::<()>()),
                read_timeout.wait(pending::<()>())
            );
            assert_eq!(both, (None, None));
            after.push(read_timeout.now_ms.load(Ordering::Relaxed));
        }
        after
    }

    #[tokio::test]
    async fn a_silent_server_is_waited_for_twice_as_long_up_to_a_limit() {
        let read_timeout = ReadTimeout::from_shortest(Duration::from_millis(10));
        assert_eq!(read_timeout.wait(ready(7)).await, Some(7));
        assert_eq!(silences(&read_timeout, 5).await, [20, 40, 80, 100, 100]);
    }

    #[tokio::test]
    async fn quick_answers_shorten_the_wait_again_and_slow_ones_do_not() {
        let read_timeout = ReadTimeout::from_shortest(Duration::from_secs(1));
        read_timeout.now_ms.store(8_000, Ordering::Relaxed);
        let slow = tokio::time::sleep(Duration::from_millis(2_050));
        assert!(read_timeout.wait(slow).await.is_some());
        assert_eq!(read_timeout.now_ms.load(Ordering::Relaxed), 8_000);
        for _ in 0..20 {
            assert!(read_timeout.wait(ready(())).await.is_some());
        }
        assert_eq!(read_timeout.now_ms.load(Ordering::Relaxed), 1_000);
    }
}
