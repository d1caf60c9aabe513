//! In-memory table and objects: the reference implementations of the ports.

use crate::{
    ChangeStamp, ItemKey, MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath, ObjectStore,
    PutOutcome, Table, TableError, TableItem, WriteOutcome,
};
use async_trait::async_trait;
use bytes::Bytes;
pub use limited::{BucketRegions, LimitedObjects, LimitedTable, ObjectLimits};
pub use metered::{MeteredItems, ServedRequest, TableLimits, TableUnits, TableUse};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
};

mod limited;
mod metered;

#[derive(Debug, Clone)]
struct StoredObject {
    body: Bytes,
    put_id: String,
}

impl StoredObject {
    fn etag(&self) -> String {
        format!("{:08x}-{}", self.body.len(), self.put_id)
    }
}

/// Objects in memory; every bucket exists.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    objects: Mutex<BTreeMap<ObjectPath, StoredObject>>,
    /// The stamps of objects that stand for files of this machine.
    stamps: Mutex<BTreeMap<ObjectPath, u64>>,
}

impl MemoryObjects {
    fn find(&self, path: &ObjectPath) -> Result<StoredObject, ObjectError> {
        let found = self.objects.lock().get(path).cloned();
        found.ok_or_else(|| ObjectError::NotFound(path.clone()))
    }

    /// Changes the content of an object where it lies, as an editor or a bad disk does: if its length stays, so does
    /// its etag. Returns whether there is such an object.
    pub fn rewrite(&self, path: &ObjectPath, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> bool {
        let mut objects = self.objects.lock();
        let Some(object) = objects.get_mut(path) else { return false };
        object.body = change(object.body.to_vec()).into();
        if let Some(stamp) = self.stamps.lock().get_mut(path) {
            *stamp += 1;
        }
        true
    }

    /// Gives an object a change stamp, as a file of this machine has one.
    pub fn set_stamp(&self, path: &ObjectPath, stamp: u64) {
        self.stamps.lock().insert(path.clone(), stamp);
    }
}

#[async_trait]
impl ObjectStore for MemoryObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        let mut objects = self.objects.lock();
        let put = StoredObject { body, put_id: put_id.to_owned() };
        let stored = objects.entry(path.clone()).or_insert(put);
        if stored.put_id == put_id { Ok(PutOutcome::Created) } else { Ok(PutOutcome::Exists) }
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        let body = self.find(path)?.body;
        if body.len() as u64 <= MAX_GET_BYTES {
            Ok(body)
        } else {
            Err(ObjectError::Rejected(format!("{path} is larger than one get returns")))
        }
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        let object = self.find(path)?;
        if etag.is_some_and(|etag| etag != object.etag()) {
            return Err(ObjectError::Changed(path.clone()));
        }
        let outside = || ObjectError::Rejected(format!("{path} ends before byte {}", range.end));
        let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
        let (Ok(start), Ok(end)) = (start, end) else { return Err(outside()) };
        if start <= end && end <= object.body.len() {
            Ok(object.body.slice(start..end))
        } else {
            Err(outside())
        }
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        self.find(path)?;
        Ok(self.stamps.lock().get(path).map(|stamp| ChangeStamp(stamp.to_string())))
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let objects = self.objects.lock();
        let matching = objects
            .range(ObjectPath::new(bucket, prefix)..)
            .take_while(|(path, _)| path.bucket == bucket && path.key.starts_with(prefix));
        let info = |(path, object): (&ObjectPath, &StoredObject)| ObjectInfo {
            key: path.key.clone(),
            size: object.body.len() as u64,
            etag: object.etag(),
        };
        Ok(matching.map(info).collect())
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        let mut objects = self.objects.lock();
        for key in keys {
            objects.remove(&ObjectPath::new(bucket, key));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct ExpiringItem {
    item: TableItem,
    expires_at_s: Option<u64>,
}

/// The items of one partition key, by sort key.
type PartitionItems = BTreeMap<String, ExpiringItem>;

/// Names of the attributes of an item (pk, sk, v, json or bin) and its version; an expiry with its name.
const ATTRIBUTES_BYTES: usize = 12;
const EXPIRY_BYTES: usize = 9;

/// Bytes of names and values of an item, as DynamoDB counts them.
fn item_bytes(pk: &str, sk: &str, body: &Bytes, expires_at_s: Option<u64>) -> u64 {
    let expiry = expires_at_s.map_or(0, |_| EXPIRY_BYTES);
    (pk.len() + sk.len() + body.len() + ATTRIBUTES_BYTES + expiry) as u64
}

/// A table in memory.
#[derive(Debug, Default)]
pub struct MemoryTable(Mutex<BTreeMap<String, PartitionItems>>);

impl MemoryTable {
    /// Sets an item back to what it was, as a table does that has lost its last writes.
    pub fn restore(&self, key: &ItemKey, before: Option<TableItem>) {
        let mut partitions = self.0.lock();
        let items = partitions.entry(key.pk.clone()).or_default();
        match before.map(|item| ExpiringItem { item, expires_at_s: None }) {
            Some(stored) => drop(items.insert(key.sk.clone(), stored)),
            None => drop(items.remove(&key.sk)),
        }
    }

    /// Expiry of each item in Unix seconds. This table expires nothing.
    pub fn expiries(&self) -> Vec<(ItemKey, Option<u64>)> {
        let partitions = self.0.lock();
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
        let partitions = self.0.lock();
        let stored = partitions.get(&key.pk)?.get(&key.sk)?;
        let bytes = item_bytes(&key.pk, &key.sk, &stored.item.body, stored.expires_at_s);
        Some((stored.item.clone(), bytes))
    }

    /// The write of [`Table::write`].
    fn put(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> WriteOutcome {
        let mut partitions = self.0.lock();
        let current = partitions.get(&key.pk).and_then(|items| items.get(&key.sk));
        let current = current.map(|stored| &stored.item);
        if current.map_or(0, |item| item.version) != expected {
            return WriteOutcome::Conflict(current.cloned());
        }
        let stored = ExpiringItem { item: TableItem { version: expected + 1, body }, expires_at_s };
        partitions.entry(key.pk.clone()).or_default().insert(key.sk.clone(), stored);
        WriteOutcome::Written
    }

    fn look<T>(&self, pk: &str, look: impl FnOnce(&PartitionItems) -> T) -> T {
        look(self.0.lock().get(pk).unwrap_or(&PartitionItems::new()))
    }
}

#[async_trait]
impl Table for MemoryTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        let partitions = self.0.lock();
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

/// A query of one partition key from some place on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    pub pk: String,
    from: Bound<String>,
    to: Bound<String>,
    is_backwards: bool,
    limit: usize,
}

/// A page of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemPage {
    pub items: Vec<(String, TableItem)>,
    /// The query of the next page; none if there is no more.
    pub next: Option<PageQuery>,
}

impl PageQuery {
    /// The items whose sort key lies in `from..=to`, in order.
    pub fn range(pk: &str, from: &str, to: &str) -> Self {
        let (from, to) = (Bound::Included(from.to_owned()), Bound::Included(to.to_owned()));
        Self { pk: pk.to_owned(), from, to, is_backwards: false, limit: usize::MAX }
    }

    /// The `limit` items with the highest sort keys, highest first.
    pub fn last(pk: &str, limit: usize) -> Self {
        let (from, to) = (Bound::Unbounded, Bound::Unbounded);
        Self { pk: pk.to_owned(), from, to, is_backwards: true, limit }
    }

    fn is_empty(&self) -> bool {
        let is_inverted = match (&self.from, &self.to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Excluded(from), Bound::Included(to)) => from >= to,
            _ => false,
        };
        is_inverted || self.limit == 0
    }

    /// A page of at least `page_bytes`, if there are so many, and its bytes.
    fn page(&self, items: &PartitionItems, page_bytes: u64) -> (ItemPage, u64) {
        let mut found = ItemPage { items: Vec::new(), next: None };
        let mut bytes = 0;
        if self.is_empty() {
            return (found, bytes);
        }
        let mut items = items.range((self.from.clone(), self.to.clone()));
        let mut step = || if self.is_backwards { items.next_back() } else { items.next() };
        while let Some((sk, stored)) = step() {
            bytes += item_bytes(&self.pk, sk, &stored.item.body, stored.expires_at_s);
            found.items.push((sk.clone(), stored.item.clone()));
            if found.items.len() == self.limit {
                break;
            }
            if bytes >= page_bytes {
                found.next = Some(self.after(sk, found.items.len()));
                break;
            }
        }
        (found, bytes)
    }

    /// The query of what follows `count` items, of which `sk` was the last.
    fn after(&self, sk: &str, count: usize) -> Self {
        let sk = Bound::Excluded(sk.to_owned());
        let next = Self { limit: self.limit - count, ..self.clone() };
        if self.is_backwards { Self { to: sk, ..next } } else { Self { from: sk, ..next } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[tokio::test]
    async fn objects_conform() {
        conformance::objects(&MemoryObjects::default(), "bucket", "t").await;
    }

    #[tokio::test]
    async fn the_table_conforms() {
        conformance::table(&MemoryTable::default(), "t").await;
    }
}
