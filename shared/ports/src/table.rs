//! Versioned items: every write is a compare-and-set of one whole item.

use async_trait::async_trait;
use bytes::Bytes;

/// Partition and sort key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemKey {
    pub pk: String,
    pub sk: String,
}

/// An item as stored. Version 0 means absent, so a stored item has version 1 or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableItem {
    pub version: u64,
    /// JSON (stored as text, so that operators can read it) or packed bytes.
    pub body: Bytes,
}

/// Outcome of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    Written,
    /// The item is at another version, returned here (`None` if absent). It may hold this very write,
    /// applied by an earlier try whose response was lost; the caller decides on what it reads.
    Conflict(Option<TableItem>),
}

/// Errors, by the caller's next step.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TableError {
    /// Retries are exhausted; the write may have been applied.
    #[error("table: {0}")]
    Unavailable(String),
    /// Permanent: no permission, no table, or too large.
    #[error("table: {0}")]
    Rejected(String),
}

/// A table. Every call has a deadline and its own retries, and every read is strongly consistent.
///
/// Costs are in DynamoDB's units. A stored item has its keys, the names of its attributes and its
/// body: some 50 bytes more than the body and the keys.
#[async_trait]
pub trait Table: Send + Sync {
    /// The items under `keys`, in their order. Costs one read unit for each 4 KB of each item, and
    /// one for each that is absent.
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError>;

    /// Replaces the item under `key` if its version is `expected` (0: if absent). Its version becomes
    /// `expected + 1`. `expires_at_s` (Unix time) lets the store delete it later. Costs one write unit
    /// for each KB of the larger of the two items, also on conflict.
    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError>;

    /// The items of a partition whose sort key lies in `from..=to` (compared as bytes), in sort-key
    /// order; none if `from` is above `to`. Costs one read unit for each 4 KB of all of them together,
    /// at least one for each page of 1 MB: 14 small bundles of a run cost one unit, where
    /// [`read`](Self::read) takes 14.
    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError>;

    /// The `limit` items of a partition with the highest sort keys, highest first; all of them if
    /// there are fewer. Costs one read unit for each 4 KB of what it returns, at least one.
    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError>;
}
