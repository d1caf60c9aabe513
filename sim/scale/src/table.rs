//! The table: units, latencies and rejections as in DynamoDB, requests and retries as in the adapter.

use crate::deployment::SimulatedDeployment;
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{
    ItemKey, Table, TableError, TableItem, WriteOutcome,
    limits::QUERY_PAGE_BYTES,
    memory::{ItemPage, MeteredItems, PageQuery, ServedRequest, TableUnits},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};

/// Latency of a get, a put, or a page of a query.
const REQUEST: Duration = Duration::from_millis(5);
const BATCH: Duration = Duration::from_millis(8);
/// Additional time of a page of 1 MB.
const PAGE: Duration = Duration::from_millis(25);
/// As in the adapter: keys per batch, concurrent batches, rounds for unprocessed keys, back-off.
const BATCH_KEYS: usize = 100;
const BATCHES_AT_ONCE: usize = 4;
const BATCH_ROUNDS: u32 = 8;
const BATCH_BACKOFF: Duration = Duration::from_millis(25);
/// As configured in the SDK: tries of a rejected request, first back-off.
const TRIES: u32 = 4;
const BACKOFF: Duration = Duration::from_millis(40);
const MAX_BODY_BYTES: usize = 390 << 10;

/// Usage of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct TableUsage {
    pub read_units: u64,
    pub write_units: u64,
    /// Sequential waits for the table.
    pub round_trips: u64,
    pub rejected: u64,
}

/// The table as used by one process.
pub struct MeteredTable {
    deployment: Arc<SimulatedDeployment>,
    used: Mutex<TableUsage>,
}

impl MeteredTable {
    /// The deployment's table as one process uses it; it counts the use of this process.
    pub fn new(deployment: &Arc<SimulatedDeployment>) -> Arc<Self> {
        Arc::new(Self { deployment: Arc::clone(deployment), used: Mutex::default() })
    }

    /// Usage since the last call of this function.
    pub fn take_used(&self) -> TableUsage {
        std::mem::take(&mut self.used.lock())
    }

    /// One request: takes its time, and is retried if rejected.
    async fn request<T>(
        &self,
        taking: Duration,
        mut serve: impl FnMut(&MeteredItems, Duration) -> Option<ServedRequest<T>>,
    ) -> Result<T, TableError> {
        let deployment = &self.deployment;
        for attempt in 0..TRIES {
            if attempt > 0 {
                deployment
                    .pause(BACKOFF.mul_f64(deployment.uniform() * f64::from(1 << (attempt - 1))))
                    .await;
            }
            deployment.pause(taking / 2).await;
            let served = serve(&deployment.items, deployment.now());
            self.used.lock().round_trips += 1;
            let read_bytes = served.as_ref().map_or(0, |served| served.bytes);
            let more = PAGE.mul_f64(read_bytes as f64 / QUERY_PAGE_BYTES as f64);
            deployment.pause(taking / 2 + more).await;
            match served {
                Some(served) => {
                    let mut used = self.used.lock();
                    used.read_units += served.units.reads;
                    used.write_units += served.units.writes;
                    return Ok(served.answer);
                }
                None => self.used.lock().rejected += 1,
            }
        }
        Err(TableError::Unavailable("ProvisionedThroughputExceededException".to_owned()))
    }

    async fn read_one(&self, key: &ItemKey) -> Result<Option<TableItem>, TableError> {
        // The size of one item adds no time.
        let serve = |items: &MeteredItems, now| {
            items.get(now, key).map(|served| ServedRequest { bytes: 0, ..served })
        };
        self.request(REQUEST, serve).await
    }

    /// Sends the batches of one read concurrently and retries unprocessed keys. A batch without any processed key is a
    /// rejected request.
    async fn read_batches(
        &self,
        keys: &[ItemKey],
        found: &mut Vec<Option<TableItem>>,
    ) -> Result<(), TableError> {
        let start = found.len();
        found.resize(start + keys.len(), None);
        let mut open: Vec<usize> = (0..keys.len()).collect();
        for round in 0..BATCH_ROUNDS {
            let wanted = &open;
            let serve = |items: &MeteredItems, now| {
                let mut left = Vec::new();
                let mut units = TableUnits::default();
                for &i in wanted {
                    match items.get(now, &keys[i]) {
                        Some(served) => {
                            units.reads += served.units.reads;
                            found[start + i] = served.answer;
                        }
                        None => left.push(i),
                    }
                }
                (left.len() < wanted.len()).then_some(ServedRequest {
                    answer: left,
                    units,
                    bytes: 0,
                })
            };
            open = self.request(BATCH, serve).await?;
            if open.is_empty() {
                return Ok(());
            }
            self.used.lock().rejected += 1;
            self.deployment.time.sleep(BATCH_BACKOFF * 2_u32.pow(round)).await;
        }
        Err(TableError::Unavailable(format!("{} keys stay unprocessed", open.len())))
    }

    /// Reads what `query` finds, page by page.
    async fn pages(&self, query: PageQuery) -> Result<Vec<(String, TableItem)>, TableError> {
        let mut found: Vec<(String, TableItem)> = Vec::new();
        let mut next = Some(query);
        while let Some(query) = next {
            let serve = |items: &MeteredItems, now| items.page(now, &query);
            let ItemPage { items, next: following } = self.request(REQUEST, serve).await?;
            found.extend(items);
            next = following;
        }
        Ok(found)
    }
}

#[async_trait]
impl Table for MeteredTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        if let [key] = keys {
            return Ok(vec![self.read_one(key).await?]);
        }
        let mut found = Vec::with_capacity(keys.len());
        for batches in keys.chunks(BATCH_KEYS * BATCHES_AT_ONCE) {
            self.read_batches(batches, &mut found).await?;
        }
        Ok(found)
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        if body.len() > MAX_BODY_BYTES {
            return Err(TableError::Rejected(format!("the body has {} bytes", body.len())));
        }
        let serve =
            |items: &MeteredItems, now| items.put(now, key, expected, body.clone(), expires_at_s);
        self.request(REQUEST, serve).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        if from > to || to.is_empty() {
            return Ok(Vec::new());
        }
        self.pages(PageQuery::range(pk, from, to)).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        if limit == 0 { Ok(Vec::new()) } else { self.pages(PageQuery::last(pk, limit)).await }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
