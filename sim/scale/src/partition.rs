//! Throughput of one partition: units per second, rejections and peak demand.

use std::time::Duration;

/// Read units per second of a DynamoDB partition.
pub const READS: u64 = 3_000;
/// Write units per second.
pub const WRITES: u64 = 1_000;

/// Token bucket of one kind of unit. Saves at most one idle second: DynamoDB's burst capacity of 300 s never lifts a
/// partition's limit, and adaptive capacity cannot be relied on.
#[derive(Debug)]
struct Bucket {
    per_second: u64,
    /// Millionths of a unit; negative after a request larger than the rest.
    left: i64,
    filled: Duration,
    second: u64,
    asked: u64,
    most_asked: u64,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        let left = (per_second * 1_000_000) as i64;
        Self { per_second, left, filled: Duration::ZERO, second: 0, asked: 0, most_asked: 0 }
    }

    /// Whether a request that may cost `units` is served; with `limits` none is while the bucket is empty.
    fn take(&mut self, now: Duration, units: u64, limits: bool) -> bool {
        if self.second != now.as_secs() {
            (self.second, self.asked) = (now.as_secs(), 0);
        }
        self.asked += units;
        self.most_asked = self.most_asked.max(self.asked);
        if !limits {
            return true;
        }
        let full = (self.per_second * 1_000_000) as i64;
        let refilled = now.saturating_sub(self.filled).as_micros() as i64;
        self.left =
            refilled.saturating_mul(self.per_second as i64).saturating_add(self.left).min(full);
        self.filled = now;
        if self.left <= 0 {
            return false;
        }
        self.left -= (units * 1_000_000) as i64;
        true
    }
}

/// One partition's throughput.
#[derive(Debug)]
pub struct Throughput {
    reads: Bucket,
    writes: Bucket,
}

impl Default for Throughput {
    fn default() -> Self {
        Self { reads: Bucket::new(READS), writes: Bucket::new(WRITES) }
    }
}

impl Throughput {
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
        let mut partition = Throughput::default();
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

    #[test]
    fn a_large_request_is_served_and_paid_for_afterwards() {
        let mut partition = Throughput::default();
        let at = Duration::from_millis;
        assert!(partition.read(at(0), 6_000, true));
        assert!(!partition.read(at(999), 1, true));
        assert!(partition.read(at(1_001), 1, true));
    }
}
