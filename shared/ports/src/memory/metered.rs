//! Items in memory whose requests are counted in DynamoDB's units and refused as DynamoDB's are. The caller gives the time.

use super::{ItemPage, MemoryTable, PageQuery, item_bytes};
use crate::{
    ItemKey, TableItem, WriteOutcome,
    limits::{
        NEW_TABLE_READS_PER_S, NEW_TABLE_WRITES_PER_S, PARTITION_READS_PER_S,
        PARTITION_WRITES_PER_S, QUERY_PAGE_BYTES, TokenBucket, table_partitions,
    },
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

/// Bounds beyond which the table refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLimits {
    /// Partitions onto which partition keys are hashed; with none, each key has one to itself.
    pub partitions: u32,
    /// Units a second of one partition; without a number, all are served.
    pub reads_per_s: Option<u32>,
    pub writes_per_s: Option<u32>,
    /// Bytes after which a page of a query ends.
    pub page_bytes: u64,
}

impl TableLimits {
    /// The limits of a table that serves so many units a second at once.
    pub fn warmed(reads_per_s: u32, writes_per_s: u32) -> Self {
        let partitions = table_partitions(reads_per_s, writes_per_s);
        Self { partitions, ..Self::per_key() }
    }

    /// The documented rates of a partition, for each partition key.
    pub fn per_key() -> Self {
        Self {
            reads_per_s: Some(PARTITION_READS_PER_S),
            writes_per_s: Some(PARTITION_WRITES_PER_S),
            ..Self::none()
        }
    }

    /// Pages, and no limit of the rate.
    pub fn none() -> Self {
        let page_bytes = QUERY_PAGE_BYTES;
        Self { partitions: 0, reads_per_s: None, writes_per_s: None, page_bytes }
    }
}

impl Default for TableLimits {
    /// Those of a new table.
    fn default() -> Self {
        Self::warmed(NEW_TABLE_READS_PER_S, NEW_TABLE_WRITES_PER_S)
    }
}

/// A request that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedRequest<T> {
    pub answer: T,
    pub units: TableUnits,
    /// Bytes of the items that were read.
    pub bytes: u64,
}

/// Use of a table so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableUse {
    pub units: TableUnits,
    pub served: u64,
    pub refused: u64,
}

/// Items in memory behind the limits of a table.
#[derive(Debug)]
pub struct MeteredItems {
    items: Arc<MemoryTable>,
    limits: TableLimits,
    meter: Mutex<TableMeter>,
}

/// Throughput of a table and of each partition key, and the use so far.
#[derive(Debug)]
struct TableMeter {
    of_keys: HashMap<String, PartitionThroughput>,
    /// The table's partitions, onto which partition keys are hashed; without any, each key has one to itself.
    partitions: Vec<PartitionThroughput>,
    used: TableUse,
}

impl MeteredItems {
    /// Meters requests for `items`, which other tables may share without being metered.
    pub fn new(items: Arc<MemoryTable>, limits: TableLimits) -> Self {
        let partitions = (0..limits.partitions).map(|_| PartitionThroughput::new(&limits));
        let partitions = partitions.collect();
        let meter = TableMeter { of_keys: HashMap::new(), partitions, used: TableUse::default() };
        Self { items, limits, meter: Mutex::new(meter) }
    }

    /// An item; none if the request is refused.
    pub fn get(&self, now: Duration, key: &ItemKey) -> Option<ServedRequest<Option<TableItem>>> {
        let mut meter = self.meter.lock();
        let (answer, bytes) = self.items.stored(key).unzip();
        let bytes = bytes.unwrap_or(0);
        let units = TableUnits::read(bytes);
        let is_served = meter.admits(&self.limits, &key.pk, now, units);
        is_served.then_some(ServedRequest { answer, units, bytes })
    }

    /// A write as [`Table::write`](crate::Table::write); none if it is refused.
    pub fn put(
        &self,
        now: Duration,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Option<ServedRequest<WriteOutcome>> {
        let mut meter = self.meter.lock();
        let units = self.units_of_write(key, &body, expires_at_s);
        if !meter.admits(&self.limits, &key.pk, now, units) {
            return None;
        }
        let answer = self.items.put(key, expected, body, expires_at_s);
        Some(ServedRequest { answer, units, bytes: 0 })
    }

    /// Whether a write would be served, which another store then applies.
    pub fn admits_write(
        &self,
        now: Duration,
        key: &ItemKey,
        body: &Bytes,
        expires_at_s: Option<u64>,
    ) -> bool {
        let units = self.units_of_write(key, body, expires_at_s);
        self.meter.lock().admits(&self.limits, &key.pk, now, units)
    }

    /// A page of a query; none if it is refused.
    pub fn page(&self, now: Duration, query: &PageQuery) -> Option<ServedRequest<ItemPage>> {
        let mut meter = self.meter.lock();
        let look = |items: &_| query.page(items, self.limits.page_bytes);
        let (answer, bytes) = self.items.look(&query.pk, look);
        let units = TableUnits::read(bytes);
        let is_served = meter.admits(&self.limits, &query.pk, now, units);
        is_served.then_some(ServedRequest { answer, units, bytes })
    }

    /// An item beside all limits, and its bytes.
    pub fn stored(&self, key: &ItemKey) -> Option<(TableItem, u64)> {
        self.items.stored(key)
    }

    /// The use so far.
    pub fn used(&self) -> TableUse {
        self.meter.lock().used
    }

    /// Peak demand of any partition in units a second, with refused requests.
    pub fn most_asked(&self) -> TableUnits {
        let meter = self.meter.lock();
        let all = meter.of_keys.values().chain(&meter.partitions);
        all.map(PartitionThroughput::most_asked).fold(TableUnits::default(), |most, asked| {
            TableUnits { reads: most.reads.max(asked.reads), writes: most.writes.max(asked.writes) }
        })
    }

    /// The `count` partition keys that were asked most for, with their peak demand in units a second.
    pub fn hottest(&self, count: usize) -> Vec<(String, TableUnits)> {
        let meter = self.meter.lock();
        let asked = meter.of_keys.iter().map(|(key, of_key)| (key.clone(), of_key.most_asked()));
        let mut keys: Vec<_> = asked.collect();
        keys.sort_by_key(|(key, asked)| (Reverse(asked.reads + 3 * asked.writes), key.clone()));
        keys.truncate(count);
        keys
    }

    /// Resets the peak demand.
    pub fn forget_demand(&self) {
        let TableMeter { of_keys, partitions, .. } = &mut *self.meter.lock();
        for measured in of_keys.values_mut().chain(partitions) {
            (measured.reads.most_asked, measured.writes.most_asked) = (0, 0);
        }
    }

    fn units_of_write(&self, key: &ItemKey, body: &Bytes, expires_at_s: Option<u64>) -> TableUnits {
        let before = self.items.stored(key).map_or(0, |(_, bytes)| bytes);
        TableUnits::write(item_bytes(&key.pk, &key.sk, body, expires_at_s).max(before))
    }
}

impl TableMeter {
    /// Whether a request of `pk` that costs `units` is served at the time `now`.
    fn admits(&mut self, limits: &TableLimits, pk: &str, now: Duration, units: TableUnits) -> bool {
        if !self.of_keys.contains_key(pk) {
            let of_key = if self.partitions.is_empty() {
                PartitionThroughput::new(limits)
            } else {
                PartitionThroughput::new(&TableLimits::none())
            };
            self.of_keys.insert(pk.to_owned(), of_key);
        }
        let by_key = self.of_keys.get_mut(pk).is_none_or(|of_key| of_key.take(now, units));
        let mut hasher = DefaultHasher::new();
        pk.hash(&mut hasher);
        let at = hasher.finish().checked_rem(self.partitions.len() as u64).unwrap_or(0);
        let partition = self.partitions.get_mut(at as usize);
        let is_served = partition.map_or(by_key, |partition| partition.take(now, units));
        if is_served {
            self.used.served += 1;
            self.used.units.reads += units.reads;
            self.used.units.writes += units.writes;
        } else {
            self.used.refused += 1;
        }
        is_served
    }
}

/// DynamoDB's units: of strongly consistent reads of 4 KB, and of writes of 1 KB.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html>
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableUnits {
    pub reads: u64,
    pub writes: u64,
}

const READ_BYTES: u64 = 4 << 10;
const WRITE_BYTES: u64 = 1 << 10;

impl TableUnits {
    /// Units of a strongly consistent read of `bytes`: an item, or a page of a query.
    pub fn read(bytes: u64) -> Self {
        Self { reads: bytes.div_ceil(READ_BYTES).max(1), writes: 0 }
    }

    /// Units of a write; `bytes` are those of the larger of the two items.
    pub fn write(bytes: u64) -> Self {
        Self { reads: 0, writes: bytes.div_ceil(WRITE_BYTES).max(1) }
    }
}

/// One kind of unit: what is served and what is asked for.
#[derive(Debug)]
struct UnitMeter {
    /// The rest of the rate; without one all is served.
    served: Option<TokenBucket>,
    second: u64,
    asked: u64,
    most_asked: u64,
}

impl UnitMeter {
    fn new(per_s: Option<u32>) -> Self {
        Self { served: per_s.map(TokenBucket::new), second: 0, asked: 0, most_asked: 0 }
    }

    /// Whether a request that costs `units` is served.
    fn take(&mut self, now: Duration, units: u64) -> bool {
        if units == 0 {
            return true;
        }
        if self.second != now.as_secs() {
            (self.second, self.asked) = (now.as_secs(), 0);
        }
        self.asked += units;
        self.most_asked = self.most_asked.max(self.asked);
        self.served.as_mut().is_none_or(|served| served.take(now, units))
    }
}

/// Throughput of one partition, or of one partition key.
#[derive(Debug)]
struct PartitionThroughput {
    reads: UnitMeter,
    writes: UnitMeter,
}

impl PartitionThroughput {
    fn new(limits: &TableLimits) -> Self {
        let (reads, writes) = (limits.reads_per_s, limits.writes_per_s);
        Self { reads: UnitMeter::new(reads), writes: UnitMeter::new(writes) }
    }

    fn take(&mut self, now: Duration, units: TableUnits) -> bool {
        self.reads.take(now, units.reads) && self.writes.take(now, units.writes)
    }

    fn most_asked(&self) -> TableUnits {
        TableUnits { reads: self.reads.most_asked, writes: self.writes.most_asked }
    }
}
