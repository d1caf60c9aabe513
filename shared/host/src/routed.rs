//! Objects by bucket: the service's own, folders of this machine, and all others.

use crate::{FileObjects, FolderRegistry, ForeignS3, HostError, ServiceFile, private_dir};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_ports::{ChangeStamp, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome};
use std::{
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The objects of a service on this machine, as its clients and workers read and write them.
pub struct HostObjects {
    bucket: String,
    own: Arc<dyn ObjectStore>,
    folders: Arc<FileObjects>,
    elsewhere: Arc<dyn ObjectStore>,
    read: ChunkByteCounter,
}

/// Bytes of chunks that this process has read and not yet reported to the service; clones share them.
#[derive(Debug, Clone, Default)]
pub struct ChunkByteCounter(Arc<AtomicU64>);

impl ChunkByteCounter {
    fn add(&self, key: &str, read: &Result<Bytes, ObjectError>) {
        if let Ok(bytes) = read
            && keys::is_chunk(key)
        {
            self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the bytes, which then count as reported.
    pub(crate) fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl HostObjects {
    /// The objects of the service that `file` describes. Buckets of other services are read through `elsewhere`, and its
    /// own objects through `foreign` where another service keeps them.
    pub fn open(
        file: &ServiceFile,
        elsewhere: Arc<dyn ObjectStore>,
        foreign: impl FnOnce(&ForeignS3) -> Arc<dyn ObjectStore>,
    ) -> Result<Self, HostError> {
        let files = Arc::new(own_files(&file.state_dir, &file.bucket)?);
        let own = file.s3.as_ref().map(foreign).unwrap_or_else(|| Arc::clone(&files) as _);
        Ok(Self {
            bucket: file.bucket.clone(),
            own,
            folders: files,
            elsewhere,
            read: ChunkByteCounter::default(),
        })
    }

    /// The bytes of chunks that are read through this.
    pub fn chunk_bytes(&self) -> ChunkByteCounter {
        self.read.clone()
    }

    fn store_for(&self, bucket: &str) -> &dyn ObjectStore {
        if bucket == self.bucket {
            &*self.own
        } else if keys::is_mount(bucket) {
            &*self.folders
        } else {
            &*self.elsewhere
        }
    }
}

/// The objects that lie in files below `state_dir`, and the folders that it names.
pub fn own_files(state_dir: &Path, bucket: &str) -> Result<FileObjects, HostError> {
    let root = private_dir(&state_dir.join("objects"))?;
    let files = FileObjects::open(&root, bucket).map_err(HostError::at(&root))?;
    Ok(files.with_folders(FolderRegistry::new(state_dir)))
}

#[async_trait]
impl ObjectStore for HostObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        // Only the service's own bucket is written to.
        self.own.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        let read = self.store_for(&path.bucket).get(path).await;
        self.read.add(&path.key, &read);
        read
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        let read = self.store_for(&path.bucket).get_range(path, range, etag).await;
        self.read.add(&path.key, &read);
        read
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        self.store_for(&path.bucket).change_stamp(path).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.store_for(bucket).list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.own.delete(bucket, keys).await
    }
}
