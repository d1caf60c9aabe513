//! Counts of calls, of reads and writes of the table, and of committed bytes.

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::wire::{AnyCall, AnyReply};
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes of the chunks that workers committed.
const CHUNK_BYTES_WRITTEN: &str = "objects.chunk_bytes_written";
/// Bytes of chunks that clients read.
pub(crate) const CHUNK_BYTES_READ: &str = "objects.chunk_bytes_read";
/// Calls that the imitated Lambda throttled, and events of workers that expired there.
pub(crate) const CALLS_THROTTLED: &str = "coordinator.throttled";
pub(crate) const EVENTS_EXPIRED: &str = "functions.worker_expired";

/// Counts by name; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceCounts(Arc<Mutex<BTreeMap<String, u64>>>);

impl ServiceCounts {
    /// All counts by name.
    pub fn read(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds `more` to the count `name`.
    pub fn add(&self, name: &str, more: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name.to_owned()).or_default() += more;
    }

    /// Counts a call and what it committed.
    pub fn answered(&self, call: &AnyCall, reply: &AnyReply) {
        self.add(&format!("coordinator.{}", call.name()), 1);
        if let (AnyCall::Flush(flush), AnyReply::Flush(_)) = (call, reply) {
            self.add(
                CHUNK_BYTES_WRITTEN,
                flush.commits.iter().map(|commit| commit.outcome.object_bytes).sum(),
            );
        }
    }

    /// Counts an invocation of a function.
    pub fn invoked(&self, function: &str) {
        self.add(&format!("functions.{function}"), 1);
    }
}

/// A table whose operations are counted.
pub(crate) struct CountedTable {
    pub table: Arc<dyn Table>,
    pub counts: ServiceCounts,
}

#[async_trait]
impl Table for CountedTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        self.counts.add("table.read", 1);
        self.table.read(keys).await
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        self.counts.add("table.write", 1);
        self.table.write(key, expected, body, expires_at_s).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.counts.add("table.query", 1);
        self.table.range(pk, from, to).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.counts.add("table.query", 1);
        self.table.last(pk, limit).await
    }
}
