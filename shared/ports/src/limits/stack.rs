//! The functions of one stack under load: what Lambda throttles, and how long events wait.

use super::{EnvironmentGrowth, GROWTH, TokenBucket, event_backoff, url_requests_per_s};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Concurrency that the functions of a stack have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackConcurrency {
    /// Concurrency reserved for the coordinator.
    pub coordinators: u32,
    /// Requests a second that the coordinator's URL serves.
    pub url_requests_per_s: u32,
    /// Environments that the account has for workers.
    pub workers: u32,
    /// Environments of workers that are added in [`GROWTH_PERIOD`](super::GROWTH_PERIOD).
    pub growth: u32,
}

impl StackConcurrency {
    /// The documented rates for so much concurrency.
    pub fn documented(coordinators: u32, workers: u32) -> Self {
        let url_requests_per_s = url_requests_per_s(coordinators);
        Self { coordinators, url_requests_per_s, workers, growth: GROWTH }
    }
}

/// The limits of one stack's functions, as used up so far.
#[derive(Debug)]
pub struct StackLimits {
    concurrency: StackConcurrency,
    usage: Mutex<StackUsage>,
}

#[derive(Debug)]
struct StackUsage {
    url: TokenBucket,
    coordinators: u32,
    workers: EnvironmentGrowth,
    most: u32,
}

impl StackLimits {
    pub fn new(concurrency: StackConcurrency) -> Self {
        let url = TokenBucket::new(concurrency.url_requests_per_s);
        let workers = EnvironmentGrowth::of(concurrency.growth);
        let usage = Mutex::new(StackUsage { url, coordinators: 0, workers, most: 0 });
        Self { concurrency, usage }
    }

    /// Whether the URL serves a request at the time `now`; [`end_call`](Self::end_call) ends it.
    pub fn begin_call(&self, now: Duration) -> bool {
        let mut usage = self.lock();
        let is_served = usage.url.take_one(now);
        is_served && usage.begin_coordinator(self.concurrency.coordinators)
    }

    /// Whether the coordinator takes an event, to which the URL's rate does not apply.
    pub fn begin_event(&self) -> bool {
        self.lock().begin_coordinator(self.concurrency.coordinators)
    }

    pub fn end_call(&self) {
        let mut usage = self.lock();
        usage.coordinators = usage.coordinators.saturating_sub(1);
    }

    /// Whether a worker finds an environment at the time `now`; [`end_worker`](Self::end_worker) ends it.
    pub fn begin_worker(&self, now: Duration) -> bool {
        let mut usage = self.lock();
        let has_room = usage.workers.running() < self.concurrency.workers;
        let begins = has_room && usage.workers.begin(now);
        usage.note_most();
        begins
    }

    pub fn end_worker(&self) {
        self.lock().workers.end();
    }

    /// Workers under way.
    pub fn workers(&self) -> u32 {
        self.lock().workers.running()
    }

    /// Most environments of workers and coordinators at one time.
    pub fn most_used(&self) -> u32 {
        self.lock().most
    }

    fn lock(&self) -> MutexGuard<'_, StackUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StackUsage {
    fn begin_coordinator(&mut self, reserved: u32) -> bool {
        let begins = self.coordinators < reserved;
        self.coordinators += u32::from(begins);
        self.note_most();
        begins
    }

    fn note_most(&mut self) {
        self.most = self.most.max(self.coordinators + self.workers.running());
    }
}

/// The waits of one asynchronous event that finds no environment.
#[derive(Debug, Clone)]
pub struct EventWaits {
    expires: Duration,
    tries: u32,
}

impl EventWaits {
    /// Those of an event that is sent at the time `now`, and expires at `age`.
    pub fn begin(now: Duration, age: Duration) -> Self {
        Self { expires: now + age, tries: 0 }
    }

    /// How long it waits before another try; none if it has expired. `chance` is that of [`event_backoff`].
    pub fn next(&mut self, now: Duration, chance: f64) -> Option<Duration> {
        self.tries += 1;
        let left = self.expires.checked_sub(now).filter(|left| !left.is_zero())?;
        Some(event_backoff(self.tries, chance).min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::EVENT_AGE;

    #[test]
    fn a_url_serves_ten_requests_a_second_for_each_reserved_call() {
        let stack = StackLimits::new(StackConcurrency::documented(20, 100));
        let served = |from_ms: u64| {
            let calls = (0..1_000).filter(|ms| {
                let served = stack.begin_call(Duration::from_millis(from_ms + ms));
                if served {
                    stack.end_call();
                }
                served
            });
            calls.count()
        };
        served(0);
        assert_eq!(served(1_000), 200, "20 are reserved");
        let at_once = (0..100).filter(|_| stack.begin_call(Duration::from_secs(9)));
        assert_eq!(at_once.count(), 20, "each serves one call at a time");
        assert!(!stack.begin_event(), "events need the same concurrency");
    }

    #[test]
    fn workers_begin_where_the_account_has_room() {
        let stack = StackLimits::new(StackConcurrency::documented(20, 200));
        let now = Duration::ZERO;
        assert_eq!((0..975).filter(|_| stack.begin_worker(now)).count(), 200);
        stack.end_worker();
        assert!(stack.begin_worker(now) && !stack.begin_worker(now));
        assert_eq!((stack.workers(), stack.most_used()), (200, 200));
    }

    #[test]
    fn an_event_that_finds_no_environment_expires_after_a_minute() {
        for chance in [0.0, 0.5, 1.0] {
            let began = Duration::from_secs(7);
            let (mut waits, mut now) = (EventWaits::begin(began, EVENT_AGE), began);
            while let Some(wait) = waits.next(now, chance) {
                now += wait;
            }
            assert_eq!(now, began + EVENT_AGE, "{chance}");
        }
    }
}
