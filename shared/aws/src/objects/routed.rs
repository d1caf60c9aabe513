//! Routes objects by bucket, for a local service.
//!
//! The service's own bucket holds the objects of jobs, and it serves folders of this machine as further buckets. Any
//! other bucket is on S3, read with the credentials, region and endpoint configured in the environment.

use super::S3Objects;
use crate::Aws;
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_ports::{ChangeStamp, ObjectError, ObjectInfo, ObjectPath, Objects, PutOutcome};
use std::ops::Range;
use tokio::sync::OnceCell;

/// Objects of a local service and of all other buckets.
#[derive(Debug)]
pub struct RoutedObjects {
    own: S3Objects,
    own_bucket: String,
    folders: S3Objects,
    /// Created on first use: loading credentials takes time.
    elsewhere: OnceCell<S3Objects>,
}

impl RoutedObjects {
    pub(crate) fn new(own: S3Objects, own_bucket: String, folders: S3Objects) -> Self {
        Self { own, own_bucket, folders, elsewhere: OnceCell::new() }
    }

    async fn of(&self, bucket: &str) -> &S3Objects {
        if bucket == self.own_bucket {
            return &self.own;
        }
        if keys::is_mount(bucket) {
            return &self.folders;
        }
        self.elsewhere.get_or_init(async || Aws::ambient().await.objects()).await
    }
}

#[async_trait]
impl Objects for RoutedObjects {
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
        self.of(&path.bucket).await.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.of(&path.bucket).await.get_range(path, range, etag).await
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        self.of(&path.bucket).await.change_stamp(path).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.of(bucket).await.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.own.delete(bucket, keys).await
    }
}
