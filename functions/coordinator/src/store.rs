//! Typed items over the table: read, decide, write conditionally; after a conflict, decide again.

use crate::items::ItemName;
use bytes::Bytes;
use futures::future::try_join_all;
use gristmill_model::Namespace;
use gristmill_model::splits::{
    Bundle, DeathLog, JobProgress, ReaderProgress, TransitionOutcome, epoch::EpochItem,
    window::WindowHints,
};
use gristmill_model::wire::{CallRefusal, RefusalKind, ScaleState};
use gristmill_ports::{Clock, ItemKey, Table, TableError, TableItem, WriteOutcome};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Decisions on one item before the call is refused as busy: more concurrent writers of one item than this
/// are a fault of the callers.
const MAX_TRIES: u32 = 16;
/// Items that accumulate expire this long after their last write: longer than any epoch takes, and than a
/// paused trainer can stay away.
pub(crate) const ACCUMULATING_ITEM_LIFETIME: Duration = Duration::from_secs(180 * 86_400);

/// Lifetime of tombstones: no worker of the job calls later than this.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(86_400);

const DELETES_AT_ONCE: usize = 16;

/// Encoding of an item: JSON if people read it, packed if every byte is billed.
pub(crate) trait ItemCodec: Clone {
    fn encode(&self) -> Result<Bytes, String>;
    fn decode(body: &[u8]) -> Result<Self, String>;
}

macro_rules! stored_as_json {
    ($($item:ty),*) => {$(
        impl ItemCodec for $item {
            fn encode(&self) -> Result<Bytes, String> {
                serde_json::to_vec(self).map(Bytes::from).map_err(|error| error.to_string())
            }
            fn decode(body: &[u8]) -> Result<Self, String> {
                serde_json::from_slice(body).map_err(|error| error.to_string())
            }
        }
    )*};
}

stored_as_json!(
    crate::items::JobItem,
    crate::items::ListedJob,
    crate::items::SweepProgress,
    crate::items::SkipCounts,
    crate::caching::CacheUse,
    String,
    gristmill_model::wire::WorkProfile,
    JobProgress,
    ReaderProgress,
    gristmill_model::RunToken,
    DeathLog,
    EpochItem,
    WindowHints,
    gristmill_model::wire::DepartedWorkers,
    ScaleState
);

/// Body of a deleted item until it expires; no item encodes to this.
pub(crate) const DELETED: &[u8] = &[0];

/// First byte of a packed bundle: the version of its layout.
const BUNDLE_LAYOUT: u8 = 2;

impl ItemCodec for Bundle {
    fn encode(&self) -> Result<Bytes, String> {
        let packed = postcard::to_extend(self, vec![BUNDLE_LAYOUT]);
        packed.map(Bytes::from).map_err(|error| error.to_string())
    }

    fn decode(body: &[u8]) -> Result<Self, String> {
        match body.split_first() {
            Some((&BUNDLE_LAYOUT, packed)) => {
                postcard::from_bytes(packed).map_err(|error| error.to_string())
            }
            Some((layout, _)) => Err(format!("bundle layout {layout} is not known")),
            None => Err("it is empty".to_owned()),
        }
    }
}

/// A temporary fault: the caller sends the call again.
pub(crate) fn busy(message: impl Into<String>) -> CallRefusal {
    CallRefusal { kind: RefusalKind::Busy, message: message.into() }
}

pub(crate) fn invalid(message: impl Into<String>) -> CallRefusal {
    CallRefusal { kind: RefusalKind::Invalid, message: message.into() }
}

fn table_fault(error: TableError) -> CallRefusal {
    let kind = match error {
        TableError::Unavailable(_) => RefusalKind::TableUnavailable,
        TableError::Rejected(_) => RefusalKind::TableRejected,
    };
    CallRefusal { kind, message: error.to_string() }
}

#[derive(Debug)]
pub(crate) enum ItemUpdateError<E> {
    /// The decision declined the change.
    Declined(E),
    /// The table failed, or too many writers conflicted.
    Fault(CallRefusal),
}

impl<E> From<CallRefusal> for ItemUpdateError<E> {
    fn from(fault: CallRefusal) -> Self {
        Self::Fault(fault)
    }
}

impl<E: Into<CallRefusal>> From<ItemUpdateError<E>> for CallRefusal {
    fn from(unchanged: ItemUpdateError<E>) -> Self {
        match unchanged {
            ItemUpdateError::Declined(refusal) => refusal.into(),
            ItemUpdateError::Fault(fault) => fault,
        }
    }
}

/// The changed item; none if the decision declined the change.
pub(crate) fn unless_declined<T, E>(
    changed: Result<T, ItemUpdateError<E>>,
) -> Result<Option<T>, CallRefusal> {
    match changed {
        Ok(item) => Ok(Some(item)),
        Err(ItemUpdateError::Declined(_)) => Ok(None),
        Err(ItemUpdateError::Fault(fault)) => Err(fault),
    }
}

#[derive(Clone)]
pub(crate) struct NamespaceTable {
    pub table: Arc<dyn Table>,
    pub clock: Arc<dyn Clock>,
    pub ns: Namespace,
    /// Writes that found another version.
    conflicts: Arc<AtomicU64>,
}

/// An item with the version it was read at.
#[derive(Debug, Clone)]
pub(crate) struct VersionedItem<T> {
    pub version: u64,
    pub item: Option<T>,
}

impl<T> Default for VersionedItem<T> {
    /// An absent item.
    fn default() -> Self {
        Self { version: 0, item: None }
    }
}

impl<T> From<(T, u64)> for VersionedItem<T> {
    fn from((item, version): (T, u64)) -> Self {
        Self { version, item: Some(item) }
    }
}

impl NamespaceTable {
    /// The items of the namespace `ns`.
    pub fn new(table: Arc<dyn Table>, clock: Arc<dyn Clock>, ns: Namespace) -> Self {
        Self { table, clock, ns, conflicts: Arc::default() }
    }

    /// Conflicts since the last look.
    pub fn take_conflicts(&self) -> u64 {
        self.conflicts.swap(0, Ordering::Relaxed)
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, CallRefusal> {
        let written = self.table.write(key, expected, body, expires_at_s).await;
        let written = written.map_err(table_fault)?;
        if matches!(written, WriteOutcome::Conflict(_)) {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        Ok(written)
    }

    /// The raw items under `names`, in one read.
    pub async fn read_all_raw(
        &self,
        names: &[ItemName<'_>],
    ) -> Result<Vec<Option<TableItem>>, CallRefusal> {
        let keys: Vec<_> = names.iter().map(|name| name.key(&self.ns)).collect();
        self.table.read(&keys).await.map_err(table_fault)
    }

    /// The item under `name`.
    pub async fn read<T: ItemCodec>(
        &self,
        name: &ItemName<'_>,
    ) -> Result<VersionedItem<T>, CallRefusal> {
        let item = self.read_all_raw(std::slice::from_ref(name)).await?.pop().flatten();
        decode(name, item.as_ref())
    }

    /// Lets `decide` change the item under `name`: one read and one conditional write if no writers conflict.
    pub async fn update<T: ItemCodec, E>(
        &self,
        name: &ItemName<'_>,
        decide: impl FnMut(Option<&T>) -> Result<TransitionOutcome<T>, E>,
    ) -> Result<T, ItemUpdateError<E>> {
        let read = self.read(name).await?;
        self.update_from(name, read, decide).await
    }

    /// Like [`NamespaceTable::update`], for an item that was already read.
    pub async fn update_from<T: ItemCodec, E>(
        &self,
        name: &ItemName<'_>,
        read: VersionedItem<T>,
        decide: impl FnMut(Option<&T>) -> Result<TransitionOutcome<T>, E>,
    ) -> Result<T, ItemUpdateError<E>> {
        Ok(self.update_versioned(name, read, decide).await?.0)
    }

    /// Like [`NamespaceTable::update_from`], and returns the item's new version.
    pub async fn update_versioned<T: ItemCodec, E>(
        &self,
        name: &ItemName<'_>,
        mut read: VersionedItem<T>,
        mut decide: impl FnMut(Option<&T>) -> Result<TransitionOutcome<T>, E>,
    ) -> Result<(T, u64), ItemUpdateError<E>> {
        let expires_at_s = name.accumulates().then(|| self.expiry_s(ACCUMULATING_ITEM_LIFETIME));
        for _ in 0..MAX_TRIES {
            let decided = decide(read.item.as_ref()).map_err(ItemUpdateError::Declined)?;
            let after = match decided {
                TransitionOutcome::AlreadyApplied(item) => return Ok((item, read.version)),
                TransitionOutcome::Write(item) => item,
            };
            let key = name.key(&self.ns);
            let body = after.encode().map_err(invalid)?;
            match self.write(&key, read.version, body, expires_at_s).await? {
                WriteOutcome::Written => return Ok((after, read.version + 1)),
                WriteOutcome::Conflict(current) => read = decode(name, current.as_ref())?,
            }
        }
        Err(busy(format!("too many writers of {name:?} at one time")).into())
    }

    /// Lets `change` change the item under `name`, a default one if there is none. An item that stays as it is is not
    /// written.
    pub async fn change_or_create<T: ItemCodec + Default + PartialEq>(
        &self,
        name: &ItemName<'_>,
        change: impl Fn(&mut T),
    ) -> Result<T, CallRefusal> {
        self.change_or_create_from(name, self.read(name).await?, change).await
    }

    /// Like [`NamespaceTable::change_or_create`], for an item that was already read.
    pub async fn change_or_create_from<T: ItemCodec + Default + PartialEq>(
        &self,
        name: &ItemName<'_>,
        read: VersionedItem<T>,
        change: impl Fn(&mut T),
    ) -> Result<T, CallRefusal> {
        let decide = |before: Option<&T>| {
            let before = before.cloned().unwrap_or_default();
            let mut after = before.clone();
            change(&mut after);
            Ok::<_, CallRefusal>(TransitionOutcome::new(Some(&before), after))
        };
        Ok(self.update_from(name, read, decide).await?)
    }

    /// Writes a hint. A failed write is only logged: the next hint says the same.
    pub async fn update_hint<T: ItemCodec>(
        &self,
        name: &ItemName<'_>,
        read: VersionedItem<T>,
        mut decide: impl FnMut(Option<&T>) -> T,
    ) -> T {
        let hint = decide(read.item.as_ref());
        let write =
            |before: Option<&T>| Ok::<_, CallRefusal>(TransitionOutcome::Write(decide(before)));
        self.update_from(name, read, write).await.unwrap_or_else(|error| {
            tracing::warn!(error = %CallRefusal::from(error), "cannot write a hint");
            hint
        })
    }

    /// Sets the item under `name`, if it exists, to expire in `life`.
    pub async fn expire(&self, name: &ItemName<'_>, life: Duration) -> Result<(), CallRefusal> {
        let Some(item) = self.read_all_raw(std::slice::from_ref(name)).await?.pop().flatten()
        else {
            return Ok(());
        };
        let (key, expires_at_s) = (name.key(&self.ns), self.expiry_s(life));
        match self.write(&key, item.version, item.body, Some(expires_at_s)).await? {
            WriteOutcome::Written => Ok(()),
            WriteOutcome::Conflict(_) => Err(busy(format!("{name:?} is still written to"))),
        }
    }

    /// Replaces the item under `key`, as it was read, with a tombstone that expires in a day. Returns false
    /// if it was deleted already; a concurrent write wins, and the call is refused as busy.
    pub async fn delete(&self, key: &ItemKey, item: &TableItem) -> Result<bool, CallRefusal> {
        if *item.body == *DELETED {
            return Ok(false);
        }
        let (body, expires_at_s) = (Bytes::from_static(DELETED), self.expiry_s(TOMBSTONE_LIFETIME));
        match self.write(key, item.version, body, Some(expires_at_s)).await? {
            WriteOutcome::Written => Ok(true),
            WriteOutcome::Conflict(_) => Err(busy(format!("{key:?} is still written to"))),
        }
    }

    /// Deletes the `doomed` items of the partition `pk`, and returns the number of those that were not deleted already.
    pub async fn delete_partition(
        &self,
        pk: &str,
        doomed: impl Fn(&ItemKey) -> bool,
    ) -> Result<u64, CallRefusal> {
        let found = self.read_partition(pk).await?.into_iter();
        let found = found.map(|(sk, item)| (ItemKey { pk: pk.to_owned(), sk }, item));
        let found: Vec<_> = found.filter(|(key, _)| doomed(key)).collect();
        let mut items = 0;
        for some in found.chunks(DELETES_AT_ONCE) {
            let deleted =
                try_join_all(some.iter().map(|(key, item)| self.delete(key, item))).await?;
            items += deleted.into_iter().filter(|deleted| *deleted).count() as u64;
        }
        Ok(items)
    }

    /// All items of the partition `pk`, by sort key.
    pub async fn read_partition(&self, pk: &str) -> Result<Vec<(String, TableItem)>, CallRefusal> {
        // `~` sorts behind every sort key.
        self.range(pk, "", "~").await
    }

    /// The items of the partition `pk` with sort keys from `from` to `to`, both included.
    pub async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, CallRefusal> {
        self.table.range(pk, from, to).await.map_err(table_fault)
    }

    /// The `limit` items of the partition `pk` with the highest sort keys, highest first.
    pub async fn last(
        &self,
        pk: &str,
        limit: usize,
    ) -> Result<Vec<(String, TableItem)>, CallRefusal> {
        self.table.last(pk, limit).await.map_err(table_fault)
    }

    fn expiry_s(&self, life: Duration) -> u64 {
        self.clock.now_ms() / 1000 + life.as_secs()
    }
}

/// Decodes an item of type `T`; a tombstone counts as no item.
pub(crate) fn decode<T: ItemCodec>(
    name: &ItemName<'_>,
    item: Option<&TableItem>,
) -> Result<VersionedItem<T>, CallRefusal> {
    let Some(TableItem { version, body }) = item else {
        return Ok(VersionedItem::default());
    };
    if *body == DELETED {
        return Ok(VersionedItem { version: *version, item: None });
    }
    let decoded = T::decode(body)
        .map_err(|error| invalid(format!("item {name:?} cannot be read: {error}")))?;
    Ok(VersionedItem { version: *version, item: Some(decoded) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::splits::{BundleRetryLimits, ClaimTransition, LeaseTerm, claim};
    use gristmill_model::{InvocationId, Nonce};
    use gristmill_ports::{SystemClock, memory::MemoryTable};

    #[test]
    fn bundles_round_trip_packed() {
        let command = ClaimTransition {
            nonce: Nonce([3; 8]),
            invocation: &InvocationId("i".into()),
            term: LeaseTerm { now_ms: 1, remaining_ms: 2, predicted_ms: 3 },
            first: 0,
            records: &[0; 8],
            death: None,
            control: None,
        };
        let bundle = claim(None, &command, &BundleRetryLimits::default()).unwrap().into_item();
        let packed = bundle.encode().unwrap();
        assert_eq!(Bundle::decode(&packed).unwrap(), bundle);
        assert!(Bundle::decode(&[9, 1]).is_err());
        assert!(Bundle::decode(&[]).is_err());
    }

    #[tokio::test]
    async fn each_conflict_is_counted_once() {
        let (table, clock) = (Arc::new(MemoryTable::default()), Arc::new(SystemClock));
        let store = NamespaceTable::new(table, clock, "n".parse().unwrap());
        let job = "j".parse().unwrap();
        for _ in 0..3 {
            // Read before the first write.
            let absent = VersionedItem::default();
            let write = |_: Option<&String>| {
                Ok::<_, CallRefusal>(TransitionOutcome::Write("text".to_owned()))
            };
            store.update_from(&ItemName::Swept(&job), absent, write).await.unwrap();
        }
        assert_eq!((store.take_conflicts(), store.take_conflicts()), (2, 0));
    }
}
