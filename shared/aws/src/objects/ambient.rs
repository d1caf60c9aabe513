//! S3 as this process's environment configures it, for a service whose own objects lie elsewhere.

use super::S3Objects;
use crate::Aws;
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{ObjectError, ObjectInfo, ObjectPath, Objects, PutOutcome};
use std::ops::Range;
use tokio::sync::OnceCell;

/// Objects of any bucket, on S3, with the credentials, region and endpoint of the environment.
#[derive(Debug, Default)]
pub struct AmbientObjects {
    /// Created on first use: loading credentials takes time.
    loaded: OnceCell<S3Objects>,
}

impl AmbientObjects {
    async fn s3(&self) -> &S3Objects {
        self.loaded.get_or_init(async || Aws::ambient().await.objects()).await
    }
}

#[async_trait]
impl Objects for AmbientObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.s3().await.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.s3().await.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.s3().await.get_range(path, range, etag).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.s3().await.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.s3().await.delete(bucket, keys).await
    }
}
