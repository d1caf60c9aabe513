//! A table in memory with the limits of DynamoDB.

use super::{
    metered::MeteredItems,
    query::{ItemPage, PageQuery},
};
use crate::{Clock, ItemKey, Table, TableError, TableItem, WriteOutcome, limits::ITEM_BYTES};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// A table in memory that refuses what DynamoDB refuses, without the retries of its SDK.
pub struct LimitedTable {
    items: Arc<MeteredItems>,
    clock: Arc<dyn Clock>,
}

impl LimitedTable {
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
        let put = self.items.put(self.clock.monotonic(), key, expected, (body, expires_at_s));
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
            let put = items.put(Duration::ZERO, &key("p", sk), 0, (Bytes::from_static(b"x"), None));
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
        let kilobytes = |n: usize| (Bytes::from(vec![1; n * 1_024 - 100]), None);
        for (limits, others) in [
            (TableLimits::of_each_key(), 50),
            (TableLimits { partitions: 1, ..TableLimits::of_each_key() }, 0),
        ] {
            let items = items(limits);
            let put = |ms, pk: &str, n| items.put(at(ms), &key(pk, "s"), 0, kilobytes(n)).is_some();
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
        let body = || (Bytes::from_static(b"x"), None);
        let written = (0..20_000)
            .filter(|i| items.put(Duration::ZERO, &key(&format!("p{i}"), "s"), 0, body()).is_some())
            .count();
        assert_eq!(written, 4_000);
        assert_eq!(items.used().units, TableUnits { reads: 0, writes: 4_000 });
    }

    #[tokio::test]
    async fn a_refused_request_is_unavailable_and_changes_nothing() {
        let writes_per_s = Some(0);
        let items = items(TableLimits { writes_per_s, ..TableLimits::of_each_key() });
        let written = table(&items).write(&key("p", "s"), 0, Bytes::new(), None).await;
        let why = "Throughput";
        assert!(matches!(&written, Err(TableError::Unavailable(text)) if text.contains(why)));
        assert_eq!(items.stored(&key("p", "s")), None);
        let large = table(&items).write(&key("p", "s"), 0, vec![1; 401 << 10].into(), None).await;
        assert!(matches!(large, Err(TableError::Rejected(_))), "{large:?}");
    }
}
