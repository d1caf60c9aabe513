//! Declarations of pipelines on which the division of a dataset depends: operators on the sequence of its records, and
//! the CPU time of operators and formats.

use serde::{Deserialize, Serialize};
use std::{ops::Range, sync::Arc};

/// One operator on the sequence of a dataset's records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DatasetOp {
    /// The first records.
    Take { count: u64 },
    /// All but the first records.
    Skip { count: u64 },
    /// All records, one time after the other.
    Repeat { count: u32 },
    /// Records of several files in turn, `block_length` of each; a file that ends is followed by the
    /// next one in its place.
    Interleave { cycle_length: u32, block_length: u32 },
    /// The file at `index` of every `count` in a row.
    ShardFiles { index: u32, count: u32 },
    /// The run at `index` of every `count` runs of `block` records.
    ShardRecords { index: u32, count: u32, block: u32 },
    /// The records with these numbers, in this order.
    Select(Arc<[Range<u64>]>),
    /// Blocks of neighbours in random order, so many to a split, and the records inside a split in
    /// random order.
    Shuffle { blocks: u32, seed: u64 },
    /// Splits are delivered in the order of the dataset, not in a random one.
    InOrder,
}

/// CPU time on one core of a worker. It decides how many records a split has, so a factor of two matters little, and it
/// must be the same on all machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredCost {
    /// Nanoseconds for each element.
    pub element_ns: u64,
    /// Picoseconds for each byte that is read.
    pub byte_ps: u64,
}

impl DeclaredCost {
    /// The cost of an operator that declares none: about that of parsing a short line of text.
    pub const UNKNOWN: Self = Self::new(1_000, 1_000);

    /// A cost of `element_ns` nanoseconds an element and `byte_ps` picoseconds a byte.
    pub const fn new(element_ns: u64, byte_ps: u64) -> Self {
        Self { element_ns, byte_ps }
    }

    /// Nanoseconds for an element of `bytes`.
    pub fn ns(self, bytes: u64) -> u64 {
        self.element_ns.saturating_add(self.byte_ps.saturating_mul(bytes) / 1_000)
    }
}

#[cfg(test)]
mod declared_cost_tests {
    use super::*;

    #[test]
    fn bytes_count_in_picoseconds() {
        assert_eq!(DeclaredCost::new(500, 1_500).ns(2_000), 3_500);
        assert_eq!(DeclaredCost::new(1, u64::MAX).ns(u64::MAX), u64::MAX / 1_000 + 1);
    }
}
