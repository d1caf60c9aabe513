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

    /// Processor time of this thread, since a fixed moment: what work takes however busy the machine is. In simulated
    /// time, the time that passes.
    fn thread_cpu(&self) -> Duration {
        self.monotonic()
    }

    /// Processor time of everything on this machine since it started, if that is known; not in simulated time.
    fn host_cpu(&self) -> Option<Duration> {
        None
    }

    /// Processors of this machine that this process may use, if that is known; not in simulated time.
    fn host_cores(&self) -> Option<usize> {
        None
    }

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

/// Ticks of a second in `/proc/stat`, on every architecture (`USER_HZ`).
const TICKS: u64 = 100;

/// The busy time of all processors: all columns of `/proc/stat` but idle and waiting for I/O, the fourth and fifth.
/// Those of guests, the ninth on, are part of others.
fn busy(stat: &str) -> Option<Duration> {
    let columns = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let columns: Vec<u64> = columns.map(str::parse).collect::<Result<_, _>>().ok()?;
    let ticks: u64 =
        columns.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, n)| n).sum();
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

/// The machine's clock, processors and entropy.
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

    fn thread_cpu(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn host_cpu(&self) -> Option<Duration> {
        busy(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn host_cores(&self) -> Option<usize> {
        std::thread::available_parallelism().ok().map(usize::from)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_all_but_idle_and_waiting() {
        let stat = "cpu  100 20 30 5000 700 4 5 1 90 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy(stat), Some(Duration::from_millis(1600)));
        assert_eq!(busy("intr 1 2 3"), None);
        assert_eq!(busy("cpu  100 many"), None);
    }

    #[test]
    fn work_takes_processor_time_of_its_thread_and_sleep_does_not() {
        let (before, on_host) = (SystemClock.thread_cpu(), SystemClock.host_cpu());
        let mut sum = 0_u64;
        while SystemClock.thread_cpu() - before < Duration::from_millis(40) {
            sum = std::hint::black_box(sum + 1);
        }
        // A tick is 10 ms.
        assert!(SystemClock.host_cpu() > on_host, "{on_host:?}");
        let before = SystemClock.thread_cpu();
        std::thread::sleep(Duration::from_millis(200));
        assert!(SystemClock.thread_cpu() - before < Duration::from_millis(200));
    }
}
