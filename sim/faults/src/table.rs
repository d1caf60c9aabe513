//! The table as seen by one process: slow, sometimes failing, never inconsistent, except for hints: they may be outdated,
//! a mixture of two versions, or gone. Every write is checked against the invariants of the split protocol.

use crate::{
    FaultKind, FaultSimulation, Mutant, SimProcess, coordinator::DENIED, mutant,
    objects::SharedObjects, releases::DeployedStack,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::inspect::{self, DecodedItem, decode};
use gristmill_model::{
    BundleIndex, Epoch,
    splits::{
        Bundle, SplitKind,
        collect::ChunkName,
        invariants::{bundle_step, progress_step},
    },
};
use gristmill_ports::{
    ItemKey, Table, TableError, TableItem, WriteOutcome,
    limits::ITEM_BYTES,
    memory::{ItemPage, MemoryTable, MeteredItems, PageQuery, TableLimits},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

const LATENCY_MS: u64 = 15;
/// Most writes that are lost together.
pub const MOST_LOST: usize = 60;

/// Stored items, shared by all processes.
pub struct SharedItems {
    pub memory: Arc<MemoryTable>,
    /// The same items behind the limits of a table.
    metered: MeteredItems,
    hints: HintHistory,
    /// The items that the last writes replaced, oldest first.
    replaced: Mutex<VecDeque<(ItemKey, Option<TableItem>)>>,
    /// Processes that use the table.
    users: Mutex<Vec<SimProcess>>,
}

impl SharedItems {
    /// An empty table with the throughput `limits`.
    pub fn new(limits: TableLimits) -> Self {
        let memory = Arc::new(MemoryTable::default());
        let metered = MeteredItems::new(Arc::clone(&memory), limits);
        let (hints, replaced, users) = (HintHistory::default(), Mutex::default(), Mutex::default());
        Self { memory, metered, hints, replaced, users }
    }

    /// The table as `process` uses it.
    pub fn opened_by(
        self: &Arc<Self>,
        process: &SimProcess,
        store: &Arc<SharedObjects>,
        deployed: &Arc<DeployedStack>,
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
    pub fn lose(&self, sim: &FaultSimulation, writes: usize) {
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

    fn note_replaced(&self, key: &ItemKey, before: Option<TableItem>) {
        let mut replaced = self.replaced.lock();
        replaced.push_back((key.clone(), before));
        if replaced.len() > MOST_LOST {
            replaced.pop_front();
        }
    }

    /// The item under `key`.
    pub async fn item(&self, key: &ItemKey) -> Option<TableItem> {
        self.memory.read(std::slice::from_ref(key)).await.ok()?.pop().flatten()
    }
}

/// The table as used by `process`.
pub struct SimTable {
    pub process: SimProcess,
    pub items: Arc<SharedItems>,
    pub store: Arc<SharedObjects>,
    pub deployed: Arc<DeployedStack>,
}

impl SimTable {
    async fn meet(&self) -> Result<(), TableError> {
        self.process.point(LATENCY_MS).await;
        let sim = &self.process.sim;
        let throttled = sim.lasts(FaultKind::TableThrottled);
        if throttled && sim.mutant == Some(Mutant::ThrottlingIsFinal) {
            return Err(TableError::Rejected("too much at a time".to_owned()));
        }
        if throttled || sim.happens(FaultKind::TableFails) {
            return Err(TableError::Unavailable("simulated".to_owned()));
        }
        if !sim.happens(FaultKind::TableDenied) {
            return Ok(());
        }
        if sim.mutant == Some(Mutant::TableDenialIsFinal) {
            return Err(TableError::Rejected(DENIED.to_owned()));
        }
        // As in the adapter.
        Err(TableError::Unavailable(DENIED.to_owned()))
    }

    /// The items that `query` finds, page by page. Each page is outdated when it arrives. The adapter asks again for a page that
    /// fails, so faults are those of one request.
    async fn pages(&self, query: PageQuery) -> Result<Vec<(String, TableItem)>, TableError> {
        let mut found = Vec::new();
        let mut next = Some(query);
        self.meet().await?;
        while let Some(query) = next {
            let page = self.items.metered.page(self.process.sim.time.now(), &query);
            self.process.point(LATENCY_MS).await;
            // Reads have no limit of their rate here.
            let Some(served) = page else { break };
            let ItemPage { items, next: following } = served.answer;
            found.extend(items);
            next = following;
        }
        Ok(found)
    }

    async fn check(&self, key: &ItemKey, before: Option<&TableItem>, after: &Bytes) {
        let sim = &self.process.sim;
        let before = before.map(|item| decode(key, &item.body));
        match (before, decode(key, after)) {
            (Some(Err(error)), _) | (_, Err(error)) => {
                sim.violated(format_args!("{key:?} cannot be read: {error}"));
            }
            (before, Ok(DecodedItem::Bundle(bundle))) => {
                let before = match before {
                    Some(Ok(DecodedItem::Bundle(before))) => Some(before),
                    _ => None,
                };
                sim.check(bundle_step(before.as_deref(), &bundle));
                self.check_commits(key, before.as_deref(), &bundle);
            }
            (before, Ok(DecodedItem::Progress(progress))) => {
                let before = match before {
                    Some(Ok(DecodedItem::Progress(before))) => Some(before),
                    _ => None,
                };
                sim.check(progress_step(before.as_deref(), &progress));
                self.store.runs.check(sim, &progress);
            }
            (_, Ok(DecodedItem::Job(_) | DecodedItem::Other)) => {}
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
                self.process.sim.violated(format_args!(
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
        if !self.deployed.drops_fields(self.process.kind) {
            return body;
        }
        let mut item: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let dropped = item.as_object_mut().and_then(|fields| fields.remove(*field));
        if dropped.is_some() { Bytes::from(item.to_string()) } else { body }
    }
}

fn is_claimed(key: &ItemKey, body: &[u8]) -> bool {
    let stored = decode(key, body);
    matches!(stored, Ok(DecodedItem::Bundle(bundle)) if bundle.is_held_by(bundle.owner))
}

#[async_trait]
impl Table for SimTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        self.meet().await?;
        let sim = &self.process.sim;
        let arrives = |(key, item)| self.items.hints.arrives(sim, key, item);
        let items = self.items.memory.read(keys).await;
        let items = items.map(|items| keys.iter().zip(items).map(arrives).collect());
        // Results are outdated when they arrive.
        self.process.point(LATENCY_MS).await;
        items.map(|items| mutant::read(sim.mutant, keys, items))
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        self.meet().await?;
        let sim = &self.process.sim;
        let admits = self.items.metered.admits_write(sim.time.now(), key, &body, expires_at_s);
        if !admits && sim.happens(FaultKind::WriteThrottled) {
            return Err(TableError::Unavailable("simulated throttling".to_owned()));
        }
        if body.len() > ITEM_BYTES {
            sim.violated(format_args!("{key:?} is of {} bytes, which no item is", body.len()));
            return Err(TableError::Rejected("the item is too large".to_owned()));
        }
        let body = mutant::written(sim.mutant, key, self.kept_fields(key, body));
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
        if written && sim.happens(FaultKind::WriteUnreported) {
            return Err(TableError::Unavailable("simulated lost answer".to_owned()));
        }
        if written && sim.happens(FaultKind::WriteMeetsItself) {
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
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        let found = self.pages(PageQuery::range(pk, from, to)).await;
        let job = self.items.item(&inspect::progress_key(&self.store.ns, &self.store.job)).await;
        let mutant = self.process.sim.mutant;
        found.map(|found| mutant::ranged(mutant, job.as_ref(), found))
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.pages(PageQuery::last(pk, limit)).await
    }
}

/// Sort key of the hints that scans write.
const WINDOW_HINTS: &str = "FRONTIER";
/// Earlier versions kept for faults.
const REMEMBERED: usize = 16;

/// Earlier hints of each job.
#[derive(Default)]
pub struct HintHistory(Mutex<BTreeMap<String, Vec<Bytes>>>);

impl HintHistory {
    /// Records a written hint. Returns whether to write it: one bug writes only the first.
    pub fn note(&self, sim: &FaultSimulation, key: &ItemKey, body: &Bytes) -> bool {
        if key.sk != WINDOW_HINTS {
            return true;
        }
        let mut hints = self.0.lock();
        let earlier = hints.entry(key.pk.clone()).or_default();
        earlier.push(body.clone());
        let excess = earlier.len().saturating_sub(REMEMBERED);
        earlier.drain(..excess);
        sim.mutant != Some(Mutant::LooksOnce) || earlier.len() == 1
    }

    /// Whether a hint names the bundle under `key` as released.
    pub fn name(&self, key: &ItemKey) -> bool {
        let Some(bundle) = inspect::bundle_of(key) else { return false };
        let hints = self.0.lock();
        let of_job = |(pk, _): &(&String, _)| key.pk.starts_with(&format!("{pk}#"));
        let mut named = hints.iter().filter(of_job).flat_map(|(_, hints)| hints);
        named.any(|hint| names(hint).contains(&bundle))
    }

    /// The item as it arrives.
    pub fn arrives(
        &self,
        sim: &FaultSimulation,
        key: &ItemKey,
        item: Option<TableItem>,
    ) -> Option<TableItem> {
        let item = item?;
        if key.sk != WINDOW_HINTS {
            return Some(item);
        }
        if sim.happens(FaultKind::HintLost) {
            return None;
        }
        let stale = sim.happens(FaultKind::HintStale);
        let torn = sim.happens(FaultKind::HintTorn);
        if !stale && !torn {
            return Some(item);
        }
        let hints = self.0.lock();
        let earlier = hints.get(&key.pk).cloned().unwrap_or_default();
        drop(hints);
        let chosen = earlier.get(sim.below(earlier.len() as u64) as usize);
        let Some(earlier) = chosen else { return Some(item) };
        let body = if torn {
            mixed(sim, &item.body, earlier).unwrap_or_else(|| earlier.clone())
        } else {
            earlier.clone()
        };
        Some(TableItem { body, ..item })
    }
}

/// The bundles named by a hint.
fn names(hint: &[u8]) -> Vec<(Epoch, BundleIndex)> {
    let Ok(mut hint) = serde_json::from_slice::<Map<String, Value>>(hint) else {
        return Vec::new();
    };
    let returned = hint.remove("returned").map(serde_json::from_value);
    returned.and_then(Result::ok).unwrap_or_default()
}

/// A mixture: each field from one of the two.
fn mixed(sim: &FaultSimulation, one: &[u8], other: &[u8]) -> Option<Bytes> {
    let other: Map<String, Value> = serde_json::from_slice(other).ok()?;
    let mut mixed: Map<String, Value> = serde_json::from_slice(one).ok()?;
    for (name, value) in other {
        if sim.below(2) == 0 {
            mixed.insert(name, value);
        }
    }
    serde_json::to_vec(&mixed).ok().map(Bytes::from)
}
