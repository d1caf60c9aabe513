//! A deployed stack: the sizes that `scripts/deploy` derives, and what AWS refuses beyond them.

use gristmill_policy::plan::deployment;
use gristmill_ports::limits::{self, EnvironmentGrowth, TokenBucket};
use parking_lot::Mutex;
use std::time::Duration;

/// Sizes of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackSizes {
    /// Concurrency reserved for the coordinator, and for the scaler.
    pub coordinators: u32,
    pub scalers: u32,
    /// Units a second that the table serves at once.
    pub table_reads: u32,
    pub table_writes: u32,
    /// Environments that the account has for workers.
    pub room: u32,
}

impl StackSizes {
    /// The stack that is deployed for jobs of `workers`, in an account with `room` for them, or for all.
    pub fn for_workers(workers: u32, room: Option<u32>) -> Self {
        Self {
            coordinators: deployment::coordinator_concurrency(workers),
            scalers: deployment::SCALER_CONCURRENCY,
            table_reads: deployment::warm_reads_per_s(workers),
            table_writes: deployment::warm_writes_per_s(workers),
            room: room.unwrap_or(u32::MAX),
        }
    }

    pub fn partitions(&self) -> u32 {
        limits::table_partitions(self.table_reads, self.table_writes)
    }
}

/// The limits of one stack, as used up so far.
pub struct StackLimits {
    pub sizes: StackSizes,
    usage: Mutex<StackUsage>,
}

struct StackUsage {
    url: TokenBucket,
    coordinators: u32,
    workers: EnvironmentGrowth,
    most: u32,
}

impl StackLimits {
    pub fn new(sizes: StackSizes) -> Self {
        let url = TokenBucket::new(limits::url_requests_per_s(sizes.coordinators));
        let workers = EnvironmentGrowth::documented();
        Self { sizes, usage: Mutex::new(StackUsage { url, coordinators: 0, workers, most: 0 }) }
    }

    /// Whether the URL serves a request at the time `now`; [`end_call`](Self::end_call) ends it.
    pub fn begin_call(&self, now: Duration) -> bool {
        let mut usage = self.usage.lock();
        let is_served = usage.url.take_one(now);
        is_served && usage.begin_coordinator(&self.sizes)
    }

    /// Whether the coordinator takes an event, to which the URL's rate does not apply.
    pub fn begin_event(&self) -> bool {
        self.usage.lock().begin_coordinator(&self.sizes)
    }

    pub fn end_call(&self) {
        self.usage.lock().coordinators -= 1;
    }

    /// Whether a worker finds an environment at the time `now`; [`end_worker`](Self::end_worker) ends it.
    pub fn begin_worker(&self, now: Duration) -> bool {
        let mut usage = self.usage.lock();
        let begins = usage.workers.running() < self.sizes.room && usage.workers.begin(now);
        usage.note_most();
        begins
    }

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
    fn begin_coordinator(&mut self, sizes: &StackSizes) -> bool {
        let begins = self.coordinators < sizes.coordinators;
        self.coordinators += u32::from(begins);
        self.note_most();
        begins
    }

    fn note_most(&mut self) {
        self.most = self.most.max(self.coordinators + self.workers.running());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Numbers that functions of `scripts/lib/deployment.sh` print for `workers`.
    fn scripted(workers: u32) -> Vec<u32> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/lib/deployment.sh");
        let print = format!(
            ". {script}; coordinator_for {workers}; echo $SCALER_PLACES; warm_reads_for {workers}; \
             warm_writes_for {workers}"
        );
        let printed = Command::new("bash").args(["-c", &print]).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        let lines = String::from_utf8(printed.stdout).unwrap();
        lines.lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn the_settings_are_those_that_the_script_derives() {
        for workers in
            [1, 10, 100, 119, 120, 121, 122, 424, 1_000, 1_212, 1_213, 2_500, 2_501, 5_000, 20_000]
        {
            let StackSizes { coordinators, scalers, table_reads, table_writes, .. } =
                StackSizes::for_workers(workers, None);
            let sizes = [coordinators, scalers, table_reads, table_writes];
            assert_eq!(scripted(workers), sizes, "{workers} workers");
        }
    }

    #[test]
    fn the_plan_has_the_numbers_of_the_limits() {
        let few = StackSizes::for_workers(1, None);
        let new_table = (limits::NEW_TABLE_READS_PER_S, limits::NEW_TABLE_WRITES_PER_S);
        assert_eq!((few.table_reads, few.table_writes), new_table);
        assert_eq!(deployment::url_requests_per_s(7), limits::url_requests_per_s(7));
    }

    #[test]
    fn a_new_table_has_four_partitions_and_one_for_thousands_has_more() {
        assert_eq!(StackSizes::for_workers(100, None).partitions(), 4);
        assert_eq!(StackSizes::for_workers(1_000, None).partitions(), 4);
        assert!(StackSizes::for_workers(5_000, None).partitions() > 16);
    }

    #[test]
    fn a_url_serves_ten_requests_a_second_for_each_reserved_call() {
        let stack = StackLimits::new(StackSizes::for_workers(100, None));
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
    }

    #[test]
    fn workers_begin_where_the_account_has_room() {
        let stack = StackLimits::new(StackSizes::for_workers(975, Some(200)));
        let now = Duration::ZERO;
        assert_eq!((0..975).filter(|_| stack.begin_worker(now)).count(), 200);
        stack.end_worker();
        assert!(stack.begin_worker(now) && !stack.begin_worker(now));
        assert_eq!((stack.workers(), stack.most_used()), (200, 200));
    }
}
