//! The object store as used by one process, with its faults.

use super::SharedObjects;
use crate::{FaultKind, Mutant, SimProcess, link::DENIED, table::SharedItems};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::inspect::{self, DecodedItem};
use gristmill_model::splits::{
    JobProgress,
    collect::{ChunkName, CollectionDecision},
    invariants::invariant_06_only_useless_objects_go,
    job::JobState,
};
use gristmill_model::stored::keys;
use gristmill_ports::{
    Clock as _, ItemKey, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
};
use std::{ops::Range, sync::Arc, time::Duration};

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
        let sim = self.process.sim();
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
            sim.count_cache_read();
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
        let sim = self.process.sim();
        let at = sim.below(bytes.len() as u64) as usize;
        match (bytes.get_mut(at), sim.below(4)) {
            (Some(byte), 1..) => *byte ^= 1 << sim.below(8),
            _ => bytes.truncate(at),
        }
        sim.event(format_args!("{path} is damaged at byte {at}"));
        bytes
    }

    fn denied(&self, path: &ObjectPath) -> ObjectError {
        match self.process.sim().mutant {
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
        if stored.is_none() && self.process.sim().count(&[FaultKind::WritesLost]) > 0 {
            return;
        }
        let home = stored.and_then(|item| inspect::home(&item.body, bundle));
        let bundle = match home {
            Some(home) => decoded(inspect::bundle_key(ns, job, home, name.epoch, bundle)).await,
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
        self.process.sim().check(invariant_06_only_useless_objects_go(
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
        let key = match (self.process.sim().mutant, chunk) {
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
            self.process.sim().count_offered(split, chunk.attempt);
        }
        self.process.point(LATENCY_MS).await;
        let sim = self.process.sim();
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
        let sim = self.process.sim();
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
        let sim = self.process.sim();
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
