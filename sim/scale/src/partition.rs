//! Throughput of one partition: units per second, rejections and peak demand.

use gristmill_ports::limits::{PARTITION_READS_PER_S, PARTITION_WRITES_PER_S, TokenBucket};
use std::time::Duration;

/// One kind of unit: what is served and what is asked for.
#[derive(Debug)]
struct UnitMeter {
    served: TokenBucket,
    second: u64,
    asked: u64,
    most_asked: u64,
}

impl UnitMeter {
    fn new(per_second: u32) -> Self {
        Self { served: TokenBucket::new(per_second), second: 0, asked: 0, most_asked: 0 }
    }

    /// Whether a request that may cost `units` is served; with `limits` none is while the bucket is empty.
    fn take(&mut self, now: Duration, units: u64, limits: bool) -> bool {
        if self.second != now.as_secs() {
            (self.second, self.asked) = (now.as_secs(), 0);
        }
        self.asked += units;
        self.most_asked = self.most_asked.max(self.asked);
        !limits || self.served.take(now, units)
    }
}

/// One partition's throughput.
#[derive(Debug)]
pub struct PartitionThroughput {
    reads: UnitMeter,
    writes: UnitMeter,
}

impl Default for PartitionThroughput {
    fn default() -> Self {
        Self {
            reads: UnitMeter::new(PARTITION_READS_PER_S),
            writes: UnitMeter::new(PARTITION_WRITES_PER_S),
        }
    }
}

impl PartitionThroughput {
    pub fn read(&mut self, now: Duration, units: u64, limits: bool) -> bool {
        self.reads.take(now, units, limits)
    }

    pub fn write(&mut self, now: Duration, units: u64, limits: bool) -> bool {
        self.writes.take(now, units, limits)
    }

    /// Peak demand in read and write units per second, including rejected requests.
    pub fn most_asked(&self) -> (u64, u64) {
        (self.reads.most_asked, self.writes.most_asked)
    }

    /// Resets the peak demand.
    pub fn forget(&mut self) {
        (self.reads.most_asked, self.writes.most_asked) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_serves_its_units_and_saves_up_one_second() {
        let mut partition = PartitionThroughput::default();
        let at = Duration::from_millis;
        assert!(partition.write(at(0), 1_000, true), "a second's worth is there at once");
        assert!(!partition.write(at(0), 1, true), "and then nothing");
        assert!(!partition.write(at(0), 1, true));
        assert!(partition.write(at(1), 1, true), "a millisecond later one unit is");
        assert!(!partition.write(at(1), 1, true));
        assert!(partition.write(at(60_000), 1_000, true), "an idle minute saves up one second");
        assert!(!partition.write(at(60_000), 1, true));
        assert!(partition.write(at(60_000), 1, false), "without limits all is served");
        assert_eq!(partition.most_asked(), (0, 1_004));
    }
}
