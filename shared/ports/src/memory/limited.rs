//! Objects in memory with the limits of S3.

use super::MemoryObjects;
use crate::{
    Clock, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    limits::{PAGE_KEYS, PREFIX_GETS_PER_S, PREFIX_PUTS_PER_S, TokenBucket},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Bounds beyond which the store refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLimits {
    /// GETs a second of one prefix, the first folder of a bucket; puts, lists and deletes a second of one.
    pub gets_per_s: u32,
    pub puts_per_s: u32,
    /// Keys of a page. A listing is one request for each; one request deletes no more.
    pub page_keys: usize,
    /// Absent keys are denied, as to a caller who may not list the bucket.
    pub denies_absent: bool,
    /// When the caller's session ends, by its clock's monotonic time, if it does.
    pub session_ends: Option<Duration>,
}

impl Default for ObjectLimits {
    /// The documented rates and pages, for a caller who may list the bucket and whose session does not end.
    fn default() -> Self {
        Self {
            gets_per_s: PREFIX_GETS_PER_S,
            puts_per_s: PREFIX_PUTS_PER_S,
            page_keys: PAGE_KEYS,
            denies_absent: false,
            session_ends: None,
        }
    }
}

/// Objects in memory that refuse what S3 refuses.
pub struct LimitedObjects {
    objects: Arc<MemoryObjects>,
    limits: ObjectLimits,
    clock: Arc<dyn Clock>,
    /// The rest of each prefix's gets and puts.
    left: Mutex<BTreeMap<String, (TokenBucket, TokenBucket)>>,
    served: AtomicU64,
    refused: AtomicU64,
}

impl LimitedObjects {
    pub fn new(objects: Arc<MemoryObjects>, limits: ObjectLimits, clock: Arc<dyn Clock>) -> Self {
        let left = Mutex::default();
        let (served, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { objects, limits, clock, left, served, refused }
    }

    /// Requests that were served, and those that were refused for their rate.
    pub fn requests(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Admits a get, or another request, of a prefix.
    fn admit(&self, path: &ObjectPath, is_get: bool) -> Result<(), ObjectError> {
        let now = self.clock.monotonic();
        if self.limits.session_ends.is_some_and(|end| now >= end) {
            return Err(ObjectError::Rejected(format!("{path}: ExpiredToken")));
        }
        let folder = path.key.split_once('/').map_or("", |(folder, _)| folder);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let (gets, puts) = left.entry(format!("{}/{folder}", path.bucket)).or_insert_with(|| {
            let ObjectLimits { gets_per_s, puts_per_s, .. } = self.limits;
            (TokenBucket::new(gets_per_s), TokenBucket::new(puts_per_s))
        });
        let is_served = if is_get { gets.take_one(now) } else { puts.take_one(now) };
        let count = if is_served { &self.served } else { &self.refused };
        count.fetch_add(1, Ordering::Relaxed);
        if is_served { Ok(()) } else { Err(ObjectError::Unavailable(format!("{path}: SlowDown"))) }
    }

    fn seen(&self, got: Result<Bytes, ObjectError>) -> Result<Bytes, ObjectError> {
        match got {
            Err(ObjectError::NotFound(path)) if self.limits.denies_absent => {
                Err(ObjectError::Denied(format!("{path}: AccessDenied")))
            }
            got => got,
        }
    }
}

#[async_trait]
impl ObjectStore for LimitedObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.admit(path, false)?;
        self.objects.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.admit(path, true)?;
        self.seen(self.objects.get(path).await)
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.admit(path, true)?;
        self.seen(self.objects.get_range(path, range, etag).await)
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let found = self.objects.list(bucket, prefix).await?;
        for _ in 0..found.len().div_ceil(self.limits.page_keys.max(1)).max(1) {
            self.admit(&ObjectPath::new(bucket, prefix), false)?;
        }
        Ok(found)
    }

    async fn list_after(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.admit(&ObjectPath::new(bucket, prefix), false)?;
        let mut found = self.objects.list_after(bucket, prefix, after).await?;
        found.truncate(self.limits.page_keys);
        Ok(found)
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        for page in keys.chunks(self.limits.page_keys.max(1)) {
            self.admit(&ObjectPath::new(bucket, page[0].as_str()), false)?;
            self.objects.delete(bucket, page).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SystemClock, conformance};

    fn limited(limits: ObjectLimits) -> LimitedObjects {
        LimitedObjects::new(Arc::default(), limits, Arc::new(SystemClock))
    }

    #[tokio::test]
    async fn below_their_limits_they_conform() {
        conformance::objects(&limited(ObjectLimits::default()), "bucket", "t").await;
    }

    #[tokio::test]
    async fn requests_beyond_a_prefixs_rate_are_refused_and_those_of_others_are_not() {
        let objects = limited(ObjectLimits { gets_per_s: 1, ..ObjectLimits::default() });
        let get = async |key: &str| objects.get(&ObjectPath::new("b", key)).await;
        assert!(matches!(get("a/1").await, Err(ObjectError::NotFound(_))));
        let refused = get("a/2").await;
        assert!(matches!(&refused, Err(ObjectError::Unavailable(why)) if why.contains("SlowDown")));
        assert!(matches!(get("c/1").await, Err(ObjectError::NotFound(_))));
        assert_eq!(objects.requests(), (2, 1));
    }

    #[tokio::test]
    async fn absent_keys_look_denied_to_a_caller_who_may_not_list() {
        let objects = limited(ObjectLimits { denies_absent: true, ..ObjectLimits::default() });
        let path = ObjectPath::new("b", "k");
        assert!(matches!(objects.get(&path).await, Err(ObjectError::Denied(_))));
        objects.put_if_absent(&path, Bytes::from_static(b"x"), "p").await.unwrap();
        assert!(objects.get(&path).await.is_ok());
    }

    #[tokio::test]
    async fn a_session_that_has_ended_is_refused() {
        let session_ends = Some(Duration::ZERO);
        let objects = limited(ObjectLimits { session_ends, ..ObjectLimits::default() });
        let refused = objects.list("b", "").await;
        assert!(matches!(refused, Err(ObjectError::Rejected(why)) if why.contains("ExpiredToken")));
    }

    #[tokio::test]
    async fn pages_are_requests() {
        let objects = limited(ObjectLimits { page_keys: 2, ..ObjectLimits::default() });
        let keys: Vec<_> = (0..5).map(|i| format!("p/{i}")).collect();
        for key in &keys {
            let path = ObjectPath::new("b", key.as_str());
            objects.put_if_absent(&path, Bytes::new(), "p").await.unwrap();
        }
        assert_eq!(objects.list("b", "p/").await.unwrap().len(), 5);
        assert_eq!(objects.list_after("b", "p/", "p/1").await.unwrap().len(), 2);
        objects.delete("b", &keys).await.unwrap();
        assert_eq!(objects.requests(), (5 + 3 + 1 + 3, 0));
    }
}
