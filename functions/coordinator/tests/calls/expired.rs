//! Events that expired before the platform had room for them: hundreds within a second, none of which has a lease.

use super::{World, leased};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::InvocationId;
use gristmill_model::wire::{AppliedReply, DepartedWorkers, FlushReply, ReleaseCall};
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome, memory::MemoryTable};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A table that counts what is asked of it.
#[derive(Default)]
struct CountedTable {
    table: MemoryTable,
    keys_read: AtomicUsize,
    queries: AtomicUsize,
    writes: AtomicUsize,
}

impl CountedTable {
    fn taken(&self) -> [usize; 3] {
        [&self.keys_read, &self.queries, &self.writes].map(|count| count.swap(0, Ordering::Relaxed))
    }
}

#[async_trait]
impl Table for CountedTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        self.keys_read.fetch_add(keys.len(), Ordering::Relaxed);
        self.table.read(keys).await
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.table.write(key, expected, body, expires_at_s).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        self.table.range(pk, from, to).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        self.table.last(pk, limit).await
    }
}

#[tokio::test]
async fn an_event_that_expired_looks_for_no_lease() {
    let table = Arc::new(CountedTable::default());
    let world = World::indexing(Arc::clone(&table) as _, 2).await;
    // A worker that runs under the same name: the platform had sent the event twice.
    let lease = leased(world.claim(1).await);
    table.taken();
    for worker in [1, 33, 34] {
        let invocation = InvocationId::new(worker, "expired");
        let release = ReleaseCall {
            job: world.job.clone(),
            invocation,
            worker: Some(worker),
            blameless: true,
            expired: true,
            error: String::new(),
        };
        assert!(matches!(world.call(release).await, Ok(AppliedReply {})));
        assert_eq!(table.taken(), [1, 0, 1], "worker {worker}");
    }
    let done = world.work(&lease, gristmill_model::Nonce([1; 8])).await;
    assert!(matches!(done, Ok(FlushReply { leave: false })), "{done:?}");
    let key = |shard| {
        let (pk, sk) = gristmill_model::stored::keys::left(&world.ns, &world.job, shard);
        ItemKey { pk, sk }
    };
    let items = table.read(&[key(0), key(1)]).await.unwrap();
    let shards = items.iter().map(|item| {
        serde_json::from_slice::<DepartedWorkers>(&item.as_ref().unwrap().body).unwrap()
    });
    assert_eq!(
        shards.collect::<Vec<_>>(),
        [
            DepartedWorkers { bits: 0b10, expired: 0b10 },
            DepartedWorkers { bits: 0b110, expired: 0b110 },
        ]
    );
}
