//! Dataset operators: which records an epoch has, and their order.

/// One operator on the sequence of a dataset's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// Blocks of neighbours in random order, so many to a split, and the records inside a split in
    /// random order.
    Shuffle { blocks: u32, seed: u64 },
    /// Splits are delivered in the order of the dataset, not in a random one.
    InOrder,
}
