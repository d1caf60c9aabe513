//! The object store as seen by one process.

use crate::{Fault, Mutant, Process, link::DENIED, scenario::Scenario, table::Items};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::inspect::{self, Stored};
use gristmill_model::splits::{
    collect::{ChunkName, Verdict},
    invariants::invariant_06_only_useless_objects_go,
    job::JobState,
    order::Ramp,
};
use gristmill_model::stored::keys;
use gristmill_model::wire::CacheEntry;
use gristmill_model::{BundleIndex, Epoch, JobName, Namespace, Position};
use gristmill_ports::{
    Clock as _, ItemKey, ObjectError, ObjectInfo, ObjectPath, Objects, PutOutcome,
    memory::MemoryObjects,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const LATENCY_MS: u64 = 120;
/// An hour, minus the largest difference of two wrong clocks.
const SILENT_MS: u64 = 2_300_000;

/// Stored objects, shared by all processes.
pub struct Store {
    pub memory: Arc<MemoryObjects>,
    pub ns: Namespace,
    pub job: JobName,
    /// Existing chunks by name, with their checksums.
    chunks: Arc<Mutex<BTreeMap<ChunkName, u32>>>,
    /// Shelves that a cache entry has named.
    published: Arc<Mutex<BTreeSet<String>>>,
    /// Keys of objects deleted by an outsider.
    vanished: Arc<Mutex<BTreeSet<String>>>,
    /// Division of epochs into bundles, once known.
    ramp: Mutex<Option<Ramp>>,
    scenario: Scenario,
}

impl Store {
    pub fn new(ns: Namespace, job: JobName, scenario: Scenario) -> Self {
        Self {
            memory: Arc::default(),
            ns,
            job,
            chunks: Arc::default(),
            published: Arc::default(),
            vanished: Arc::default(),
            ramp: Mutex::default(),
            scenario,
        }
    }

    /// The same store as seen by another job.
    pub fn of(&self, job: JobName, scenario: Scenario) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            ns: self.ns.clone(),
            job,
            chunks: Arc::clone(&self.chunks),
            published: Arc::clone(&self.published),
            vanished: Arc::clone(&self.vanished),
            ramp: Mutex::default(),
            scenario,
        }
    }

    fn chunks(&self) -> MutexGuard<'_, BTreeMap<ChunkName, u32>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn published(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn vanished(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.vanished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is much to fetch.
    pub fn is_large(&self) -> bool {
        self.scenario.dies_at.is_some()
    }

    /// Whether a split kills its workers.
    pub fn has_killer(&self) -> bool {
        self.scenario.killer
    }

    /// Batch that kills its first trainer.
    pub fn dies_at(&self) -> Option<u64> {
        self.scenario.dies_at
    }

    pub fn set_ramp(&self, ramp: Ramp) {
        *self.ramp.lock().unwrap_or_else(PoisonError::into_inner) = Some(ramp);
    }

    /// Epoch and first position of a bundle's item; `None` for other items, those of other jobs, and while
    /// indexing.
    pub fn place_of(&self, key: &ItemKey) -> Option<(Epoch, Position)> {
        if key.pk.split('#').nth(3)? != self.job.as_str() {
            return None;
        }
        let (epoch, bundle) = inspect::bundle_of(key)?;
        let ramp = self.ramp.lock().unwrap_or_else(PoisonError::into_inner);
        let ramp = ramp.as_ref().filter(|_| epoch != Epoch::MAX)?;
        Some((epoch, ramp.positions(bundle).start))
    }

    /// The bundle of a chunk, and the bundle's first position.
    fn bundle_of(&self, name: &ChunkName) -> Option<(BundleIndex, Position)> {
        let ramp = self.ramp.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.chunks().get(name).copied()
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
            self.published().insert(entry.shelf);
        }
        if let Some(name) = self.chunk_name(&path.key)
            && outcome == PutOutcome::Created
        {
            let checksum = gristmill_chunk::checksum(&body).unwrap_or_default();
            self.chunks().insert(name, checksum);
        }
        Ok(outcome)
    }
}

/// The store as used by `process`.
pub struct SimObjects {
    pub process: Process,
    pub store: Arc<Store>,
    pub items: Arc<Items>,
}

impl SimObjects {
    async fn get_any(
        &self,
        path: &ObjectPath,
        get: impl Future<Output = Result<Bytes, ObjectError>>,
    ) -> Result<Bytes, ObjectError> {
        self.process.point(LATENCY_MS).await;
        let world = self.process.world();
        if world.happens(Fault::GetFails) || world.lasts(Fault::StoreThrottled) {
            return Err(unavailable(path));
        }
        if world.happens(Fault::ObjectDenied) {
            return Err(self.denied(path));
        }
        if keys::is_chunk(&path.key) && world.happens(Fault::ObjectVanishes) {
            world.event(format_args!("{path} vanishes"));
            self.store.vanished().insert(path.key.clone());
            self.store.memory.delete(&path.bucket, std::slice::from_ref(&path.key)).await?;
        }
        let got = get.await;
        world.event(format_args!("get {path}: {}", got.is_ok()));
        self.process.point(LATENCY_MS).await;
        // Only chunks: everything else is small, and protected by the transport.
        if !keys::is_chunk(&path.key) {
            return got;
        }
        if world.happens(Fault::GetMissing) {
            return Err(ObjectError::NotFound(path.clone()));
        }
        if matches!(got, Err(ObjectError::NotFound(_)))
            && !self.store.vanished().contains(&path.key)
        {
            self.process.misses();
        }
        let got = got?;
        if !got.is_empty() && world.happens(Fault::GetCorrupt) {
            let mut bytes = got.to_vec();
            let at = world.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << world.below(8);
            return Ok(bytes.into());
        }
        Ok(got)
    }

    fn denied(&self, path: &ObjectPath) -> ObjectError {
        match self.process.world().mutant {
            Some(Mutant::DenialIsFinal) => ObjectError::Rejected(format!("{path}: {DENIED}")),
            _ => ObjectError::Denied(format!("{path}: {DENIED}")),
        }
    }

    /// Invariant 6: a deleted object is useless.
    async fn check_deletion(&self, name: &ChunkName) {
        let Store { ns, job, .. } = &*self.store;
        let Some((bundle, first)) = self.store.bundle_of(name) else { return };
        let decoded = async |key: ItemKey| {
            let item = self.items.item(&key).await?;
            inspect::decode(&key, &item.body).ok()
        };
        let stored = self.items.item(&inspect::job_key(ns, job)).await;
        let home = stored.and_then(|item| inspect::home(&item.body, bundle));
        let bundle = match home {
            Some(home) => decoded(inspect::bundle_key(ns, job, home, name.epoch, bundle)).await,
            None => None,
        };
        let bundle = match bundle {
            Some(Stored::Bundle(bundle)) => Some(bundle),
            _ => None,
        };
        let consumers = match decoded(inspect::consumer_key(ns, job)).await {
            Some(Stored::Consumer(consumer)) => vec![consumer],
            _ => Vec::new(),
        };
        // Objects of an ended job are useless after its trainer has been silent for an hour.
        if let Some(Stored::Job(state)) = decoded(inspect::job_key(ns, job)).await {
            let heartbeat_ms = consumers.first().map_or(0, |consumer| consumer.heartbeat_ms);
            let silent_ms = self.process.clock().now_ms().saturating_sub(heartbeat_ms);
            if state.is_ended() && (state != JobState::Done || silent_ms > SILENT_MS) {
                return;
            }
        }
        let verdict = Verdict::DeletePassed;
        self.process.world().check(invariant_06_only_useless_objects_go(
            name,
            verdict,
            bundle.as_deref(),
            first,
            &consumers,
        ));
    }

    /// The bug of deleting a cache entry before its objects.
    async fn delete_entry_of(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        let prefix = keys::cache_prefix(&self.store.ns);
        let of = |key: &String| key.strip_prefix(&prefix)?.split('/').next()?.parse().ok();
        if let Some(fingerprint) = keys.iter().find_map(of) {
            let entry = keys::cache_entry(&self.store.ns, fingerprint);
            self.store.memory.delete(bucket, &[entry]).await?;
            self.process.point(LATENCY_MS).await;
        }
        Ok(())
    }

    /// The path, or the one that this simulation's bug uses instead.
    fn place(&self, path: &ObjectPath) -> ObjectPath {
        let stem = || path.key.rsplit_once('/').map_or("", |(stem, _)| stem);
        let chunk = self.store.chunk_name(&path.key);
        let key = match (self.process.world().mutant, chunk) {
            (Some(Mutant::KeysWithoutAttempt), Some(name)) => {
                let nonce = gristmill_model::Nonce([0; 8]);
                keys::chunk(&format!("{}/", stem()), name.position, 0, nonce)
            }
            (Some(Mutant::CachedSplitsShareKeys), None) if keys::is_chunk(&path.key) => {
                keys::cached_split(&format!("{}/", stem()), 0)
            }
            _ => return path.clone(),
        };
        ObjectPath::new(&path.bucket, key)
    }
}

fn unavailable(path: &ObjectPath) -> ObjectError {
    ObjectError::Unavailable(format!("{path}: simulated"))
}

#[async_trait]
impl Objects for SimObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        let path = &self.place(path);
        if let Some(chunk) = self.store.chunk_name(&path.key) {
            if self.store.scenario.kills(chunk.epoch, chunk.position) {
                self.process.kill();
            }
            let split = (chunk.epoch, chunk.position);
            self.process.world().count_offered(split, chunk.attempt);
        }
        self.process.point(LATENCY_MS).await;
        let world = self.process.world();
        if keys::is_chunk(&path.key) {
            world.time.sleep(Duration::from_millis(self.store.scenario.split_ms)).await;
        }
        let throttled = world.lasts(Fault::StoreThrottled) || world.lasts(Fault::StoreFull);
        if throttled && world.mutant == Some(Mutant::FullIsFinal) {
            return Err(ObjectError::Rejected(format!("{path}: no room")));
        }
        if throttled || world.happens(Fault::PutFails) {
            return Err(unavailable(path));
        }
        if world.happens(Fault::ObjectDenied) {
            return Err(self.denied(path));
        }
        if world.happens(Fault::PutLate) {
            let (store, time) = (Arc::clone(&self.store), Arc::clone(&world.time));
            let (path, put_id, late) =
                (path.clone(), put_id.to_owned(), world.between_ms(1, 3_600_000));
            let failed = unavailable(&path);
            tokio::spawn(async move {
                time.sleep(late).await;
                let _ = store.apply_put(&path, body, &put_id).await;
            });
            return Err(failed);
        }
        let outcome = self.store.apply_put(path, body, put_id).await;
        world.event(format_args!("put {path}: {outcome:?}"));
        self.process.point(LATENCY_MS).await;
        match world.happens(Fault::PutUnreported) {
            true => Err(unavailable(path)),
            false => outcome,
        }
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        let path = &self.place(path);
        self.get_any(path, self.store.memory.get(path)).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        let path = &self.place(path);
        self.get_any(path, self.store.memory.get_range(path, range, etag)).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.process.point(LATENCY_MS).await;
        let world = self.process.world();
        if world.happens(Fault::GetFails) || world.lasts(Fault::StoreThrottled) {
            return Err(unavailable(&ObjectPath::new(bucket, prefix)));
        }
        if world.happens(Fault::ObjectDenied) {
            return Err(self.denied(&ObjectPath::new(bucket, prefix)));
        }
        let found = self.store.memory.list(bucket, prefix).await;
        self.process.point(LATENCY_MS).await;
        found
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.process.point(LATENCY_MS).await;
        let world = self.process.world();
        if world.lasts(Fault::StoreThrottled) {
            return Err(unavailable(&ObjectPath::new(bucket, "throttled")));
        }
        if world.mutant == Some(Mutant::EntryGoesFirst) {
            self.delete_entry_of(bucket, keys).await?;
        }
        let half = world.happens(Fault::DeleteHalf);
        let deleted = if half { &keys[..keys.len() / 2] } else { keys };
        for key in deleted {
            world.event(format_args!("delete {key}"));
            let Some(name) = self.store.chunk_name(key) else { continue };
            // A deleted object may be deleted again by a process that listed it before.
            if self.store.checksum(&name).is_some() {
                self.check_deletion(&name).await;
            }
            self.store.chunks().remove(&name);
        }
        self.store.memory.delete(bucket, deleted).await?;
        self.process.point(LATENCY_MS).await;
        match half {
            true => Err(unavailable(&ObjectPath::new(bucket, "half"))),
            false => Ok(()),
        }
    }
}
