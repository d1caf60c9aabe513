//! Objects and a table in memory with the limits of S3 and DynamoDB.

use super::MemoryObjects;
use crate::{
    Clock, ItemKey, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome, Table,
    TableError, TableItem, WriteOutcome,
    limits::{ITEM_BYTES, KeyedRates, PAGE_KEYS, PREFIX_GETS_PER_S, PREFIX_PUTS_PER_S},
    memory::{ItemPage, PageQuery, metered::MeteredItems},
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc,
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
    /// Keeps `limits` over the time of `clock`.
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
        let RequestsLeft { gets, puts, .. } = &mut *self.left.lock();
        let rates = if is_get { gets } else { puts };
        if rates.take_one(&path.first_folder(), now) {
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
        if *are_followed && !self.left.lock().known.insert(path.bucket.clone()) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if *are_followed {
            return Ok(());
        }
        let why = format!("{path}: PermanentRedirect: the bucket is in {region}");
        Err(ObjectError::Rejected(why))
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

/// A table in memory that refuses what DynamoDB refuses, without the retries of its SDK.
pub struct LimitedTable {
    items: Arc<MeteredItems>,
    clock: Arc<dyn Clock>,
}

impl LimitedTable {
    /// Serves `items` over the time of `clock`.
    pub fn new(items: Arc<MeteredItems>, clock: Arc<dyn Clock>) -> Self {
        Self { items, clock }
    }

    async fn pages(&self, query: PageQuery) -> Result<Vec<(String, TableItem)>, TableError> {
        let mut found = Vec::new();
        let mut next = Some(query);
        while let Some(query) = next {
            let page = self.items.page(self.clock.monotonic(), &query).ok_or_else(refused)?;
            let ItemPage { items, next: following } = page.answer;
            found.extend(items);
            next = following;
        }
        Ok(found)
    }
}

fn refused() -> TableError {
    TableError::Unavailable("ProvisionedThroughputExceededException".to_owned())
}

#[async_trait]
impl Table for LimitedTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        let now = self.clock.monotonic();
        let get = |key| self.items.get(now, key).map(|served| served.answer).ok_or_else(refused);
        keys.iter().map(get).collect()
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        if body.len() > ITEM_BYTES {
            return Err(TableError::Rejected(format!("the body has {} bytes", body.len())));
        }
        let put = self.items.put(self.clock.monotonic(), key, expected, body, expires_at_s);
        put.map(|served| served.answer).ok_or_else(refused)
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.pages(PageQuery::range(pk, from, to)).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        if limit == 0 { Ok(Vec::new()) } else { self.pages(PageQuery::last(pk, limit)).await }
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

#[cfg(test)]
mod limited_table_tests {
    use super::*;
    use crate::{
        SystemClock, conformance,
        memory::{TableLimits, TableUnits},
    };
    use std::time::Duration;

    fn items(limits: TableLimits) -> Arc<MeteredItems> {
        Arc::new(MeteredItems::new(Arc::default(), limits))
    }

    fn table(items: &Arc<MeteredItems>) -> LimitedTable {
        LimitedTable::new(Arc::clone(items), Arc::new(SystemClock))
    }

    fn key(pk: &str, sk: &str) -> ItemKey {
        ItemKey { pk: pk.to_owned(), sk: sk.to_owned() }
    }

    #[tokio::test]
    async fn with_pages_of_any_size_it_conforms() {
        for page_bytes in [TableLimits::none().page_bytes, 1, 64] {
            let items = items(TableLimits { page_bytes, ..TableLimits::none() });
            conformance::table(&table(&items), "t").await;
        }
    }

    #[tokio::test]
    async fn below_the_rates_of_a_table_it_conforms() {
        let writes_per_s = Some(100_000);
        let items = items(TableLimits { writes_per_s, ..TableLimits::default() });
        conformance::table(&table(&items), "t").await;
        assert_eq!(items.used().refused, 0);
    }

    #[tokio::test]
    async fn units_are_those_of_dynamodb() {
        let items = items(TableLimits::none());
        let table = table(&items);
        let before = std::cell::Cell::new(items.used());
        let used = || {
            let (now, was) = (items.used(), before.get());
            before.set(now);
            let (units, was_units) = (now.units, was.units);
            let (reads, writes) = (units.reads - was_units.reads, units.writes - was_units.writes);
            (reads, writes, now.served - was.served)
        };
        let small = Bytes::from_static(b"{}");
        table.write(&key("p", "a"), 0, small.clone(), None).await.unwrap();
        assert_eq!(used(), (0, 1, 1));
        table.write(&key("p", "b"), 0, vec![1; 5_000].into(), None).await.unwrap();
        assert_eq!(used(), (0, 5, 1), "a unit for each KB");
        table.write(&key("p", "b"), 0, small, None).await.unwrap();
        assert_eq!(used(), (0, 5, 1), "a conflict costs as much as the larger item");
        table.read(&[key("p", "a"), key("p", "b"), key("p", "c")]).await.unwrap();
        assert_eq!(used(), (1 + 2 + 1, 0, 3), "items are rounded one by one, absent ones cost too");
        table.range("p", "", "~").await.unwrap();
        assert_eq!(used(), (2, 0, 1), "a query is rounded as a whole");
        table.last("p", 1).await.unwrap();
        assert_eq!(used(), (2, 0, 1));
        table.range("p", "a", "a").await.unwrap();
        assert_eq!(used(), (1, 0, 1));
    }

    #[tokio::test]
    async fn a_query_has_pages_of_a_megabyte() {
        let items = items(TableLimits::none());
        let table = table(&items);
        for i in 0..6 {
            let body = vec![1; 300 << 10].into();
            table.write(&key("p", &i.to_string()), 0, body, None).await.unwrap();
        }
        let mut pages = Vec::new();
        let mut next = Some(PageQuery::range("p", "0", "9"));
        while let Some(query) = next {
            let page = items.page(Duration::ZERO, &query).unwrap().answer;
            pages.push(page.items.len());
            next = page.next;
        }
        assert_eq!(pages, [4, 2], "the item with which a page reaches 1 MB is its last");
        let last = items.page(Duration::ZERO, &PageQuery::last("p", 4)).unwrap().answer;
        assert_eq!((last.items.len(), last.next), (4, None), "what was asked for is there");
    }

    #[test]
    fn an_item_that_is_written_between_two_pages_is_found() {
        let items = items(TableLimits { page_bytes: 1, ..TableLimits::none() });
        let put = |sk: &str| {
            let put = items.put(Duration::ZERO, &key("p", sk), 0, Bytes::from_static(b"x"), None);
            assert_eq!(put.unwrap().answer, WriteOutcome::Written);
        };
        put("a");
        put("c");
        let first = items.page(Duration::ZERO, &PageQuery::range("p", "a", "z")).unwrap().answer;
        put("b");
        let second = items.page(Duration::ZERO, &first.next.unwrap()).unwrap().answer;
        assert_eq!(second.items[0].0, "b");
    }

    #[test]
    fn a_partition_serves_its_units_and_keys_share_the_partitions_of_the_table() {
        let at = Duration::from_millis;
        let kilobytes = |n: usize| Bytes::from(vec![1; n * 1_024 - 100]);
        for (limits, others) in [
            (TableLimits::per_key(), 50),
            (TableLimits { partitions: 1, ..TableLimits::per_key() }, 0),
        ] {
            let items = items(limits);
            let put =
                |ms, pk: &str, n| items.put(at(ms), &key(pk, "s"), 0, kilobytes(n), None).is_some();
            assert!((0..10).all(|_| put(0, "p", 100)), "a second's worth is there at once");
            assert!(!put(0, "p", 1), "and then nothing");
            let served = (0..50).filter(|i| put(0, &format!("p{i}"), 1)).count();
            assert_eq!(served, others, "{limits:?}");
            assert!(put(101, "p", 1), "a tenth of a second later there are units");
            assert!(put(60_000, "p", 100) && items.used().refused > 0);
            assert!(items.most_asked().writes >= 1_001, "refused requests were asked for");
            assert_eq!(items.hottest(1)[0].0, "p");
        }
    }

    #[test]
    fn a_new_table_serves_four_thousand_writes_a_second_of_many_keys() {
        let items = items(TableLimits::default());
        let body = || Bytes::from_static(b"x");
        let written = (0..20_000)
            .filter(|i| {
                items.put(Duration::ZERO, &key(&format!("p{i}"), "s"), 0, body(), None).is_some()
            })
            .count();
        assert_eq!(written, 4_000);
        assert_eq!(items.used().units, TableUnits { reads: 0, writes: 4_000 });
    }

    #[tokio::test]
    async fn a_refused_request_is_unavailable_and_changes_nothing() {
        let writes_per_s = Some(0);
        let items = items(TableLimits { writes_per_s, ..TableLimits::per_key() });
        let written = table(&items).write(&key("p", "s"), 0, Bytes::new(), None).await;
        let why = "Throughput";
        assert!(matches!(&written, Err(TableError::Unavailable(text)) if text.contains(why)));
        assert_eq!(items.stored(&key("p", "s")), None);
        let large = table(&items).write(&key("p", "s"), 0, vec![1; 401 << 10].into(), None).await;
        assert!(matches!(large, Err(TableError::Rejected(_))), "{large:?}");
    }
}
