//! Throughput of a table in DynamoDB's units: what is served, refused and asked for.

use super::metered::TableLimits;
use crate::limits::TokenBucket;
use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

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
    pub fn of_read(bytes: u64) -> Self {
        Self { reads: bytes.div_ceil(READ_BYTES).max(1), writes: 0 }
    }

    /// Units of a write; `bytes` are those of the larger of the two items.
    pub fn of_write(bytes: u64) -> Self {
        Self { reads: 0, writes: bytes.div_ceil(WRITE_BYTES).max(1) }
    }

    pub(super) fn add(&mut self, more: Self) {
        self.reads += more.reads;
        self.writes += more.writes;
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

    /// One that measures and serves all.
    fn measuring() -> Self {
        Self { reads: UnitMeter::new(None), writes: UnitMeter::new(None) }
    }

    fn take(&mut self, now: Duration, units: TableUnits) -> bool {
        self.reads.take(now, units.reads) && self.writes.take(now, units.writes)
    }

    fn most_asked(&self) -> TableUnits {
        TableUnits { reads: self.reads.most_asked, writes: self.writes.most_asked }
    }

    fn forget(&mut self) {
        (self.reads.most_asked, self.writes.most_asked) = (0, 0);
    }
}

/// Throughput of a table and of each partition key.
#[derive(Debug)]
pub(super) struct TableThroughput {
    of_keys: HashMap<String, PartitionThroughput>,
    /// The table's partitions, onto which partition keys are hashed; without any, each key has one to itself.
    partitions: Vec<PartitionThroughput>,
}

impl TableThroughput {
    pub fn new(limits: &TableLimits) -> Self {
        let partitions = (0..limits.partitions).map(|_| PartitionThroughput::new(limits)).collect();
        Self { of_keys: HashMap::new(), partitions }
    }

    /// Whether a request of `pk` that costs `units` is served at the time `now`.
    pub fn admits(
        &mut self,
        limits: &TableLimits,
        pk: &str,
        now: Duration,
        units: TableUnits,
    ) -> bool {
        if !self.of_keys.contains_key(pk) {
            let is_shared = !self.partitions.is_empty();
            let of_key = if is_shared {
                PartitionThroughput::measuring()
            } else {
                PartitionThroughput::new(limits)
            };
            self.of_keys.insert(pk.to_owned(), of_key);
        }
        let by_key = self.of_keys.get_mut(pk).is_none_or(|of_key| of_key.take(now, units));
        let mut hasher = DefaultHasher::new();
        pk.hash(&mut hasher);
        let at = hasher.finish().checked_rem(self.partitions.len() as u64).unwrap_or(0);
        let partition = self.partitions.get_mut(at as usize);
        partition.map_or(by_key, |partition| partition.take(now, units))
    }

    /// Peak demand of any partition a second, with refused requests.
    pub fn most_asked(&self) -> TableUnits {
        let all = self.of_keys.values().chain(&self.partitions);
        all.map(PartitionThroughput::most_asked).fold(TableUnits::default(), |most, asked| {
            TableUnits { reads: most.reads.max(asked.reads), writes: most.writes.max(asked.writes) }
        })
    }

    /// The partition keys that were asked most for, with their peak demand a second.
    pub fn hottest(&self, count: usize) -> Vec<(String, TableUnits)> {
        let asked =
            |(key, of_key): (&String, &PartitionThroughput)| (key.clone(), of_key.most_asked());
        let mut keys: Vec<_> = self.of_keys.iter().map(asked).collect();
        keys.sort_by_key(|(key, asked)| (Reverse(asked.reads + 3 * asked.writes), key.clone()));
        keys.truncate(count);
        keys
    }

    /// Resets the peak demand.
    pub fn forget(&mut self) {
        let all = self.of_keys.values_mut().chain(&mut self.partitions);
        all.for_each(PartitionThroughput::forget);
    }
}
