//! Files of web servers beside the objects of another store.

use crate::{
    AllowedServers,
    address::is_web,
    client::{WebObjects, server_error},
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{ChangeStamp, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome};
use std::{ops::Range, sync::Arc};

/// An object store that also reads files of web servers.
pub struct WebRoutedStore {
    rest: Arc<dyn ObjectStore>,
    web: WebObjects,
}

impl WebRoutedStore {
    /// Reads web addresses from `web`, and everything else from `rest`.
    pub fn new(rest: Arc<dyn ObjectStore>, web: WebObjects) -> Self {
        Self { rest, web }
    }

    /// Reads credentials from the environment variable `GRISTMILL_WEB_AUTHORIZATION`.
    pub fn from_env(rest: Arc<dyn ObjectStore>, reach: AllowedServers) -> Result<Self, String> {
        Ok(Self::new(rest, WebObjects::from_env(reach)?))
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
        self.rest.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        if !is_web(&path.bucket) {
            return self.rest.get(path).await;
        }
        let Some(found) = self.web.look(path).await.map_err(server_error)? else {
            return Err(ObjectError::NotFound(path.clone()));
        };
        self.web.read(path, 0..found.size, Some(&found.etag)).await.map_err(server_error)
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        if is_web(&path.bucket) {
            self.web.read(path, range, etag).await.map_err(server_error)
        } else {
            self.rest.get_range(path, range, etag).await
        }
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        if is_web(&path.bucket) { Ok(None) } else { self.rest.change_stamp(path).await }
    }

    /// Web servers have no listings: finds the file whose key is `prefix`, if it exists.
    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        if is_web(bucket) {
            let found = self.web.look(&ObjectPath::new(bucket, prefix)).await;
            Ok(found.map_err(server_error)?.into_iter().collect())
        } else {
            self.rest.list(bucket, prefix).await
        }
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.rest.delete(bucket, keys).await
    }
}
