//! The same names in a program without the HTTP client: every request is refused.

use crate::{AllowedServers, address::is_web};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{
    ChangeStamp, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome, without_feature,
};
use std::{ops::Range, sync::Arc};

/// Why `origin`, or any other server, is not read from.
pub(crate) fn refusal(origin: &str) -> Option<String> {
    Some(format!("{origin}: {}", without_feature("web")))
}

/// An object store without files of web servers.
pub struct WebRoutedStore(Arc<dyn ObjectStore>);

impl WebRoutedStore {
    pub fn from_env(rest: Arc<dyn ObjectStore>, _reach: AllowedServers) -> Result<Self, String> {
        Ok(Self(rest))
    }

    fn store_of(&self, bucket: &str) -> Result<&dyn ObjectStore, ObjectError> {
        match refusal(bucket).filter(|_| is_web(bucket)) {
            Some(why) => Err(ObjectError::Rejected(why)),
            None => Ok(&*self.0),
        }
    }
}

#[async_trait]
impl ObjectStore for WebRoutedStore {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.0.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.store_of(&path.bucket)?.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.store_of(&path.bucket)?.get_range(path, range, etag).await
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        self.store_of(&path.bucket)?.change_stamp(path).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.store_of(bucket)?.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.0.delete(bucket, keys).await
    }
}
