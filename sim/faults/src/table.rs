//! The table as seen by one process: slow, sometimes failing, never inconsistent. Every write is checked against the
//! invariants of the split protocol.

use crate::{
    Fault, Mutant, Process, Simulation, hints::Hints, link::DENIED, objects::Store,
    ranked::mistakes, releases::DeployedStack,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::inspect::{self, Stored, decode};
use gristmill_model::splits::{
    Bundle, SplitKind,
    collect::ChunkName,
    invariants::{bundle_step, progress_step},
};
use gristmill_ports::{
    Item, ItemKey, Table, TableError, WriteOutcome,
    limits::ITEM_BYTES,
    memory::{ItemPage, MemoryTable, MeteredItems, PageQuery, TableLimits},
};
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc};

const LATENCY_MS: u64 = 15;
/// Most writes that are lost together.
pub const MOST_LOST: usize = 60;

/// Stored items, shared by all processes.
pub struct Items {
    pub memory: Arc<MemoryTable>,
    /// The same items behind the limits of a table.
    metered: MeteredItems,
    hints: Hints,
    /// The items that the last writes replaced, oldest first.
    replaced: Mutex<VecDeque<(ItemKey, Option<Item>)>>,
    /// Processes that use the table.
    users: Mutex<Vec<Process>>,
}

impl Items {
    pub fn new(limits: TableLimits) -> Self {
        let memory = Arc::new(MemoryTable::default());
        let metered = MeteredItems::new(Arc::clone(&memory), limits);
        let (hints, replaced, users) = (Hints::default(), Mutex::default(), Mutex::default());
        Self { memory, metered, hints, replaced, users }
    }

    /// The table as `process` uses it.
    pub fn opened_by(
        self: &Arc<Self>,
        process: &Process,
        (store, deployed): (&Arc<Store>, &Arc<DeployedStack>),
    ) -> SimTable {
        let mut users = self.users.lock();
        users.retain(|user| !user.is_dead());
        users.push(process.clone());
        SimTable {
            process: process.clone(),
            items: Arc::clone(self),
            store: Arc::clone(store),
            deployed: Arc::clone(deployed),
        }
    }

    /// Loses the last `writes`. No process that uses the table survives it.
    pub fn lose(&self, sim: &Simulation, writes: usize) {
        for user in self.users.lock().drain(..) {
            user.kill();
        }
        let mut replaced = self.replaced.lock();
        for _ in 0..writes {
            let Some((key, before)) = replaced.pop_back() else { return };
            sim.event(format_args!("a write of {}/{} is lost", key.pk, key.sk));
            self.memory.restore(&key, before);
        }
    }

    fn note_replaced(&self, key: &ItemKey, before: Option<Item>) {
        let mut replaced = self.replaced.lock();
        replaced.push_back((key.clone(), before));
        if replaced.len() > MOST_LOST {
            replaced.pop_front();
        }
    }

    /// The item under `key`.
    pub async fn item(&self, key: &ItemKey) -> Option<Item> {
        self.memory.read(std::slice::from_ref(key)).await.ok()?.pop().flatten()
    }
}

/// The table as used by `process`.
pub struct SimTable {
    pub process: Process,
    pub items: Arc<Items>,
    pub store: Arc<Store>,
    pub deployed: Arc<DeployedStack>,
}

impl SimTable {
    async fn meet(&self) -> Result<(), TableError> {
        self.process.point(LATENCY_MS).await;
        let sim = self.process.sim();
        let throttled = sim.lasts(Fault::TableThrottled);
        if throttled && sim.mutant == Some(Mutant::ThrottlingIsFinal) {
            return Err(TableError::Rejected("too much at a time".to_owned()));
        }
        if throttled || sim.happens(Fault::TableFails) {
            return Err(TableError::Unavailable("simulated".to_owned()));
        }
        if !sim.happens(Fault::TableDenied) {
            return Ok(());
        }
        if sim.mutant == Some(Mutant::TableDenialIsFinal) {
            return Err(TableError::Rejected(DENIED.to_owned()));
        }
        // As in the adapter.
        Err(TableError::Unavailable(DENIED.to_owned()))
    }

    /// The items of `query`, page by page. Each page is outdated when it arrives. The adapter asks again for a page that
    /// fails, so faults are those of one request.
    async fn pages(&self, query: PageQuery) -> Result<Vec<(String, Item)>, TableError> {
        let mut found = Vec::new();
        let mut next = Some(query);
        self.meet().await?;
        while let Some(query) = next {
            let page = self.items.metered.page(self.process.sim().time.now(), &query);
            self.process.point(LATENCY_MS).await;
            // Reads have no limit of their rate here.
            let Some(served) = page else { break };
            let ItemPage { items, next: following } = served.answer;
            found.extend(items);
            next = following;
        }
        Ok(found)
    }

    /// Checks one applied write.
    async fn check(&self, key: &ItemKey, before: Option<&Item>, after: &Bytes) {
        let sim = self.process.sim();
        let before = before.map(|item| decode(key, &item.body));
        match (before, decode(key, after)) {
            (Some(Err(error)), _) | (_, Err(error)) => {
                sim.violated(format_args!("{key:?} cannot be read: {error}"));
            }
            (before, Ok(Stored::Bundle(bundle))) => {
                let before = match before {
                    Some(Ok(Stored::Bundle(before))) => Some(before),
                    _ => None,
                };
                sim.check(bundle_step(before.as_deref(), &bundle));
                self.check_commits(key, before.as_deref(), &bundle);
            }
            (before, Ok(Stored::Progress(progress))) => {
                let before = match before {
                    Some(Ok(Stored::Progress(before))) => Some(before),
                    _ => None,
                };
                sim.check(progress_step(before.as_deref(), &progress));
                self.store.runs.check(sim, &progress);
            }
            (_, Ok(Stored::Job(_) | Stored::Other)) => {}
        }
    }

    /// Invariant 5: a committed object exists, with the promised content.
    fn check_commits(&self, key: &ItemKey, before: Option<&Bundle>, after: &Bundle) {
        let Some((epoch, first)) = self.store.place_of(key) else { return };
        for (i, entry) in (0..).zip(&after.entries) {
            let known = before.and_then(|before| before.entry(i)).is_some();
            let Some(entry) =
                entry.as_ref().filter(|entry| !known && entry.outcome.kind == SplitKind::Object)
            else {
                continue;
            };
            let (attempt, nonce) = (entry.attempt, entry.nonce);
            let name = ChunkName { epoch, position: first + u32::from(i), attempt, nonce };
            if self.store.checksum(&name) != Some(entry.outcome.crc32c) {
                self.process.sim().violated(format_args!(
                    "invariant 5: {name:?} is committed, its object is not"
                ));
            }
        }
    }
}

/// Fields of items that the release before does not know: it drops them when it writes the item.
const LATER_FIELDS: [(&str, &str); 2] = [("JOB", "protocol"), ("SCALE", "worker_spoken")];

impl SimTable {
    /// `body` without the fields that a stack of the release before does not keep.
    fn kept_fields(&self, key: &ItemKey, body: Bytes) -> Bytes {
        let Some((_, field)) = LATER_FIELDS.iter().find(|(sk, _)| *sk == key.sk) else {
            return body;
        };
        if !self.deployed.drops_fields(self.process.kind()) {
            return body;
        }
        let mut item: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let dropped = item.as_object_mut().and_then(|fields| fields.remove(*field));
        if dropped.is_some() { Bytes::from(item.to_string()) } else { body }
    }
}

/// Whether the written item is a newly claimed bundle.
fn is_claimed(key: &ItemKey, body: &[u8]) -> bool {
    let stored = decode(key, body);
    matches!(stored, Ok(Stored::Bundle(bundle)) if bundle.is_held_by(bundle.owner))
}

#[async_trait]
impl Table for SimTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, TableError> {
        self.meet().await?;
        let sim = self.process.sim();
        let arrives = |(key, item)| self.items.hints.arrives(sim, key, item);
        let items = self.items.memory.read(keys).await;
        let items = items.map(|items| keys.iter().zip(items).map(arrives).collect());
        // Results are outdated when they arrive.
        self.process.point(LATENCY_MS).await;
        items.map(|items| mistakes::read(sim.mutant, keys, items))
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        self.meet().await?;
        let sim = self.process.sim();
        let admits = self.items.metered.admits_write(sim.time.now(), key, (&body, expires_at_s));
        if !admits && sim.happens(Fault::WriteThrottled) {
            return Err(TableError::Unavailable("simulated throttling".to_owned()));
        }
        if body.len() > ITEM_BYTES {
            sim.violated(format_args!("{key:?} is of {} bytes, which no item is", body.len()));
            return Err(TableError::Rejected("the item is too large".to_owned()));
        }
        let body = self.kept_fields(key, body);
        let before = self.items.item(key).await;
        let expected = match sim.mutant {
            Some(Mutant::WritesUnconditionally) => before.as_ref().map_or(0, |item| item.version),
            Some(Mutant::ClaimsUnseen) if expected == 0 && key.sk.starts_with("B#") => {
                before.as_ref().map_or(0, |item| item.version)
            }
            Some(Mutant::NamedUnseen) if self.items.hints.name(key) && is_claimed(key, &body) => {
                before.as_ref().map_or(0, |item| item.version)
            }
            _ => expected,
        };
        if !self.items.hints.note(sim, key, &body) {
            return Ok(WriteOutcome::Written);
        }
        let outcome = self.items.memory.write(key, expected, body.clone(), expires_at_s).await?;
        let written = outcome == WriteOutcome::Written;
        sim.event(format_args!("write {}/{} at {expected}: {written}", key.pk, key.sk));
        if written {
            self.check(key, before.as_ref(), &body).await;
            self.items.note_replaced(key, before);
        }
        self.process.point(LATENCY_MS).await;
        if written && sim.happens(Fault::WriteUnreported) {
            return Err(TableError::Unavailable("simulated lost answer".to_owned()));
        }
        if written && sim.happens(Fault::WriteMeetsItself) {
            if sim.mutant == Some(Mutant::ConflictsAreFailures) {
                return Err(TableError::Rejected("the conditional request failed".to_owned()));
            }
            return Ok(WriteOutcome::Conflict(self.items.item(key).await));
        }
        Ok(outcome)
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, Item)>, TableError> {
        let found = self.pages(PageQuery::range(pk, from, to)).await;
        let job = self.items.item(&inspect::progress_key(&self.store.ns, &self.store.job)).await;
        let mutant = self.process.sim().mutant;
        found.map(|found| mistakes::ranged(mutant, job.as_ref(), found))
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, Item)>, TableError> {
        self.pages(PageQuery::last(pk, limit)).await
    }
}
