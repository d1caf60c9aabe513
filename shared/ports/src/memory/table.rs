//! A table in memory.

use crate::{ItemKey, Table, TableError, TableItem, WriteOutcome};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[derive(Debug)]
pub(super) struct ExpiringItem {
    pub item: TableItem,
    expires_at_s: Option<u64>,
}

/// The items of one partition key, by sort key.
pub(super) type PartitionItems = BTreeMap<String, ExpiringItem>;

/// Names of the attributes of an item (pk, sk, v, json or bin) and its version; an expiry with its name.
const ATTRIBUTES_BYTES: usize = 12;
const EXPIRY_BYTES: usize = 9;

impl ExpiringItem {
    /// Bytes of the item as DynamoDB counts them.
    pub fn bytes(&self, pk: &str, sk: &str) -> u64 {
        item_bytes(pk, sk, &self.item.body, self.expires_at_s)
    }
}

/// Bytes of names and values of an item, as DynamoDB counts them.
pub(super) fn item_bytes(pk: &str, sk: &str, body: &Bytes, expires_at_s: Option<u64>) -> u64 {
    let expiry = expires_at_s.map_or(0, |_| EXPIRY_BYTES);
    (pk.len() + sk.len() + body.len() + ATTRIBUTES_BYTES + expiry) as u64
}

/// A table in memory.
#[derive(Debug, Default)]
pub struct MemoryTable(Mutex<BTreeMap<String, PartitionItems>>);

impl MemoryTable {
    /// Sets an item back to what it was, as a table does that has lost its last writes.
    pub fn restore(&self, key: &ItemKey, before: Option<TableItem>) {
        let mut partitions = self.lock();
        let items = partitions.entry(key.pk.clone()).or_default();
        match before {
            Some(item) => {
                drop(items.insert(key.sk.clone(), ExpiringItem { item, expires_at_s: None }))
            }
            None => drop(items.remove(&key.sk)),
        }
    }

    /// Expiry of each item in Unix seconds. This table expires nothing.
    pub fn expiries(&self) -> Vec<(ItemKey, Option<u64>)> {
        let partitions = self.lock();
        let items = partitions
            .iter()
            .flat_map(|(pk, items)| items.iter().map(move |(sk, stored)| (pk, sk, stored)));
        let expiry = |(pk, sk, stored): (&String, &String, &ExpiringItem)| {
            (ItemKey { pk: pk.clone(), sk: sk.clone() }, stored.expires_at_s)
        };
        items.map(expiry).collect()
    }

    /// An item, and its bytes as DynamoDB counts them.
    pub fn stored(&self, key: &ItemKey) -> Option<(TableItem, u64)> {
        let partitions = self.lock();
        let stored = partitions.get(&key.pk)?.get(&key.sk)?;
        Some((stored.item.clone(), stored.bytes(&key.pk, &key.sk)))
    }

    /// The write of [`Table::write`].
    pub(super) fn put(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> WriteOutcome {
        let mut partitions = self.lock();
        let current = partitions.get(&key.pk).and_then(|items| items.get(&key.sk));
        let current = current.map(|stored| &stored.item);
        if current.map_or(0, |item| item.version) != expected {
            return WriteOutcome::Conflict(current.cloned());
        }
        let stored = ExpiringItem { item: TableItem { version: expected + 1, body }, expires_at_s };
        match partitions.get_mut(&key.pk) {
            Some(items) => drop(items.insert(key.sk.clone(), stored)),
            None => {
                let items = PartitionItems::from([(key.sk.clone(), stored)]);
                partitions.insert(key.pk.clone(), items);
            }
        }
        WriteOutcome::Written
    }

    /// Looks at the items of one partition key.
    pub(super) fn look<T>(&self, pk: &str, look: impl FnOnce(&PartitionItems) -> T) -> T {
        let partitions = self.lock();
        match partitions.get(pk) {
            Some(items) => look(items),
            None => look(&PartitionItems::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PartitionItems>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Table for MemoryTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        let partitions = self.lock();
        let stored = |key: &ItemKey| partitions.get(&key.pk)?.get(&key.sk);
        Ok(keys.iter().map(|key| stored(key).map(|stored| stored.item.clone())).collect())
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        Ok(self.put(key, expected, body, expires_at_s))
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        if from > to {
            return Ok(Vec::new());
        }
        let bounds = from.to_owned()..=to.to_owned();
        let copy = |(sk, stored): (&String, &ExpiringItem)| (sk.clone(), stored.item.clone());
        Ok(self.look(pk, |items| items.range(bounds).map(copy).collect()))
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        let copy = |(sk, stored): (&String, &ExpiringItem)| (sk.clone(), stored.item.clone());
        Ok(self.look(pk, |items| items.iter().rev().take(limit).map(copy).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[tokio::test]
    async fn it_conforms() {
        conformance::table(&MemoryTable::default(), "t").await;
    }
}
