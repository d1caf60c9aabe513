//! Any bucket on S3, with the credentials, region and endpoint configured in the environment.

use super::S3Objects;
use crate::Aws;
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{ObjectError, ObjectInfo, ObjectPath, Objects, PutOutcome};
use std::ops::Range;
use tokio::sync::OnceCell;

/// Objects that the user may read. Nothing is configured before the first one: loading credentials takes time.
#[derive(Debug, Default)]
pub struct AmbientObjects(OnceCell<S3Objects>);

impl AmbientObjects {
    async fn get_or_load(&self) -> &S3Objects {
        self.0.get_or_init(async || Aws::ambient().await.objects()).await
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
        self.get_or_load().await.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.get_or_load().await.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.get_or_load().await.get_range(path, range, etag).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.get_or_load().await.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.get_or_load().await.delete(bucket, keys).await
    }
}
