//! Items in memory whose requests are counted and refused as DynamoDB's are. The caller gives the time.

use super::{
    MemoryTable,
    query::{ItemPage, PageQuery},
    table::item_bytes,
    throughput::{TableThroughput, TableUnits},
};
use crate::{
    Item, ItemKey, WriteOutcome,
    limits::{
        NEW_TABLE_READS_PER_S, NEW_TABLE_WRITES_PER_S, PARTITION_READS_PER_S,
        PARTITION_WRITES_PER_S, QUERY_PAGE_BYTES, table_partitions,
    },
};
use bytes::Bytes;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
        Self { partitions, ..Self::of_each_key() }
    }

    /// The documented rates of a partition, for each partition key.
    pub fn of_each_key() -> Self {
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

#[derive(Debug)]
struct TableMeter {
    throughput: TableThroughput,
    used: TableUse,
}

impl MeteredItems {
    pub fn new(items: Arc<MemoryTable>, limits: TableLimits) -> Self {
        let throughput = TableThroughput::new(&limits);
        let meter = Mutex::new(TableMeter { throughput, used: TableUse::default() });
        Self { items, limits, meter }
    }

    /// An item; none if the request is refused.
    pub fn get(&self, now: Duration, key: &ItemKey) -> Option<ServedRequest<Option<Item>>> {
        let mut meter = self.lock();
        let (answer, bytes) = self.items.stored(key).unzip();
        let bytes = bytes.unwrap_or(0);
        let units = TableUnits::of_read(bytes);
        meter.admits(&self.limits, &key.pk, now, units).then_some(ServedRequest {
            answer,
            units,
            bytes,
        })
    }

    /// A write as [`Table::write`](crate::Table::write); none if it is refused.
    pub fn put(
        &self,
        now: Duration,
        key: &ItemKey,
        expected: u64,
        (body, expires_at_s): (Bytes, Option<u64>),
    ) -> Option<ServedRequest<WriteOutcome>> {
        let mut meter = self.lock();
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
        (body, expires_at_s): (&Bytes, Option<u64>),
    ) -> bool {
        let units = self.units_of_write(key, body, expires_at_s);
        self.lock().admits(&self.limits, &key.pk, now, units)
    }

    /// A page of a query; none if it is refused.
    pub fn page(&self, now: Duration, query: &PageQuery) -> Option<ServedRequest<ItemPage>> {
        let mut meter = self.lock();
        let look = |items: &_| query.page(items, self.limits.page_bytes);
        let (answer, bytes) = self.items.look(&query.pk, look);
        let units = TableUnits::of_read(bytes);
        meter.admits(&self.limits, &query.pk, now, units).then_some(ServedRequest {
            answer,
            units,
            bytes,
        })
    }

    /// An item beside all limits, and its bytes.
    pub fn stored(&self, key: &ItemKey) -> Option<(Item, u64)> {
        self.items.stored(key)
    }

    /// The use so far.
    pub fn used(&self) -> TableUse {
        self.lock().used
    }

    /// Peak demand of any partition in units a second, with refused requests.
    pub fn most_asked(&self) -> TableUnits {
        self.lock().throughput.most_asked()
    }

    /// The `count` partition keys that were asked most for, with their peak demand in units a second.
    pub fn hottest(&self, count: usize) -> Vec<(String, TableUnits)> {
        self.lock().throughput.hottest(count)
    }

    /// Resets the peak demand.
    pub fn forget_demand(&self) {
        self.lock().throughput.forget();
    }

    fn units_of_write(&self, key: &ItemKey, body: &Bytes, expires_at_s: Option<u64>) -> TableUnits {
        let before = self.items.stored(key).map_or(0, |(_, bytes)| bytes);
        TableUnits::of_write(item_bytes(&key.pk, &key.sk, body, expires_at_s).max(before))
    }

    fn lock(&self) -> MutexGuard<'_, TableMeter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableMeter {
    fn admits(&mut self, limits: &TableLimits, pk: &str, now: Duration, units: TableUnits) -> bool {
        let is_served = self.throughput.admits(limits, pk, now, units);
        if is_served {
            self.used.served += 1;
            self.used.units.add(units);
        } else {
            self.used.refused += 1;
        }
        is_served
    }
}
