//! The simulated object store: its objects, the chunks among them, its faults, and how large objects count in the modelled
//! memory.

use crate::{
    FaultKind, Mutant, SimProcess, coordinator::DENIED, ranked::RunRegistry,
    scenario::FaultScenario, spending::RealSpending, table::SharedItems,
};
use async_trait::async_trait;
use bytes::Bytes;
use fastrand::Rng;
use gristmill_coordinator::inspect::{self, DecodedItem};
use gristmill_model::{
    BundleIndex, Epoch, JobName, Namespace, Position,
    splits::{
        JobProgress, ObjectSizes,
        collect::{ChunkName, CollectionDecision},
        invariants::invariant_06_only_useless_objects_go,
        job::JobState,
        order::BundleDivision,
    },
    stored::keys,
    wire::CacheEntry,
};
use gristmill_ports::{
    Clock as _, ItemKey, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    memory::MemoryObjects,
};
use gristmill_runner::ComputeMode;
use gristmill_stream::{JobStatistics, PrefetchMemory};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

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
    division: Mutex<Option<BundleDivision>>,
    /// Runs of several ranks.
    pub runs: RunRegistry,
    /// The cost of the job's workers.
    pub spending: RealSpending,
    pub scenario: FaultScenario,
}

impl SharedObjects {
    /// An empty store for `job`.
    pub fn new(ns: Namespace, job: JobName, scenario: FaultScenario) -> Self {
        Self {
            memory: Arc::default(),
            ns,
            job,
            chunks: Arc::default(),
            published: Arc::default(),
            vanished: Arc::default(),
            division: Mutex::default(),
            runs: RunRegistry::default(),
            spending: RealSpending::default(),
            scenario,
        }
    }

    /// The same store as seen by another job.
    pub fn with_job(&self, job: JobName, scenario: FaultScenario) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            chunks: Arc::clone(&self.chunks),
            published: Arc::clone(&self.published),
            vanished: Arc::clone(&self.vanished),
            ..Self::new(self.ns.clone(), job, scenario)
        }
    }

    /// Sets the division of splits into bundles, by which keys of objects are checked.
    pub fn set_division(&self, division: BundleDivision) {
        *self.division.lock() = Some(division);
    }

    /// Epoch and first position of a bundle's item; `None` for other items, those of other jobs, and while
    /// indexing.
    pub fn place_of(&self, key: &ItemKey) -> Option<(Epoch, Position)> {
        if key.pk.split('#').nth(3)? != self.job.as_str() {
            return None;
        }
        let (epoch, bundle) = inspect::bundle_of(key)?;
        let division = self.division.lock();
        let division = division.as_ref().filter(|_| epoch != Epoch::MAX)?;
        Some((epoch, division.positions(bundle).start))
    }

    /// The bundle of a chunk, and the bundle's first position.
    fn bundle_of(&self, name: &ChunkName) -> Option<(BundleIndex, Position)> {
        let division = self.division.lock();
        let division = division.as_ref()?;
        let bundle = division.bundle_of(name.position)?;
        Some((bundle, division.positions(bundle).start))
    }

    /// The chunk named by a key.
    pub fn chunk_name(&self, key: &str) -> Option<ChunkName> {
        if let Some(rest) = key.strip_prefix(&keys::cache_prefix(&self.ns)) {
            // Below a cache prefix: stored by the first epoch.
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
            self.published.lock().insert(entry.cache_prefix);
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

const LATENCY_MS: u64 = 120;
/// An hour, minus the largest difference of two wrong clocks.
const SILENT_MS: u64 = 2_300_000;

/// The store as used by `process`.
pub struct SimObjects {
    pub process: SimProcess,
    pub store: Arc<SharedObjects>,
    pub items: Arc<SharedItems>,
}

impl SimObjects {
    async fn get_any(
        &self,
        path: &ObjectPath,
        get: impl Future<Output = Result<Bytes, ObjectError>>,
    ) -> Result<Bytes, ObjectError> {
        self.process.point(LATENCY_MS).await;
        let sim = &self.process.sim;
        if sim.happens(FaultKind::GetFails)
            || sim.lasts(FaultKind::StoreThrottled)
            || sim.is_bucket_crowded(&path.bucket)
        {
            return Err(unavailable(path));
        }
        if sim.happens(FaultKind::ObjectDenied) {
            return Err(self.denied(path));
        }
        if keys::is_chunk(&path.key) && sim.happens(FaultKind::ObjectVanishes) {
            sim.event(format_args!("{path} vanishes"));
            self.store.vanished.lock().insert(path.key.clone());
            self.store.memory.delete(&path.bucket, std::slice::from_ref(&path.key)).await?;
        }
        if is_made_again(&path.key) && sim.happens(FaultKind::ObjectDamaged) {
            self.store.memory.rewrite(path, |bytes| self.damaged(path, bytes));
        }
        let got = get.await;
        sim.event(format_args!("get {path}: {}", got.is_ok()));
        self.process.point(LATENCY_MS).await;
        if got.is_ok()
            && path.key.starts_with(&keys::cache_prefix(&self.store.ns))
            && keys::is_chunk(&path.key)
        {
            sim.note(|counts| counts.cache_reads += 1);
        }
        // Only chunks: everything else is small, and protected by the transport.
        if !keys::is_chunk(&path.key) {
            return got;
        }
        if sim.happens(FaultKind::GetMissing) {
            return Err(ObjectError::NotFound(path.clone()));
        }
        // Workers look in a cache for what may not be there.
        let of_job = path.key.starts_with(&keys::job_prefix(&self.store.ns, &self.store.job));
        if matches!(got, Err(ObjectError::NotFound(_)))
            && of_job
            && !self.store.vanished.lock().contains(&path.key)
        {
            self.process.misses();
        }
        let got = got?;
        if !got.is_empty() && sim.happens(FaultKind::GetCorrupt) {
            let mut bytes = got.to_vec();
            let at = sim.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << sim.below(8);
            return Ok(bytes.into());
        }
        Ok(got)
    }

    /// `bytes` with one changed bit, or without their end.
    fn damaged(&self, path: &ObjectPath, mut bytes: Vec<u8>) -> Vec<u8> {
        let sim = &self.process.sim;
        let at = sim.below(bytes.len() as u64) as usize;
        match (bytes.get_mut(at), sim.below(4)) {
            (Some(byte), 1..) => *byte ^= 1 << sim.below(8),
            _ => bytes.truncate(at),
        }
        sim.event(format_args!("{path} is damaged at byte {at}"));
        bytes
    }

    fn denied(&self, path: &ObjectPath) -> ObjectError {
        match self.process.sim.mutant {
            Some(Mutant::DenialIsFinal) => ObjectError::Rejected(format!("{path}: {DENIED}")),
            _ => ObjectError::Denied(format!("{path}: {DENIED}")),
        }
    }

    /// Invariant 6: a deleted object is useless.
    async fn check_deletion(&self, name: &ChunkName) {
        let SharedObjects { ns, job, .. } = &*self.store;
        let Some((bundle, first)) = self.store.bundle_of(name) else { return };
        let decoded = async |key: ItemKey| {
            let item = self.items.item(&key).await?;
            inspect::decode(&key, &item.body).ok()
        };
        let stored = self.items.item(&inspect::job_key(ns, job)).await;
        // A table that has lost the job's record names none of its objects.
        if stored.is_none() && self.process.sim.count(&[FaultKind::WritesLost]) > 0 {
            return;
        }
        let partition = stored.and_then(|item| inspect::partition(&item.body, bundle));
        let bundle = match partition {
            Some(partition) => {
                decoded(inspect::bundle_key(ns, job, partition, name.epoch, bundle)).await
            }
            None => None,
        };
        let bundle = match bundle {
            Some(DecodedItem::Bundle(bundle)) => Some(bundle),
            _ => None,
        };
        let progress = match decoded(inspect::progress_key(ns, job)).await {
            Some(DecodedItem::Progress(progress)) => vec![*progress],
            _ => Vec::new(),
        };
        // A run that began behind the horizon computes again what is deleted there.
        let needed = |of: &JobProgress| JobProgress {
            durable_place: of.durable_place.max(of.collected_place),
            ..*of
        };
        let progress: Vec<_> = progress.iter().map(needed).collect();
        // Objects of an ended job are useless after its trainer has been silent for an hour.
        if let Some(DecodedItem::Job(state)) = decoded(inspect::job_key(ns, job)).await {
            let heartbeat_ms = progress.first().map_or(0, |progress| progress.heartbeat_ms);
            let silent_ms = self.process.clock().now_ms().saturating_sub(heartbeat_ms);
            if state.is_ended() && (state != JobState::Done || silent_ms > SILENT_MS) {
                return;
            }
        }
        let verdict = CollectionDecision::DeletePassed;
        self.process.sim.check(invariant_06_only_useless_objects_go(
            name,
            verdict,
            bundle.as_deref(),
            first,
            &progress,
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
        let key = match (self.process.sim.mutant, chunk) {
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

/// Whether an object that is missing or damaged is made again.
fn is_made_again(key: &str) -> bool {
    keys::is_chunk(key) || keys::is_index(key)
}

fn unavailable(path: &ObjectPath) -> ObjectError {
    ObjectError::Unavailable(format!("{path}: simulated"))
}

#[async_trait]
impl ObjectStore for SimObjects {
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
            self.process.sim.count_offered(split, chunk.attempt);
            self.store.spending.offer(&self.process.sim, &path.key);
        }
        self.process.point(LATENCY_MS).await;
        let sim = &self.process.sim;
        if keys::is_chunk(&path.key) {
            sim.time.sleep(Duration::from_millis(self.store.scenario.split_ms)).await;
        }
        let (throttled, full) =
            (sim.lasts(FaultKind::StoreThrottled), sim.lasts(FaultKind::StoreFull));
        if (throttled || full) && sim.mutant == Some(Mutant::FullIsFinal) {
            return Err(ObjectError::Rejected(format!("{path}: no room")));
        }
        if full {
            return Err(ObjectError::Full(format!("{path}: simulated")));
        }
        if throttled || sim.happens(FaultKind::PutFails) || sim.is_bucket_crowded(&path.bucket) {
            return Err(unavailable(path));
        }
        if sim.happens(FaultKind::ObjectDenied) {
            return Err(self.denied(path));
        }
        if sim.happens(FaultKind::PutLate) {
            let (store, time) = (Arc::clone(&self.store), Arc::clone(&sim.time));
            let (path, put_id, late) =
                (path.clone(), put_id.to_owned(), sim.between_ms(1, 3_600_000));
            let failed = unavailable(&path);
            tokio::spawn(async move {
                time.sleep(late).await;
                let _ = store.apply_put(&path, body, &put_id).await;
            });
            return Err(failed);
        }
        let outcome = self.store.apply_put(path, body, put_id).await;
        sim.event(format_args!("put {path}: {outcome:?}"));
        self.process.point(LATENCY_MS).await;
        if sim.happens(FaultKind::PutUnreported) { Err(unavailable(path)) } else { outcome }
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
        let sim = &self.process.sim;
        if sim.happens(FaultKind::GetFails) || sim.lasts(FaultKind::StoreThrottled) {
            return Err(unavailable(&ObjectPath::new(bucket, prefix)));
        }
        if sim.happens(FaultKind::ObjectDenied) {
            return Err(self.denied(&ObjectPath::new(bucket, prefix)));
        }
        let found = self.store.memory.list(bucket, prefix).await;
        self.process.point(LATENCY_MS).await;
        found
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.process.point(LATENCY_MS).await;
        let sim = &self.process.sim;
        if sim.lasts(FaultKind::StoreThrottled) {
            return Err(unavailable(&ObjectPath::new(bucket, "throttled")));
        }
        if sim.mutant == Some(Mutant::EntryGoesFirst) {
            self.delete_entry_of(bucket, keys).await?;
        }
        let half = sim.happens(FaultKind::DeleteHalf);
        let deleted = if half { &keys[..keys.len() / 2] } else { keys };
        for key in deleted {
            sim.event(format_args!("delete {key}"));
            let Some(name) = self.store.chunk_name(key) else { continue };
            // A deleted object may be deleted again by a process that listed it before.
            if self.store.checksum(&name).is_some() {
                self.check_deletion(&name).await;
            }
            self.store.chunks.lock().remove(&name);
        }
        self.store.memory.delete(bucket, deleted).await?;
        self.process.point(LATENCY_MS).await;
        if half { Err(unavailable(&ObjectPath::new(bucket, "half"))) } else { Ok(()) }
    }
}

/// The largest modelled object.
const LARGEST_BYTES: u64 = 200_000_000;
/// The largest object that is made.
const LARGEST_REAL_BYTES: u64 = 64 << 10;
/// Prefetched chunks where their real bytes count: few, so that trainers wait for each other's budgets.
const PREFETCH_BYTES: u64 = 4 << 10;
/// Results of one worker beyond the bound: the split that is finished when the store becomes full, and the next one,
/// which begins before the first is stored.
const BEYOND_THE_BOUND: u64 = 2;

/// Sizes and bounds, and how long the work on an object takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelledMemory {
    pub sizes: ObjectSizes,
    /// The bound of each reader.
    pub prefetch: PrefetchMemory,
    /// Bytes that may be ready beyond the trainer.
    pub window_bytes: u64,
    /// Longest time that a slow trainer takes for a batch, in milliseconds; 0 for a fast one.
    pub pause_ms: u64,
    pub compute: ComputeMode,
}

impl ModelledMemory {
    /// Real bytes, and bounds that seldom matter.
    pub fn usual() -> Self {
        Self {
            sizes: ObjectSizes::Real,
            prefetch: PrefetchMemory::Bytes(PREFETCH_BYTES),
            window_bytes: 2 << 30,
            pause_ms: 0,
            compute: ComputeMode::Inline,
        }
    }

    /// Objects of 1 B to 200 MB in three simulations of four; bounds from 1 B; slow trainers and slow workers.
    pub fn draw(random: &mut Rng) -> Self {
        let sizes = match random.u8(0..4) {
            0 => ObjectSizes::Real,
            _ => ObjectSizes::Modelled { seed: random.u64(..), most: LARGEST_BYTES },
        };
        let prefetch = match (random.u8(0..4), sizes) {
            (0, _) => PrefetchMemory::AsNeeded { most: 1 << random.u32(0..36) },
            (_, ObjectSizes::Real) => PrefetchMemory::Bytes(1 << random.u32(0..16)),
            _ => PrefetchMemory::Bytes(1 << random.u32(0..34)),
        };
        let window_bytes = [1, LARGEST_BYTES, 2 << 30][random.usize(0..3)];
        let pause_ms = [0, 0, 500, 5_000][random.usize(0..4)];
        let compute = match random.u8(0..2) {
            0 => ComputeMode::Inline,
            _ => ComputeMode::Modelled(Duration::from_millis(random.u64(1..1_000))),
        };
        Self { sizes, prefetch, window_bytes, pause_ms, compute }
    }

    /// The same with the tightest bounds.
    #[must_use]
    pub fn tightest(self) -> Self {
        Self { prefetch: PrefetchMemory::Bytes(1), ..self }
    }

    fn largest(&self) -> u64 {
        match self.sizes {
            ObjectSizes::Real => LARGEST_REAL_BYTES,
            ObjectSizes::Modelled { most, .. } => most,
        }
    }

    /// Whether so many ready objects may fill half of the window by their bytes, so that no workers are woken.
    pub fn may_be_half_full(&self, ready: u32) -> bool {
        u64::from(ready) * self.largest() > self.window_bytes / 2
    }

    /// Whether splits that a fetcher with so many local workers holds and that its stream has not taken exceed what they
    /// may: the bound, and what is finished when it is reached.
    pub fn exceeds(&self, snapshot: &JobStatistics, local_workers: u32) -> bool {
        // One more may work for the stream alone.
        let more = BEYOND_THE_BOUND * (u64::from(local_workers) + 1) * self.largest();
        snapshot.local_bytes > snapshot.prefetch_bytes.saturating_add(more)
    }
}
