//! One simulated deployment: time, randomness, stored data and measurements.

use crate::{figures::FigureCollector, platform::CoordinatorEnvironment, stack::StackSizes};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::{JobName, Namespace, Nonce};
use gristmill_ports::limits::{PAGE_KEYS, StackLimits};
use gristmill_ports::{
    Clock, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
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

pub const BUCKET: &str = "chunks";
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

pub struct SimulatedDeployment {
    pub time: Arc<VirtualTime>,
    pub setting: DeploymentParameters,
    pub ns: Namespace,
    pub job: JobName,
    pub meter: FigureCollector,
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
        let rates = if self.limits { TableLimits::of_each_key() } else { TableLimits::none() };
        let partitions = self.stack.map_or(0, |stack| stack.partitions());
        TableLimits { partitions, ..rates }
    }
}

impl SimulatedDeployment {
    pub fn new(setting: DeploymentParameters, ns: Namespace, job: JobName) -> Arc<Self> {
        Arc::new(Self {
            time: Arc::default(),
            ns,
            job,
            meter: FigureCollector::default(),
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

    pub fn idle_environments(&self) -> MutexGuard<'_, Vec<CoordinatorEnvironment>> {
        self.environments.lock()
    }

    /// Ends a call that the stack's limits allowed.
    pub fn end_call(&self) {
        if let Some(stack) = &self.stack {
            stack.end_call();
        }
    }

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
