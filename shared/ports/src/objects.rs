//! Immutable objects: put once under a fresh key, read by range. Data is never found by listing.

use async_trait::async_trait;
use bytes::Bytes;
use std::{fmt, ops::Range};

/// Most bytes one `get` returns; larger reads go by range.
pub const MAX_GET_BYTES: u64 = 256 << 20;

/// Bytes of one request of a longer read.
const PIECE_BYTES: u64 = 32 << 20;

/// Bytes `range` of an object, in several requests if it is longer than one may return.
pub async fn get_long_range(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    range: Range<u64>,
    etag: Option<&str>,
) -> Result<Bytes, ObjectError> {
    let bytes = range.end.saturating_sub(range.start);
    if bytes <= MAX_GET_BYTES {
        return objects.get_range(path, range, etag).await;
    }
    let mut whole = Vec::new();
    let room = usize::try_from(bytes).ok().and_then(|bytes| whole.try_reserve_exact(bytes).ok());
    room.ok_or_else(|| ObjectError::Rejected(format!("{path}: no memory for {bytes} bytes")))?;
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + PIECE_BYTES);
        whole.extend_from_slice(&objects.get_range(path, start..end, etag).await?);
        start = end;
    }
    Ok(Bytes::from(whole))
}

/// A bucket and a key; or a web server's origin (`https://host`) and the path and query of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectPath {
    pub bucket: String,
    pub key: String,
}

impl ObjectPath {
    /// The object `key` of `bucket`.
    pub fn new(bucket: impl Into<String>, key: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), key: key.into() }
    }

    /// The part of a path that stands for its prefix. S3 divides a bucket as it is asked, and says nowhere how: the first
    /// folder is most often a dataset.
    pub(crate) fn first_folder(&self) -> String {
        let folder = self.key.split_once('/').map_or("", |(folder, _)| folder);
        format!("{}/{folder}", self.bucket)
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, key } = self;
        if !bucket.contains("://") {
            return write!(f, "s3://{bucket}/{key}");
        }
        // The query of a web address may be a secret.
        match key.split_once('?') {
            Some((key, _)) => write!(f, "{bucket}/{key}?..."),
            None => write!(f, "{bucket}/{key}"),
        }
    }
}

/// An object as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    pub key: String,
    pub size: u64,
    pub etag: String,
}

/// The look of a file from outside: it is another one whenever the file's content may have changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChangeStamp(pub String);

/// Outcome of a conditional put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object exists with this body; a retry of the same put counts.
    Created,
    /// Another writer's object has this key.
    Exists,
}

/// Errors, by the caller's next step. Their texts name the store or server.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectError {
    #[error("{0} does not exist")]
    NotFound(ObjectPath),
    /// `If-Match` failed: the object was replaced.
    #[error("{0} has changed since it was listed")]
    Changed(ObjectPath),
    /// Retries are exhausted; the store or the network is failing.
    #[error("{0}")]
    Unavailable(String),
    /// The store has no space left. Another try may succeed once something is deleted.
    #[error("{0}")]
    Full(String),
    /// Permission denied. Policies take effect with a delay, so another try may succeed.
    #[error("{0}")]
    Denied(String),
    /// Permanent: no bucket, or too large.
    #[error("{0}")]
    Rejected(String),
}

/// An object store. Every call has a deadline and its own retries.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Puts `body` if no object has this path. `put_id` identifies an earlier try of the same put whose
    /// response was lost.
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError>;

    /// The whole object, at most [`MAX_GET_BYTES`].
    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError>;

    /// Bytes `range` of the object. Fails if `etag` is given and no longer matches.
    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError>;

    /// The stamp of a file that may be rewritten where it lies, with the same size and time; none from a store whose
    /// etags tell one content from another.
    async fn change_stamp(&self, _: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        Ok(None)
    }

    /// All objects under a prefix, in key order.
    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError>;

    /// The next objects under a prefix, in key order, after the key `after`: a page of the store's size.
    /// None are left if it is empty.
    async fn list_after(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<ObjectInfo>, ObjectError> {
        let mut found = self.list(bucket, prefix).await?;
        found.retain(|object| object.key.as_str() > after);
        Ok(found)
    }

    /// Deletes those of `keys` that exist.
    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError>;
}
