//! Objects in memory with the limits of S3.

use super::MemoryObjects;
use crate::{
    Clock, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    limits::{KeyedRates, PAGE_KEYS, PREFIX_GETS_PER_S, PREFIX_PUTS_PER_S},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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

/// The region of the caller, and the buckets that are elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BucketRegions {
    pub caller: String,
    /// Regions by bucket. Any other bucket is in the region of the caller.
    pub buckets: BTreeMap<String, String>,
    /// Whether the caller asks again in the region that a refusal names and remembers it, as the adapter of S3 does.
    /// Otherwise the refusal is its error, as where a policy allows one region alone.
    pub are_followed: bool,
}

/// Objects in memory that refuse what S3 refuses.
pub struct LimitedObjects {
    objects: Arc<MemoryObjects>,
    limits: ObjectLimits,
    clock: Arc<dyn Clock>,
    regions: BucketRegions,
    left: Mutex<RequestsLeft>,
    served: AtomicU64,
    refused: AtomicU64,
}

/// The rest of each prefix's gets and puts, and the buckets elsewhere whose region the caller knows.
struct RequestsLeft {
    gets: KeyedRates,
    puts: KeyedRates,
    known: BTreeSet<String>,
}

impl LimitedObjects {
    pub fn new(objects: Arc<MemoryObjects>, limits: ObjectLimits, clock: Arc<dyn Clock>) -> Self {
        let gets = KeyedRates::new(limits.gets_per_s);
        let puts = KeyedRates::new(limits.puts_per_s);
        let left = Mutex::new(RequestsLeft { gets, puts, known: BTreeSet::new() });
        let (served, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { objects, limits, clock, regions: BucketRegions::default(), left, served, refused }
    }

    /// The same objects in buckets of several regions.
    #[must_use]
    pub fn in_regions(self, regions: BucketRegions) -> Self {
        Self { regions, ..self }
    }

    /// Requests that were served, and those that were refused for their rate or their region.
    pub fn requests(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Admits a get, or another request, of a prefix.
    fn admit(&self, path: &ObjectPath, is_get: bool) -> Result<(), ObjectError> {
        let now = self.clock.monotonic();
        self.redirect(path)?;
        if self.limits.session_ends.is_some_and(|end| now >= end) {
            return Err(ObjectError::Rejected(format!("{path}: ExpiredToken")));
        }
        let folder = path.key.split_once('/').map_or("", |(folder, _)| folder);
        let prefix = format!("{}/{folder}", path.bucket);
        let RequestsLeft { gets, puts, .. } = &mut *self.lock();
        let rates = if is_get { gets } else { puts };
        if rates.take_one(&prefix, now) {
            self.served.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(ObjectError::Unavailable(format!("{path}: SlowDown")))
    }

    /// Refuses the first request to a bucket of another region, or each one, as S3 does by 301. This comes before the
    /// request's signature is looked at.
    fn redirect(&self, path: &ObjectPath) -> Result<(), ObjectError> {
        let BucketRegions { caller, buckets, are_followed } = &self.regions;
        let Some(region) = buckets.get(&path.bucket).filter(|region| *region != caller) else {
            return Ok(());
        };
        if *are_followed && !self.lock().known.insert(path.bucket.clone()) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if *are_followed {
            return Ok(());
        }
        let why = format!("{path}: PermanentRedirect: the bucket is in {region}");
        Err(ObjectError::Rejected(why))
    }

    fn lock(&self) -> MutexGuard<'_, RequestsLeft> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn elsewhere(are_followed: bool) -> LimitedObjects {
        let buckets = [("there", "eu-west-1"), ("here", "us-east-1")];
        let buckets = buckets.map(|(bucket, region)| (bucket.to_owned(), region.to_owned())).into();
        let regions = BucketRegions { caller: "us-east-1".to_owned(), buckets, are_followed };
        limited(ObjectLimits::default()).in_regions(regions)
    }

    #[tokio::test]
    async fn a_bucket_of_another_region_conforms_to_a_caller_who_follows() {
        let objects = elsewhere(true);
        conformance::objects(&objects, "there", "t").await;
        assert_eq!(objects.requests().1, 1, "the region is asked for once");
        conformance::objects(&objects, "here", "t").await;
        conformance::objects(&objects, "unnamed", "t").await;
        assert_eq!(objects.requests().1, 1);
    }

    #[tokio::test]
    async fn each_request_to_another_region_is_refused_to_a_caller_who_does_not_follow() {
        let objects = elsewhere(false);
        let path = ObjectPath::new("there", "k");
        let key = ["k".to_owned()];
        for refused in [
            objects.get(&path).await.map(drop),
            objects.get_range(&path, 0..1, None).await.map(drop),
            objects.put_if_absent(&path, Bytes::new(), "p").await.map(drop),
            objects.list("there", "").await.map(drop),
            objects.list_after("there", "", "").await.map(drop),
            objects.delete("there", &key).await,
        ] {
            let Err(ObjectError::Rejected(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains("PermanentRedirect") && why.contains("eu-west-1"), "{why}");
        }
        conformance::objects(&objects, "here", "t").await;
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
