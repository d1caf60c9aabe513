//! Workers inside the trainer's process: the same loop as remote workers, but splits stay in memory.

use crate::{FetchError, ledger::Ledger};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_chunk::{Chunk, Codec, Footer, FormatError, Limits, checksum, repack};
use gristmill_model::splits::{Commit, Place, SplitKind};
use gristmill_model::wire::{CacheOrders, CachedChunk, CachingView, IdleReason, ReadySplit};
use gristmill_model::{Epoch, InvocationId, Nonce, Position};
use gristmill_runner::{
    Ended, FinishedSplit, JobContext, LEVELS, ObjectSink, RunError, Runner, Sink, SplitName,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long a local worker pauses if there is nothing to claim; progress wakes it earlier.
const REST: Duration = Duration::from_millis(200);
/// How long it pauses after an error.
const REST_AFTER_ERROR: Duration = Duration::from_secs(2);
/// No platform stops a local worker, so its leases may last as long as allowed.
const NO_DEADLINE_MS: u64 = 3_600_000;

/// Splits computed here and not yet taken by the trainer.
pub(crate) struct LocalStore {
    outputs: Mutex<HashMap<(Place, Nonce), Bytes>>,
    held_bytes: AtomicU64,
    max_bytes: u64,
}

impl LocalStore {
    pub fn new(max_bytes: u64) -> Self {
        Self { outputs: Mutex::default(), held_bytes: AtomicU64::new(0), max_bytes }
    }

    fn put(&self, place: Place, nonce: Nonce, object: Bytes) {
        self.held_bytes.fetch_add(object.len() as u64, Ordering::Relaxed);
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.insert((place, nonce), object);
    }

    /// Takes the split committed as `entry`, if this process computed it.
    pub fn take(&self, entry: &ReadySplit) -> Option<Bytes> {
        let key = (entry.place, entry.nonce);
        let object = self.outputs.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)?;
        self.held_bytes.fetch_sub(object.len() as u64, Ordering::Relaxed);
        Some(object)
    }

    fn has_room(&self) -> bool {
        self.held_bytes.load(Ordering::Relaxed) < self.max_bytes
    }
}

struct LocalSink {
    store: Arc<LocalStore>,
    ledger: Arc<Ledger>,
    /// Stores chunks that other processes read too.
    objects: ObjectSink,
    /// Whether other readers of the run need every chunk.
    is_shared: bool,
}

#[async_trait]
impl Sink for LocalSink {
    /// A full store stops claims but never commits: the split that the trainer waits for may finish next.
    fn has_room(&self) -> bool {
        self.store.has_room() && self.ledger.error().is_none()
    }

    async fn store(&self, name: &SplitName, split: &FinishedSplit) -> Result<Commit, RunError> {
        if split.indexed {
            return Ok(split.commit(name.split_index, SplitKind::Local, 0));
        }
        // A chunk on a shelf belongs to the cache, or may become part of it.
        let commit = match self.is_shared || split.shelf.is_some() {
            true => self.objects.store(name, split).await?,
            false => {
                let checksum =
                    checksum(&split.object).map_err(|error| RunError::fatal(error.to_string()))?;
                split.commit(name.split_index, SplitKind::Local, checksum)
            }
        };
        self.store.put(Place::new(name.epoch, name.position), name.nonce, split.object.clone());
        Ok(commit)
    }
}

/// Claims and works in this process until the job ends or the run fails. Chunks are stored too if they are shared
/// with other readers.
pub(crate) async fn work(
    runner: Runner,
    context: Arc<JobContext>,
    store: Arc<LocalStore>,
    ledger: Arc<Ledger>,
    is_shared: bool,
) {
    let objects = ObjectSink { runner: runner.clone(), job: context.view.job.clone() };
    let sink = LocalSink { store, ledger: Arc::clone(&ledger), objects, is_shared };
    let invocation = InvocationId(format!("local-{}", runner.clock.nonce()));
    while ledger.error().is_none() {
        let deadline_ms = runner.clock.now_ms() + NO_DEADLINE_MS;
        match runner.work(&context, &invocation, deadline_ms, &sink).await {
            Ok(Ended::Idle(IdleReason::JobEnded)) => return,
            Ok(_) => {}
            // The coordinator knows of fatal errors and ends the job for all workers.
            Err(error) => {
                tracing::warn!(%error, "local worker");
                runner.clock.sleep(REST_AFTER_ERROR).await;
            }
        }
        tokio::select! {
            biased;
            () = runner.clock.sleep(REST) => {}
            () = ledger.changed() => {}
        }
    }
}

/// Parameters to recompute a split exactly as it was committed.
#[derive(Debug, Clone)]
pub(crate) struct Recompute {
    epoch: Epoch,
    position: Position,
    orders: CacheOrders,
}

impl Recompute {
    /// Parameters for a split committed in its epoch, or `cached` by another job.
    pub fn of(
        entry: &ReadySplit,
        cached: Option<CachedChunk>,
        caching: Option<&CachingView>,
    ) -> Self {
        let Place { epoch, position } = entry.place;
        match (cached, caching) {
            // Random operators drew in the first epoch of a job with the same seed.
            (Some(chunk), Some(caching)) if caching.points.iter().any(|p| p.whole && p.random) => {
                Recompute { epoch: 0, position: chunk.position, orders: CacheOrders::default() }
            }
            (None, Some(caching)) => Recompute { epoch, position, orders: caching.orders(epoch) },
            _ => Recompute { epoch, position, orders: CacheOrders::default() },
        }
    }
}

/// Recomputes a split: a local one after a restart, or one whose object is missing or damaged. The result must
/// equal the committed one.
pub(crate) async fn recompute(
    runner: &Runner,
    context: &JobContext,
    entry: &ReadySplit,
    Recompute { epoch, position, orders }: &Recompute,
) -> Result<Bytes, RunError> {
    let split = context.compute_again(runner, orders, Place::new(*epoch, *position)).await?;
    let object = as_committed(split.object, entry);
    let object = object.map_err(|error| RunError::fatal(error.to_string()))?;
    object.ok_or_else(|| {
        RunError::fatal(format!(
            "split {position} of epoch {epoch}, computed again here, differs from the one committed"
        ))
    })
}

/// The object as its worker stored it: plain or compressed. None if neither matches the entry.
fn as_committed(object: Bytes, entry: &ReadySplit) -> Result<Option<Bytes>, FormatError> {
    if checksum(&object)? == entry.outcome.crc32c {
        return Ok(Some(object));
    }
    let chunk = Chunk::open(object, &Limits::default())?;
    for level in LEVELS {
        let packed = repack(&chunk, Codec::Zstd { level })?;
        if checksum(&packed)? == entry.outcome.crc32c {
            return Ok(Some(Bytes::from(packed)));
        }
    }
    Ok(None)
}

/// Opens a split's object and verifies that it is the one committed as `entry`.
pub(crate) fn open(object: Bytes, entry: &ReadySplit, name: &str) -> Result<Chunk, FetchError> {
    check(&object, object.len() as u64, entry, name)?;
    Chunk::open(object, &Limits::default()).map_err(|error| bad(name, error))
}

/// Opens the index at the end of a split's object, and verifies that the object is the one committed as `entry`.
pub(crate) fn open_index(
    index: &[u8],
    entry: &ReadySplit,
    name: &str,
) -> Result<Footer, FetchError> {
    let object_bytes = entry.outcome.object_bytes;
    check(index, object_bytes, entry, name)?;
    Footer::parse(index, object_bytes, &Limits::default()).map_err(|error| bad(name, error))
}

/// The checksum at the end of an object identifies it.
fn check(end: &[u8], bytes: u64, entry: &ReadySplit, name: &str) -> Result<(), FetchError> {
    let checksum = checksum(end).map_err(|error| bad(name, error))?;
    match checksum == entry.outcome.crc32c && bytes == entry.outcome.object_bytes {
        true => Ok(()),
        false => Err(bad(name, "it is not the object that was committed")),
    }
}

fn bad(name: &str, error: impl std::fmt::Display) -> FetchError {
    FetchError::BadObject(format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FetcherPorts, Folders,
        samples::{SampleJob, entry, split},
    };
    use gristmill_model::splits::WorkerTimes;
    use gristmill_runner::RunnerConfig;

    /// A chunk without frames, computed as the split at position 1.
    fn finished() -> (SplitName, FinishedSplit) {
        let mut writer = gristmill_chunk::ChunkWriter::new(Codec::Stored);
        let outcome = entry(0, 1, 0).outcome;
        let finished = FinishedSplit {
            position: 1,
            object: writer.finish().unwrap().into(),
            outcome,
            skipped: Vec::new(),
            quarantined: Vec::new(),
            times: WorkerTimes::default(),
            indexed: false,
            shelf: None,
            cached: Vec::new(),
            profile: None,
        };
        let nonce = Nonce([1; 8]);
        let name =
            SplitName { epoch: 0, position: 1, bundle: 0, split_index: 1, attempt: 1, nonce };
        (name, finished)
    }

    #[tokio::test]
    async fn a_chunk_is_stored_for_other_readers_and_kept_here() {
        for is_shared in [true, false] {
            let (_, ports, config) = SampleJob::new(0, 0).await;
            let store = Arc::new(LocalStore::new(1 << 20));
            let ledger =
                Arc::new(Ledger::new(crate::samples::view(), split(0, 0), Folders::default()));
            let objects = Arc::clone(&ports.objects);
            let FetcherPorts { coordinator, objects: put, clock, compute, operators } = ports;
            let at = RunnerConfig {
                ns: config.ns,
                bucket: config.bucket.clone(),
                local: true,
                shape: None,
            };
            let runner =
                Runner { coordinator, objects: put, clock, compute, operators, config: at };
            let put = ObjectSink { runner, job: config.job };
            let sink = LocalSink { store: Arc::clone(&store), ledger, objects: put, is_shared };
            let (name, finished) = finished();
            let Commit { outcome, .. } = sink.store(&name, &finished).await.unwrap();
            let kind = if is_shared { SplitKind::Object } else { SplitKind::Local };
            assert_eq!(outcome.kind, kind);
            let stored = objects.list(&config.bucket, "").await.unwrap();
            assert_eq!(stored.len(), usize::from(is_shared));
            let entry = ReadySplit { nonce: name.nonce, outcome, ..entry(0, 1, 0) };
            assert_eq!(store.take(&entry), Some(finished.object));
        }
    }
}
