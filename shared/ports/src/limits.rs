//! Limits of AWS that emulators lack: each number with its source, and pure types that keep it over a time which the
//! caller gives.

use parking_lot::Mutex;
use std::{collections::BTreeMap, time::Duration};

pub use gristmill_model::limits::{
    ACCOUNT_CONCURRENCY, GROWTH, GROWTH_PERIOD, NEW_TABLE_READS_PER_S, NEW_TABLE_WRITES_PER_S,
    PREFIX_PUTS_PER_S, url_requests_per_s,
};

/// First and longest wait of an asynchronous event that finds no environment. The wait doubles.
/// <https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html>
pub const EVENT_BACKOFF: Duration = Duration::from_secs(1);
/// See [`EVENT_BACKOFF`].
pub const EVENT_BACKOFF_MOST: Duration = Duration::from_secs(300);
/// Age at which an event expires: `MaximumEventAgeInSeconds` of the template, the least that AWS allows.
/// <https://docs.aws.amazon.com/lambda/latest/api/API_PutFunctionEventInvokeConfig.html>
pub const EVENT_AGE: Duration = Duration::from_secs(60);

/// GET and HEAD requests a second of one prefix of a bucket. More are answered by 503 Slow Down.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html>
pub const PREFIX_GETS_PER_S: u32 = 5_500;
/// Keys of one page of `ListObjectsV2`, and of one `DeleteObjects`.
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>
pub const PAGE_KEYS: usize = 1_000;

/// Read units a second of one partition of a DynamoDB table.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/bp-partition-key-design.html>
pub const PARTITION_READS_PER_S: u32 = 3_000;
/// Write units a second of one partition.
pub const PARTITION_WRITES_PER_S: u32 = 1_000;
/// Most bytes of an item, with the names of its attributes.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html>
pub const ITEM_BYTES: usize = 400 << 10;
/// Bytes of one page of a query.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Query.Pagination.html>
pub const QUERY_PAGE_BYTES: u64 = 1 << 20;

/// Partitions of a table that serves so many units a second at once.
pub fn table_partitions(reads_per_s: u32, writes_per_s: u32) -> u32 {
    let by_reads = reads_per_s.div_ceil(PARTITION_READS_PER_S);
    by_reads.max(writes_per_s.div_ceil(PARTITION_WRITES_PER_S)).max(1)
}

/// How long an event waits that found no environment `tries` times. The queue's readers are many and not in step:
/// `chance`, from 0 to 1, spreads the waits over half to one and a half of the documented one.
pub fn event_backoff(tries: u32, chance: f64) -> Duration {
    let doubled = EVENT_BACKOFF.saturating_mul(1 << tries.saturating_sub(1).min(16));
    doubled.min(EVENT_BACKOFF_MOST).mul_f64(0.5 + chance.clamp(0.0, 1.0))
}

/// Units of a second, replenished continuously, of which idle time saves those of one second. DynamoDB's burst capacity
/// of 300 s never lifts a partition's limit.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_second: u32,
    /// Most that is saved, in millionths of a unit.
    most: i64,
    /// Millionths of a unit; negative after a request larger than the rest.
    left: i64,
    filled: Duration,
}

const MILLIONTHS: i64 = 1_000_000;

impl TokenBucket {
    /// A bucket of `per_second` units a second, full.
    pub fn new(per_second: u32) -> Self {
        Self::holding(per_second, per_second)
    }

    /// A bucket that holds up to `most` units and is full.
    pub fn holding(per_second: u32, most: u32) -> Self {
        let most = i64::from(most) * MILLIONTHS;
        Self { per_second, most, left: most, filled: Duration::ZERO }
    }

    /// Takes `units` at the time `now`, unless the bucket is empty. A request larger than the rest is served, and later
    /// ones wait for it.
    pub fn take(&mut self, now: Duration, units: u64) -> bool {
        self.fill(now);
        if self.left <= 0 {
            return false;
        }
        let units = i64::try_from(units).unwrap_or(i64::MAX).saturating_mul(MILLIONTHS);
        self.left = self.left.saturating_sub(units);
        true
    }

    /// Takes one whole unit, as of requests that are counted and not measured.
    pub fn take_one(&mut self, now: Duration) -> bool {
        self.fill(now);
        let is_served = self.left >= MILLIONTHS;
        if is_served {
            self.left -= MILLIONTHS;
        }
        is_served
    }

    fn fill(&mut self, now: Duration) {
        let passed_us = i64::try_from(now.saturating_sub(self.filled).as_micros());
        let gained = passed_us.unwrap_or(i64::MAX).saturating_mul(i64::from(self.per_second));
        self.left = self.left.saturating_add(gained).min(self.most);
        self.filled = self.filled.max(now);
    }
}

/// The same rate for each of many keys, as for the prefixes of a bucket.
#[derive(Debug, Clone)]
pub struct KeyedRates {
    per_second: u32,
    left: BTreeMap<String, TokenBucket>,
}

impl KeyedRates {
    /// `per_second` requests a second for each key.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, left: BTreeMap::new() }
    }

    /// Takes one request of `key` at the time `now`, if its rate allows it.
    pub fn take_one(&mut self, key: &str, now: Duration) -> bool {
        if let Some(left) = self.left.get_mut(key) {
            return left.take_one(now);
        }
        let left = self.left.entry(key.to_owned());
        left.or_insert_with(|| TokenBucket::new(self.per_second)).take_one(now)
    }
}

/// The environments of one function: how many run, how many wait for another event, and how fast more are added.
#[derive(Debug, Clone)]
pub struct EnvironmentGrowth {
    added: TokenBucket,
    running: u32,
    idle: u32,
    most_running: u32,
}

impl EnvironmentGrowth {
    /// A function to which Lambda adds [`GROWTH`] environments in [`GROWTH_PERIOD`].
    pub fn documented() -> Self {
        Self::new(GROWTH)
    }

    /// A function to which `growth` environments are added in [`GROWTH_PERIOD`].
    pub fn new(growth: u32) -> Self {
        let per_second = (u64::from(growth) / GROWTH_PERIOD.as_secs()).max(1);
        let added = TokenBucket::holding(per_second as u32, growth);
        Self { added, running: 0, idle: 0, most_running: 0 }
    }

    /// Begins an invocation at the time `now`, in an idle environment or an added one; false if it is throttled.
    pub fn begin(&mut self, now: Duration) -> bool {
        if self.idle > 0 {
            self.idle -= 1;
        } else if !self.added.take_one(now) {
            return false;
        }
        self.running += 1;
        self.most_running = self.most_running.max(self.running);
        true
    }

    /// Ends an invocation; its environment waits for another one.
    pub fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.idle += 1;
    }

    /// Invocations under way.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Most invocations that were under way at one time.
    pub fn most_running(&self) -> u32 {
        self.most_running
    }
}

/// Concurrency that the functions of a stack have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackConcurrency {
    /// Concurrency reserved for the coordinator.
    pub coordinators: u32,
    /// Requests a second that the coordinator's URL serves.
    pub url_requests_per_s: u32,
    /// Environments that the account has for workers.
    pub workers: u32,
    /// Environments of workers that are added in [`GROWTH_PERIOD`].
    pub growth: u32,
}

impl StackConcurrency {
    /// The limits that Lambda documents for so much concurrency.
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
    /// Full limits of a stack in which nothing runs yet.
    pub fn new(concurrency: StackConcurrency) -> Self {
        let url = TokenBucket::new(concurrency.url_requests_per_s);
        let workers = EnvironmentGrowth::new(concurrency.growth);
        let usage = Mutex::new(StackUsage { url, coordinators: 0, workers, most: 0 });
        Self { concurrency, usage }
    }

    /// Whether the URL serves a request at the time `now`; [`end_call`](Self::end_call) ends it.
    pub fn begin_call(&self, now: Duration) -> bool {
        let mut usage = self.usage.lock();
        let is_served = usage.url.take_one(now);
        is_served && usage.begin_coordinator(self.concurrency.coordinators)
    }

    /// Whether the coordinator takes an event, to which the URL's rate does not apply.
    pub fn begin_event(&self) -> bool {
        self.usage.lock().begin_coordinator(self.concurrency.coordinators)
    }

    /// Gives back the coordinator that a call had taken.
    pub fn end_call(&self) {
        let mut usage = self.usage.lock();
        usage.coordinators = usage.coordinators.saturating_sub(1);
    }

    /// Whether a worker finds an environment at the time `now`; [`end_worker`](Self::end_worker) ends it.
    pub fn begin_worker(&self, now: Duration) -> bool {
        let mut usage = self.usage.lock();
        let has_room = usage.workers.running() < self.concurrency.workers;
        let begins = has_room && usage.workers.begin(now);
        usage.note_most();
        begins
    }

    /// Gives back the environment that a worker had taken.
    pub fn end_worker(&self) {
        self.usage.lock().workers.end();
    }

    /// Workers under way.
    pub fn workers(&self) -> u32 {
        self.usage.lock().workers.running()
    }

    /// Most environments of workers and coordinators at one time.
    pub fn most_used(&self) -> u32 {
        self.usage.lock().most
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

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_bucket_serves_its_units_and_saves_one_second() {
        let mut bucket = TokenBucket::new(1_000);
        assert!(bucket.take(at(0), 1_000), "a second's worth is there at once");
        assert!(!bucket.take(at(0), 1), "and then nothing");
        assert!(bucket.take(at(1), 1), "a millisecond later one unit is");
        assert!(!bucket.take(at(1), 1));
        assert!(bucket.take(at(60_000), 1_000), "an idle minute saves one second");
        assert!(!bucket.take(at(60_000), 1));
    }

    #[test]
    fn a_large_request_is_served_and_paid_for_afterwards() {
        let mut bucket = TokenBucket::new(3_000);
        assert!(bucket.take(at(0), 6_000));
        assert!(!bucket.take(at(999), 1));
        assert!(bucket.take(at(1_001), 1));
    }

    #[test]
    fn a_url_serves_ten_requests_a_second_for_each_unit_of_concurrency() {
        let mut url = TokenBucket::new(url_requests_per_s(20));
        let served = |url: &mut TokenBucket, from_ms: u64| {
            (0..1_000).filter(|ms| url.take_one(at(from_ms + ms))).count()
        };
        // The saved second, and then another.
        assert_eq!(served(&mut url, 0), 399);
        assert_eq!(served(&mut url, 1_000), 200);
        assert_eq!(served(&mut url, 2_000), 200);
    }

    #[test]
    fn five_thousand_environments_are_added_within_forty_seconds() {
        let mut function = EnvironmentGrowth::documented();
        let mut begin_all = |ms| {
            while function.begin(at(ms)) {}
            function.running()
        };
        assert_eq!(begin_all(0), 1_000);
        assert_eq!(begin_all(10_000), 2_000);
        assert_eq!((11_000..=40_000).step_by(1_000).map(&mut begin_all).last(), Some(5_000));
        // An unused part is not saved.
        assert_eq!(begin_all(100_000), 6_000);
    }

    #[test]
    fn an_idle_environment_serves_again_without_growth() {
        let mut function = EnvironmentGrowth::new(10);
        assert!((0..10).all(|_| function.begin(at(0))));
        assert!(!function.begin(at(0)));
        function.end();
        assert!(function.begin(at(0)));
        assert_eq!((function.running(), function.most_running()), (10, 10));
    }

    #[test]
    fn an_event_that_waits_is_tried_few_times_before_it_expires() {
        let waits = (1..).map(|tries| event_backoff(tries, 0.5));
        let mut age = Duration::ZERO;
        let tried = waits.take_while(|wait| {
            age += *wait;
            age < EVENT_AGE
        });
        assert_eq!(tried.count(), 5, "after 1, 3, 7, 15 and 31 s");
        assert_eq!(event_backoff(30, 0.5), EVENT_BACKOFF_MOST);
        assert!(event_backoff(3, 0.0) < event_backoff(3, 1.0));
    }

    #[test]
    fn a_new_table_has_four_partitions_and_a_warm_one_more() {
        assert_eq!(table_partitions(NEW_TABLE_READS_PER_S, NEW_TABLE_WRITES_PER_S), 4);
        assert_eq!(table_partitions(24_000, 16_500), 17);
    }
}

#[cfg(test)]
mod stack_tests {
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
