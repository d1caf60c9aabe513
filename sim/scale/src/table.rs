//! The table: units, latencies and rejections as in DynamoDB, requests and retries as in the adapter.

use crate::{deployment::SimulatedDeployment, partition::PartitionThroughput};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome};
use parking_lot::Mutex;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

/// Latency of a get, a put, or a page of a query.
const REQUEST: Duration = Duration::from_millis(5);
const BATCH: Duration = Duration::from_millis(8);
/// Additional time of a page of 1 MB.
const PAGE: Duration = Duration::from_millis(25);
const PAGE_BYTES: u64 = 1 << 20;
/// As in the adapter: keys per batch, concurrent batches, rounds for unprocessed keys, back-off.
const BATCH_KEYS: usize = 100;
const BATCHES_AT_ONCE: usize = 4;
const BATCH_ROUNDS: u32 = 8;
const BATCH_BACKOFF: Duration = Duration::from_millis(25);
/// As configured in the SDK: tries of a rejected request, first back-off.
const TRIES: u32 = 4;
const BACKOFF: Duration = Duration::from_millis(40);
const MAX_BODY_BYTES: usize = 390 << 10;

struct StoredItem {
    item: TableItem,
    /// Names and values of all attributes.
    size: u64,
}

#[derive(Default)]
struct Partition {
    items: BTreeMap<String, StoredItem>,
    throughput: PartitionThroughput,
}

/// Stored items, shared by all processes.
#[derive(Default)]
pub struct PartitionedItems {
    keys: HashMap<String, Partition>,
    /// The table's own partitions, onto which partition keys are hashed; without any, each key has one to itself.
    shards: Vec<PartitionThroughput>,
}

/// The throughput by which requests of one partition key are served.
struct KeyAdmission<'a> {
    of_key: &'a mut PartitionThroughput,
    shard: Option<&'a mut PartitionThroughput>,
}

impl KeyAdmission<'_> {
    fn read(&mut self, now: Duration, units: u64, limits: bool) -> bool {
        let by_key = self.of_key.read(now, units, limits && self.shard.is_none());
        self.shard.as_mut().map_or(by_key, |shard| shard.read(now, units, limits))
    }

    fn write(&mut self, now: Duration, units: u64, limits: bool) -> bool {
        let by_key = self.of_key.write(now, units, limits && self.shard.is_none());
        self.shard.as_mut().map_or(by_key, |shard| shard.write(now, units, limits))
    }
}

impl PartitionedItems {
    /// A store over a table of so many partitions.
    pub fn with_partitions(partitions: u32) -> Self {
        let shards = (0..partitions).map(|_| PartitionThroughput::default()).collect();
        Self { shards, ..Self::default() }
    }

    fn partition(&mut self, pk: &str) -> (&mut BTreeMap<String, StoredItem>, KeyAdmission<'_>) {
        if !self.keys.contains_key(pk) {
            self.keys.insert(pk.to_owned(), Partition::default());
        }
        let mut hasher = DefaultHasher::new();
        pk.hash(&mut hasher);
        let at = hasher.finish().checked_rem(self.shards.len() as u64).unwrap_or(0);
        let Partition { items, throughput } = self.keys.entry(pk.to_owned()).or_default();
        let shard = self.shards.get_mut(at as usize);
        (items, KeyAdmission { of_key: throughput, shard })
    }

    /// Body and size of an item.
    pub fn body(&self, key: &ItemKey) -> Option<(Bytes, u64)> {
        let stored = self.keys.get(&key.pk)?.items.get(&key.sk)?;
        Some((stored.item.body.clone(), stored.size))
    }

    /// Version of an item, 0 if absent.
    pub fn version(&self, key: &ItemKey) -> u64 {
        let stored = self.keys.get(&key.pk).and_then(|partition| partition.items.get(&key.sk));
        stored.map_or(0, |stored| stored.item.version)
    }

    /// Peak demand of any partition in read and write units per second.
    pub fn most_asked(&self) -> (u64, u64) {
        let of_keys = self.keys.values().map(|partition| &partition.throughput);
        let asked = of_keys.chain(&self.shards).map(PartitionThroughput::most_asked);
        asked.fold((0, 0), |most, asked| (most.0.max(asked.0), most.1.max(asked.1)))
    }

    /// The partition keys that were asked most for, in read and write units per second.
    pub fn hottest(&self, count: usize) -> Vec<(String, (u64, u64))> {
        let asked = |(key, partition): (&String, &Partition)| {
            (key.clone(), partition.throughput.most_asked())
        };
        let mut keys: Vec<_> = self.keys.iter().map(asked).collect();
        keys.sort_by_key(|(key, (reads, writes))| (Reverse(reads + 3 * writes), key.clone()));
        keys.truncate(count);
        keys
    }

    /// Resets the peak demand.
    pub fn forget(&mut self) {
        self.keys.values_mut().for_each(|partition| partition.throughput.forget());
        self.shards.iter_mut().for_each(PartitionThroughput::forget);
    }
}

/// Usage of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct TableUsage {
    pub read_units: u64,
    pub write_units: u64,
    /// Sequential waits for the table.
    pub round_trips: u64,
    pub rejected: u64,
}

/// The table as used by one process.
pub struct MeteredTable {
    deployment: Arc<SimulatedDeployment>,
    used: Mutex<TableUsage>,
}

impl MeteredTable {
    pub fn new(deployment: &Arc<SimulatedDeployment>) -> Arc<Self> {
        Arc::new(Self { deployment: Arc::clone(deployment), used: Mutex::default() })
    }

    /// Usage since the last call of this function.
    pub fn take_used(&self) -> TableUsage {
        std::mem::take(&mut self.used.lock())
    }

    /// One request: takes its time, and is retried if rejected.
    async fn request<T>(
        &self,
        taking: Duration,
        mut serve: impl FnMut(&mut PartitionedItems, Duration) -> Option<(T, Duration)>,
    ) -> Result<T, TableError> {
        let deployment = &self.deployment;
        for attempt in 0..TRIES {
            if attempt > 0 {
                deployment
                    .pause(BACKOFF.mul_f64(deployment.uniform() * f64::from(1 << (attempt - 1))))
                    .await;
            }
            deployment.pause(taking / 2).await;
            // The lock is not held while waiting.
            let served = serve(&mut deployment.store(), deployment.now());
            self.used.lock().round_trips += 1;
            let more = served.as_ref().map_or(Duration::ZERO, |(_, more)| *more);
            deployment.pause(taking / 2 + more).await;
            match served {
                Some((answer, _)) => return Ok(answer),
                None => self.used.lock().rejected += 1,
            }
        }
        Err(TableError::Unavailable("ProvisionedThroughputExceededException".to_owned()))
    }

    async fn read_one(&self, key: &ItemKey) -> Result<Option<TableItem>, TableError> {
        let limits = self.deployment.setting.limits;
        let serve = |store: &mut PartitionedItems, now| {
            let (items, mut admission) = store.partition(&key.pk);
            let stored = items.get(&key.sk);
            let units = read_units(stored.map_or(0, |stored| stored.size));
            if !admission.read(now, units, limits) {
                return None;
            }
            self.used.lock().read_units += units;
            Some((stored.map(|stored| stored.item.clone()), Duration::ZERO))
        };
        self.request(REQUEST, serve).await
    }

    /// Sends the batches of one read concurrently and retries unprocessed keys. A batch without any processed key is a
    /// rejected request.
    async fn read_batches(
        &self,
        keys: &[ItemKey],
        found: &mut Vec<Option<TableItem>>,
    ) -> Result<(), TableError> {
        let (deployment, limits) = (&self.deployment, self.deployment.setting.limits);
        let start = found.len();
        found.resize(start + keys.len(), None);
        let mut open: Vec<usize> = (0..keys.len()).collect();
        for round in 0..BATCH_ROUNDS {
            let wanted = &open;
            let serve = |store: &mut PartitionedItems, now| {
                let mut left = Vec::new();
                let mut used = self.used.lock();
                for &i in wanted {
                    let (items, mut admission) = store.partition(&keys[i].pk);
                    let stored = items.get(&keys[i].sk);
                    let units = read_units(stored.map_or(0, |stored| stored.size));
                    if admission.read(now, units, limits) {
                        used.read_units += units;
                        found[start + i] = stored.map(|stored| stored.item.clone());
                    } else {
                        left.push(i);
                    }
                }
                (left.len() < wanted.len()).then_some((left, Duration::ZERO))
            };
            open = self.request(BATCH, serve).await?;
            if open.is_empty() {
                return Ok(());
            }
            self.used.lock().rejected += 1;
            deployment.time.sleep(BATCH_BACKOFF * 2_u32.pow(round)).await;
        }
        Err(TableError::Unavailable(format!("{} keys stay unprocessed", open.len())))
    }

    /// Reads the items with sort keys from `from` to `to`, page by page.
    async fn pages(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        let limits = self.deployment.setting.limits;
        let mut found: Vec<(String, TableItem)> = Vec::new();
        let mut from = Bound::Included(from.to_owned());
        loop {
            let serve = |store: &mut PartitionedItems, now| {
                let (stored, mut admission) = store.partition(pk);
                let bounds = (from.as_ref().map(String::as_str), Bound::Included(to));
                let items = stored.range::<str, _>(bounds);
                let (mut page, mut bytes, mut whole) = (Vec::new(), 0, true);
                for (sk, stored) in items {
                    bytes += stored.size;
                    page.push((sk.clone(), stored.item.clone()));
                    if bytes >= PAGE_BYTES {
                        whole = false;
                        break;
                    }
                }
                let units = read_units(bytes);
                if !admission.read(now, units, limits) {
                    return None;
                }
                self.used.lock().read_units += units;
                Some(((page, whole), PAGE.mul_f64(bytes as f64 / PAGE_BYTES as f64)))
            };
            let (page, whole) = self.request(REQUEST, serve).await?;
            found.extend(page);
            match found.last() {
                Some((sk, _)) if !whole => from = Bound::Excluded(sk.clone()),
                _ => return Ok(found),
            }
        }
    }
}

/// Units of a strongly consistent read of `bytes`.
fn read_units(bytes: u64) -> u64 {
    bytes.div_ceil(4096).max(1)
}

/// Names and values: pk, sk, v, json or bin, ttl.
fn size_of(key: &ItemKey, body: &Bytes, expires: bool) -> u64 {
    let ttl = if expires { 9 } else { 0 };
    (key.pk.len() + key.sk.len() + body.len() + 4 + 4 + 4 + ttl) as u64
}

#[async_trait]
impl Table for MeteredTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        if let [key] = keys {
            return Ok(vec![self.read_one(key).await?]);
        }
        let mut found = Vec::with_capacity(keys.len());
        for batches in keys.chunks(BATCH_KEYS * BATCHES_AT_ONCE) {
            self.read_batches(batches, &mut found).await?;
        }
        Ok(found)
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        if body.len() > MAX_BODY_BYTES {
            return Err(TableError::Rejected(format!("the body has {} bytes", body.len())));
        }
        let limits = self.deployment.setting.limits;
        let size = size_of(key, &body, expires_at_s.is_some());
        let serve = |store: &mut PartitionedItems, now| {
            let (items, mut admission) = store.partition(&key.pk);
            let before = items.get(&key.sk);
            let (version, old) = before.map_or((0, 0), |stored| (stored.item.version, stored.size));
            let units = size.max(old).div_ceil(1024).max(1);
            if !admission.write(now, units, limits) {
                return None;
            }
            let mut used = self.used.lock();
            used.write_units += units;
            if version != expected {
                let current = before.map(|stored| stored.item.clone());
                return Some((WriteOutcome::Conflict(current), Duration::ZERO));
            }
            let item = TableItem { version: expected + 1, body: body.clone() };
            items.insert(key.sk.clone(), StoredItem { item, size });
            Some((WriteOutcome::Written, Duration::ZERO))
        };
        self.request(REQUEST, serve).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        if from > to || to.is_empty() {
            return Ok(Vec::new());
        }
        self.pages(pk, from, to).await
    }

    /// One page only: callers ask for a few small items.
    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        let limits = self.deployment.setting.limits;
        let serve = |store: &mut PartitionedItems, now| {
            let (stored, mut admission) = store.partition(pk);
            let items = stored.iter().rev().take(limit);
            let bytes = items.clone().map(|(_, stored)| stored.size).sum();
            let units = read_units(bytes);
            let found: Vec<_> =
                items.map(|(sk, stored)| (sk.clone(), stored.item.clone())).collect();
            if !admission.read(now, units, limits) {
                return None;
            }
            self.used.lock().read_units += units;
            Some((found, PAGE.mul_f64(bytes as f64 / PAGE_BYTES as f64)))
        };
        match limit {
            0 => Ok(Vec::new()),
            _ => self.request(REQUEST, serve).await,
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
