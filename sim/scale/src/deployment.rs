//! One simulated deployment: time, randomness, stored data and measurements.

use crate::{
    figures::ScaleFigures,
    modes::{LEAST_SPLITS, SPLITS_A_STARTED_WORKER},
    platform::CoordinatorEnvironment,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::{JobName, Namespace, Nonce};
use gristmill_policy::plan::deployment;
use gristmill_ports::{
    Clock, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    limits::{self, GROWTH, GROWTH_PERIOD, PAGE_KEYS, StackConcurrency, StackLimits},
    memory::{MemoryObjects, MeteredItems, TableLimits},
};
use gristmill_runner::JobContext;
use gristmill_virtual_time::VirtualTime;
use parking_lot::{Mutex, MutexGuard};
use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The bucket of batches.
pub const BUCKET: &str = "chunks";
/// The bucket of source data.
pub const DATA: &str = "data";
/// Latency of deleting 1,000 objects, and concurrent ones as in the adapter.
const DELETE: Duration = Duration::from_millis(50);
const DELETES_AT_ONCE: usize = 4;

/// Parameters of a simulation.
#[derive(Debug, Clone, Default)]
pub struct DeploymentParameters {
    pub workers: u32,
    pub split: Duration,
    pub splits: u32,
    /// Batches of one record in a split.
    pub split_batches: u32,
    pub files: u32,
    pub limits: bool,
    /// Mean lifetime of a worker.
    pub die: Option<Duration>,
    /// Whether deaths go unreported by the platform.
    pub unreported: bool,
    /// Whether the scaler invokes the workers.
    pub real: bool,
    /// Invocations after which the first scaler is killed.
    pub kill_scaler_at: Option<u32>,
    /// The stack whose limits are kept, if any.
    pub stack: Option<StackSizes>,
    pub seed: u64,
}

/// Time, random numbers, stored data and figures that all simulated processes share.
pub struct SimulatedDeployment {
    pub time: Arc<VirtualTime>,
    pub setting: DeploymentParameters,
    pub ns: Namespace,
    pub job: JobName,
    figures: Mutex<ScaleFigures>,
    pub objects: MemoryObjects,
    pub stack: Option<StackLimits>,
    /// The items of the table, shared by all processes.
    pub items: MeteredItems,
    random: Mutex<fastrand::Rng>,
    /// Clocks so far. Each draws nonces of its own: a name that one draws must not change anything for the others.
    clocks: AtomicU64,
    /// Idle coordinator environments.
    environments: Mutex<Vec<CoordinatorEnvironment>>,
    /// Job context shared by all invoked workers, instead of one each.
    pub context: OnceLock<JobContext>,
}

impl DeploymentParameters {
    /// Workers that can run at one time.
    pub fn runnable(&self) -> u32 {
        self.stack.map_or(self.workers, |stack| self.workers.min(stack.room))
    }

    /// Those of the stack's table. Without a stack, each partition key has a partition.
    fn table_limits(&self) -> TableLimits {
        let rates = if self.limits { TableLimits::per_key() } else { TableLimits::none() };
        let partitions = self.stack.map_or(0, |stack| stack.partitions());
        TableLimits { partitions, ..rates }
    }
}

impl SimulatedDeployment {
    /// An empty deployment for `job`.
    pub fn new(setting: DeploymentParameters, ns: Namespace, job: JobName) -> Arc<Self> {
        Arc::new(Self {
            time: Arc::default(),
            ns,
            job,
            figures: Mutex::default(),
            objects: MemoryObjects::default(),
            stack: setting.stack.map(|stack| StackLimits::new(stack.concurrency())),
            items: MeteredItems::new(Arc::default(), setting.table_limits()),
            random: Mutex::new(fastrand::Rng::with_seed(setting.seed)),
            clocks: AtomicU64::new(0),
            environments: Mutex::default(),
            context: OnceLock::new(),
            setting,
        })
    }

    /// The measurements so far.
    pub fn figures(&self) -> MutexGuard<'_, ScaleFigures> {
        self.figures.lock()
    }

    /// Records an error; texts that differ only in numbers are one.
    pub fn trouble(&self, text: &str) {
        let text = text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(160);
        *self.figures().troubles.entry(text.collect()).or_default() += 1;
    }

    /// Warm environments of the coordinator that serve no call.
    pub fn idle_environments(&self) -> MutexGuard<'_, Vec<CoordinatorEnvironment>> {
        self.environments.lock()
    }

    /// Ends a call that the stack's limits allowed.
    pub fn end_call(&self) {
        if let Some(stack) = &self.stack {
            stack.end_call();
        }
    }

    /// Virtual time since the beginning.
    pub fn now(&self) -> Duration {
        self.time.now()
    }

    /// A random number from 0 to 1.
    pub fn uniform(&self) -> f64 {
        self.random.lock().f64()
    }

    /// Waits for `mean`, plus or minus a fifth.
    pub async fn pause(&self, mean: Duration) {
        let taken = mean.mul_f64(0.8 + 0.4 * self.uniform());
        self.time.sleep(taken).await;
    }

    /// A clock of one process, with nonces of its own.
    pub fn clock(self: &Arc<Self>) -> Arc<dyn Clock> {
        let seed = !self.setting.seed ^ self.clocks.fetch_add(1, Ordering::Relaxed) << 32;
        let nonces = Mutex::new(fastrand::Rng::with_seed(seed));
        Arc::new(DeploymentClock { deployment: Arc::clone(self), nonces })
    }

    /// The object store with latency `get` for gets and `put` for puts.
    pub fn objects(self: &Arc<Self>, get: Duration, put: Duration) -> Arc<dyn ObjectStore> {
        Arc::new(DelayedObjects { deployment: Arc::clone(self), get, put })
    }
}

struct DeploymentClock {
    deployment: Arc<SimulatedDeployment>,
    nonces: Mutex<fastrand::Rng>,
}

#[async_trait]
impl Clock for DeploymentClock {
    fn now_ms(&self) -> u64 {
        self.deployment.time.unix_time().as_millis() as u64
    }

    fn monotonic(&self) -> Duration {
        self.deployment.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.deployment.time.sleep(duration).await;
    }

    fn nonce(&self) -> Nonce {
        Nonce(self.nonces.lock().u64(..).to_be_bytes())
    }
}

struct DelayedObjects {
    deployment: Arc<SimulatedDeployment>,
    get: Duration,
    put: Duration,
}

#[async_trait]
impl ObjectStore for DelayedObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.deployment.pause(self.put).await;
        // Copied, as if the store were remote: the worker's buffer is many times larger.
        let body = Bytes::copy_from_slice(&body);
        self.deployment.objects.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.deployment.pause(self.get).await;
        self.deployment.objects.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.deployment.pause(self.get).await;
        self.deployment.objects.get_range(path, range, etag).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.deployment.pause(self.get).await;
        self.deployment.objects.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        for batches in keys.chunks(PAGE_KEYS * DELETES_AT_ONCE) {
            self.deployment.pause(DELETE).await;
            self.deployment.objects.delete(bucket, batches).await?;
        }
        Ok(())
    }
}

/// `setting` with a stack that is deployed for its workers, and as many splits as are made while they begin, and then as
/// without limits.
pub fn with_stack(setting: DeploymentParameters, room: Option<u32>) -> DeploymentParameters {
    let stack = Some(StackSizes::for_workers(setting.workers, room));
    let setting = DeploymentParameters { limits: true, real: true, stack, ..setting };
    let periods = f64::from(setting.runnable().saturating_sub(GROWTH)) / f64::from(GROWTH);
    let begins = GROWTH_PERIOD.mul_f64(periods);
    let meanwhile = (begins.as_secs_f64() / 2.0 / setting.split.as_secs_f64()) as u32;
    let splits = setting.runnable() * (SPLITS_A_STARTED_WORKER + meanwhile);
    DeploymentParameters { splits: splits.max(LEAST_SPLITS), ..setting }
}

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

    /// The partitions that DynamoDB gives a table of these capacities.
    pub fn partitions(&self) -> u32 {
        limits::table_partitions(self.table_reads, self.table_writes)
    }

    /// The concurrency that Lambda gives functions of these sizes.
    pub fn concurrency(&self) -> StackConcurrency {
        StackConcurrency::documented(self.coordinators, self.room)
    }
}

#[cfg(test)]
mod deployed_tests {
    use super::*;
    use crate::{modes::trained, report::FigureRow};
    use std::time::Duration;

    /// A job of `workers` with splits that take `split_ms`.
    fn job(workers: u32, split_ms: u64, room: Option<u32>) -> DeploymentParameters {
        let split = Duration::from_millis(split_ms);
        let setting = DeploymentParameters {
            workers,
            split,
            split_batches: 1,
            files: 4,
            ..DeploymentParameters::default()
        };
        with_stack(setting, room)
    }

    fn assert_holds(row: &FigureRow) {
        let missed: Vec<_> = row.bars.iter().filter(|bar| !bar.holds()).collect();
        assert!(missed.is_empty(), "{missed:?} of {:?}", row.facts);
    }

    #[test]
    fn a_hundred_workers_reach_their_bars_within_all_limits() {
        assert_holds(&trained(job(100, 300, None)).unwrap());
    }

    #[test]
    fn five_thousand_environments_take_forty_seconds_and_none_is_started_twice() {
        // Splits so long that few are made.
        let setting = DeploymentParameters { splits: 5_000 * 8 * 3, ..job(5_000, 12_000, None) };
        let row = trained(setting).unwrap();
        let begun = row.fact("99 % run after s");
        assert!((38.0..55.0).contains(&begun), "{begun} s");
        assert_eq!(row.fact("workers started twice"), 0.0);
        assert!(row.fact("events sent per worker") < 1.05, "{:?}", row.facts);
    }

    #[test]
    fn small_account_is_sent_few_events_and_none_reads_the_window() {
        // Twenty minutes, in which events would expire twenty times.
        let setting = DeploymentParameters { splits: 200 * 48, ..job(975, 25_000, Some(200)) };
        let row = trained(setting).unwrap();
        assert_holds(&row);
        let events = row.fact("events sent per worker");
        assert!((4.0..10.0).contains(&events), "{events}");
        let expired = row.call("release, expired").unwrap();
        assert!(expired.calls > 100, "{expired:?}");
        assert!(expired.read_units + expired.write_units < 4.0, "{expired:?}");
    }

    #[test]
    fn calls_that_the_url_rejects_cost_no_reads_of_the_window() {
        let mut setting = job(400, 300, None);
        let enough = trained(setting.clone()).unwrap();
        // The URL serves a third of what these workers ask for.
        setting.stack = setting.stack.map(|stack| StackSizes { coordinators: 20, ..stack });
        let row = trained(setting).unwrap();
        assert!(row.fact("calls rejected by the URL") > 1_000.0, "{:?}", row.facts);
        let reads = |row: &FigureRow| row.fact("read units a claim");
        assert!(reads(&row) < 3.0 * reads(&enough), "{} for {}", reads(&row), reads(&enough));
        assert!(row.fact("most reads of a partition in 1 s") < 3_000.0, "{:?}", row.facts);
    }
}

#[cfg(test)]
mod stack_tests {
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
    }

    #[test]
    fn a_new_table_has_four_partitions_and_one_for_thousands_has_more() {
        assert_eq!(StackSizes::for_workers(100, None).partitions(), 4);
        assert_eq!(StackSizes::for_workers(1_000, None).partitions(), 4);
        assert!(StackSizes::for_workers(5_000, None).partitions() > 16);
    }
}
