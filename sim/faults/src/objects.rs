//! The simulated object store: its objects, and the chunks among them.

mod access;

use crate::{
    ranked::RunRegistry,
    scenario::{CachePosition, FaultScenario},
};
use bytes::Bytes;
use gristmill_coordinator::inspect;
use gristmill_model::splits::{collect::ChunkName, order::BundleDivision};
use gristmill_model::stored::keys;
use gristmill_model::wire::CacheEntry;
use gristmill_model::{BundleIndex, Epoch, JobName, Namespace, Position};
use gristmill_ports::{
    ItemKey, ObjectError, ObjectPath, ObjectStore, PutOutcome, memory::MemoryObjects,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use access::SimObjects;

/// Stored objects, shared by all processes.
pub struct SharedObjects {
    pub memory: Arc<MemoryObjects>,
    pub ns: Namespace,
    pub job: JobName,
    /// Existing chunks by name, with their checksums.
    chunks: Arc<Mutex<BTreeMap<ChunkName, u32>>>,
    /// Shelves that a cache entry has named.
    pub published: Arc<Mutex<BTreeSet<String>>>,
    /// Keys of objects deleted by an outsider.
    pub vanished: Arc<Mutex<BTreeSet<String>>>,
    /// Division of epochs into bundles, once known.
    ramp: Mutex<Option<BundleDivision>>,
    /// Runs of several ranks.
    pub runs: RunRegistry,
    scenario: FaultScenario,
}

impl SharedObjects {
    pub fn new(ns: Namespace, job: JobName, scenario: FaultScenario) -> Self {
        Self {
            memory: Arc::default(),
            ns,
            job,
            chunks: Arc::default(),
            published: Arc::default(),
            vanished: Arc::default(),
            ramp: Mutex::default(),
            runs: RunRegistry::default(),
            scenario,
        }
    }

    /// The same store as seen by another job.
    pub fn with_job(&self, job: JobName, scenario: FaultScenario) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            ns: self.ns.clone(),
            job,
            chunks: Arc::clone(&self.chunks),
            published: Arc::clone(&self.published),
            vanished: Arc::clone(&self.vanished),
            ramp: Mutex::default(),
            runs: RunRegistry::default(),
            scenario,
        }
    }

    /// Whether there is much to fetch.
    pub fn is_large(&self) -> bool {
        self.scenario.dies_at.is_some()
    }

    /// Whether the job stores to a cache.
    pub fn is_cached(&self) -> bool {
        self.scenario.cached != CachePosition::Nowhere
    }

    /// Whether a split kills its workers.
    pub fn has_poison(&self) -> bool {
        self.scenario.poison
    }

    /// Batch that kills its first trainer.
    pub fn dies_at(&self) -> Option<u64> {
        self.scenario.dies_at
    }

    pub fn set_ramp(&self, ramp: BundleDivision) {
        *self.ramp.lock() = Some(ramp);
    }

    /// Epoch and first position of a bundle's item; `None` for other items, those of other jobs, and while
    /// indexing.
    pub fn place_of(&self, key: &ItemKey) -> Option<(Epoch, Position)> {
        if key.pk.split('#').nth(3)? != self.job.as_str() {
            return None;
        }
        let (epoch, bundle) = inspect::bundle_of(key)?;
        let ramp = self.ramp.lock();
        let ramp = ramp.as_ref().filter(|_| epoch != Epoch::MAX)?;
        Some((epoch, ramp.positions(bundle).start))
    }

    /// The bundle of a chunk, and the bundle's first position.
    fn bundle_of(&self, name: &ChunkName) -> Option<(BundleIndex, Position)> {
        let ramp = self.ramp.lock();
        let ramp = ramp.as_ref()?;
        let bundle = ramp.bundle_of(name.position)?;
        Some((bundle, ramp.positions(bundle).start))
    }

    /// The chunk named by a key.
    pub fn chunk_name(&self, key: &str) -> Option<ChunkName> {
        if let Some(rest) = key.strip_prefix(&keys::cache_prefix(&self.ns)) {
            // On a shelf: stored by the first epoch.
            let (bundle, _) = key.rsplit_once('/').filter(|_| rest.contains("/b"))?;
            let (position, attempt, nonce) = keys::parse_chunk(&format!("{bundle}/"), key)?;
            return Some(ChunkName { epoch: 0, position, attempt, nonce });
        }
        let rest = key.strip_prefix(&keys::job_prefix(&self.ns, &self.job))?;
        let mut parts = rest.split('/');
        let epoch = parts.next()?.strip_prefix('e')?.parse().ok()?;
        let bundle = parts.next()?.strip_prefix('b')?.parse().ok()?;
        let prefix = keys::bundle_prefix(&self.ns, &self.job, epoch, bundle);
        let (position, attempt, nonce) = keys::parse_chunk(&prefix, key)?;
        Some(ChunkName { epoch, position, attempt, nonce })
    }

    /// Checksum of a chunk, if it exists.
    pub fn checksum(&self, name: &ChunkName) -> Option<u32> {
        self.chunks.lock().get(name).copied()
    }

    async fn apply_put(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        let outcome = self.memory.put_if_absent(path, body.clone(), put_id).await?;
        if outcome == PutOutcome::Created
            && keys::parse_cache_entry(&self.ns, &path.key).is_some()
            && let Ok(entry) = serde_json::from_slice::<CacheEntry>(&body)
        {
            self.published.lock().insert(entry.shelf);
        }
        if let Some(name) = self.chunk_name(&path.key)
            && outcome == PutOutcome::Created
        {
            let checksum = gristmill_chunk::checksum(&body).unwrap_or_default();
            self.chunks.lock().insert(name, checksum);
        }
        Ok(outcome)
    }
}
