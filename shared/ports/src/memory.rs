//! In-memory table and objects: the reference implementations of the ports.

mod limited;
mod limited_table;
mod metered;
mod query;
mod table;
mod throughput;

use crate::{
    ChangeStamp, MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub use limited::{BucketRegions, LimitedObjects, ObjectLimits};
pub use limited_table::LimitedTable;
pub use metered::{MeteredItems, ServedRequest, TableLimits, TableUse};
pub use query::{ItemPage, PageQuery};
pub use table::MemoryTable;
pub use throughput::TableUnits;

/// A map behind a lock that a panicking test does not poison for the others.
#[derive(Debug)]
struct Shared<K, V>(Mutex<BTreeMap<K, V>>);

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K, V> Shared<K, V> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    objects: Shared<(String, String), StoredObject>,
    /// The stamps of objects that stand for files of this machine.
    stamps: Shared<(String, String), u64>,
}

impl MemoryObjects {
    fn find(&self, path: &ObjectPath) -> Result<StoredObject, ObjectError> {
        let found = self.objects.lock().get(&(path.bucket.clone(), path.key.clone())).cloned();
        found.ok_or_else(|| ObjectError::NotFound(path.clone()))
    }

    /// Changes the content of an object where it lies, as an editor or a bad disk does: if its length stays, so does
    /// its etag. Returns whether there is such an object.
    pub fn rewrite(&self, path: &ObjectPath, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> bool {
        let mut objects = self.objects.lock();
        let Some(object) = objects.get_mut(&(path.bucket.clone(), path.key.clone())) else {
            return false;
        };
        object.body = change(object.body.to_vec()).into();
        if let Some(stamp) = self.stamps.lock().get_mut(&(path.bucket.clone(), path.key.clone())) {
            *stamp += 1;
        }
        true
    }

    /// Gives an object a change stamp, as a file of this machine has one.
    pub fn set_stamp(&self, path: &ObjectPath, stamp: u64) {
        self.stamps.lock().insert((path.bucket.clone(), path.key.clone()), stamp);
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
        let id = (path.bucket.clone(), path.key.clone());
        let stored = objects.entry(id).or_insert(StoredObject { body, put_id: put_id.to_owned() });
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
        let stamps = self.stamps.lock();
        let stamp = stamps.get(&(path.bucket.clone(), path.key.clone()));
        Ok(stamp.map(|stamp| ChangeStamp(stamp.to_string())))
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let objects = self.objects.lock();
        let matching = objects
            .range((bucket.to_owned(), prefix.to_owned())..)
            .take_while(|((b, key), _)| b == bucket && key.starts_with(prefix));
        let info = |((_, key), object): (&(String, String), &StoredObject)| ObjectInfo {
            key: key.clone(),
            size: object.body.len() as u64,
            etag: object.etag(),
        };
        Ok(matching.map(info).collect())
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        let mut objects = self.objects.lock();
        for key in keys {
            objects.remove(&(bucket.to_owned(), key.clone()));
        }
        Ok(())
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
}
