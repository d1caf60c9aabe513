//! Workers inside the trainer's process: the same loop as remote workers, but splits stay in memory.

mod store;

pub(crate) use store::LocalStore;

use crate::{FetchError, ledger::SplitLedger};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkLimits, Footer, FrameCodec, checksum, repack};
use gristmill_model::splits::{INDEX_EPOCH, SplitCommit, SplitKind, SplitPlace};
use gristmill_model::wire::{
    CacheOrders, CachedChunk, CachingView, ClaimReply, IdleReason, ReadySplit,
};
use gristmill_model::{Epoch, InvocationId, Position};
use gristmill_runner::{
    ClaimableBundles, FinishedSplit, JobContext, LEVELS, LeaseError, ObjectSink, Runner, SplitName,
    SplitSink, WorkerStopReason,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long a local worker pauses if there is nothing to claim; progress wakes it earlier.
const REST: Duration = Duration::from_millis(200);
/// How long it pauses after an error.
const REST_AFTER_ERROR: Duration = Duration::from_secs(2);
/// No platform stops a local worker, so its leases may last as long as allowed.
const NO_DEADLINE_MS: u64 = 3_600_000;

/// The place of local workers' splits; decides which splits they may claim.
pub(crate) struct LocalSink {
    store: Arc<LocalStore>,
    ledger: Arc<SplitLedger>,
    /// Stores chunks that other processes read too.
    objects: ObjectSink,
    /// Whether this worker's last claim found nothing, as with a full window.
    has_nothing: AtomicBool,
}

impl LocalSink {
    /// The sink of one worker.
    pub fn new(
        runner: &Runner,
        context: &JobContext,
        (store, ledger): (Arc<LocalStore>, Arc<SplitLedger>),
    ) -> Self {
        let objects = ObjectSink { runner: runner.clone(), job: context.view.job.clone() };
        Self { store, ledger, objects, has_nothing: AtomicBool::new(false) }
    }
}

#[async_trait]
impl SplitSink for LocalSink {
    /// A full store, or a full window, bars all claims but that of the split which the stream waits for: only that
    /// one empties it.
    fn claimable(&self) -> ClaimableBundles {
        let has_room = self.store.has_room();
        if self.ledger.error().is_some() {
            return ClaimableBundles::Nothing;
        }
        if has_room && !self.has_nothing.load(Ordering::Relaxed) {
            return ClaimableBundles::Any;
        }
        match self.ledger.turn() {
            Some(turn) => ClaimableBundles::Needed { place: turn.place, turn: Box::new(turn) },
            None if has_room => ClaimableBundles::Any,
            None => ClaimableBundles::Nothing,
        }
    }

    fn answered(&self, reply: &ClaimReply) {
        self.has_nothing.store(matches!(reply, ClaimReply::Idle(_)), Ordering::Relaxed);
    }

    /// With a full store, the worker goes on only to a split that the stream waits for, or will wait for next. An
    /// index fills no store.
    fn goes_on(&self, epoch: Epoch, rest: &[Position]) -> bool {
        if self.store.has_room() || epoch == INDEX_EPOCH {
            return true;
        }
        let Some((awaited, plan)) = self.ledger.awaited().zip(self.ledger.plan()) else {
            return false;
        };
        let is_next =
            |first: &Position| SplitPlace::new(epoch, *first) == awaited.next(plan.n_splits);
        awaited.epoch == epoch && rest.contains(&awaited.position)
            || rest.first().is_some_and(is_next)
    }

    async fn store(
        &self,
        name: &SplitName,
        split: &FinishedSplit,
    ) -> Result<SplitCommit, LeaseError> {
        if split.indexed {
            return Ok(split.commit(name.split_index, SplitKind::Local, 0));
        }
        let place = SplitPlace::new(name.epoch, name.position);
        if let Some(plan) = self.ledger.plan() {
            self.store.bound.learn(&plan, place, &split.outcome);
        }
        // A chunk on a shelf belongs to the cache, or may become part of it.
        let commit = if self.store.is_shared || split.shelf.is_some() {
            self.objects.store(name, split).await?
        } else {
            let checksum =
                checksum(&split.object).map_err(|error| LeaseError::fatal(error.to_string()))?;
            split.commit(name.split_index, SplitKind::Local, checksum)
        };
        self.store.put(place, name.nonce, split.object.clone());
        Ok(commit)
    }

    fn is_awaited(&self, name: &SplitName) -> bool {
        self.ledger.awaited() == Some(SplitPlace::new(name.epoch, name.position))
    }

    fn discard(&self, name: &SplitName) {
        self.store.discard(SplitPlace::new(name.epoch, name.position), name.nonce);
    }
}

/// Claims and works in this process until the job ends or the run fails.
pub(crate) async fn work(runner: Runner, context: Arc<JobContext>, sink: LocalSink) {
    let ledger = Arc::clone(&sink.ledger);
    let invocation = InvocationId(format!("local-{}", runner.clock.nonce()));
    while ledger.error().is_none() {
        let deadline_ms = runner.clock.now_ms() + NO_DEADLINE_MS;
        match runner.work(&context, &invocation, deadline_ms, &sink).await {
            Ok(WorkerStopReason::Idle(IdleReason::JobEnded)) => return,
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
            () = sink.store.freed(), if !sink.store.has_room() => {}
        }
    }
}

/// The split to compute, and its cache orders, so that the result is what was committed as `entry` in its epoch, or
/// `cached` by another job.
pub(crate) fn committed_as(
    entry: &ReadySplit,
    cached: Option<CachedChunk>,
    caching: Option<&CachingView>,
) -> (SplitPlace, CacheOrders) {
    match (cached, caching) {
        // Random operators drew in the first epoch of a job with the same seed.
        (Some(chunk), Some(caching)) if caching.points.iter().any(|p| p.whole && p.random) => {
            (SplitPlace::new(0, chunk.position), CacheOrders::default())
        }
        (None, Some(caching)) => (entry.place, caching.orders(entry.place.epoch)),
        _ => (entry.place, CacheOrders::default()),
    }
}

/// Recomputes a split: a local one after a restart, or one whose object is missing or damaged. The result must
/// equal the committed one.
pub(crate) async fn recompute(
    runner: &Runner,
    context: &JobContext,
    entry: &ReadySplit,
    (place, orders): &(SplitPlace, CacheOrders),
) -> Result<Bytes, LeaseError> {
    let context = context.treating(entry.outcome.on_error());
    let split = context.compute_again(runner, orders, *place).await?;
    let object = as_committed(split.object, entry);
    let object = object.map_err(|error| LeaseError::fatal(error.to_string()))?;
    object.ok_or_else(|| {
        let SplitPlace { epoch, position } = place;
        LeaseError::fatal(format!(
            "split {position} of epoch {epoch}, computed again here, differs from the one committed"
        ))
    })
}

/// The object as its worker stored it: plain or compressed. None if neither matches the entry.
fn as_committed(object: Bytes, entry: &ReadySplit) -> Result<Option<Bytes>, ChunkFormatError> {
    if checksum(&object)? == entry.outcome.crc32c {
        return Ok(Some(object));
    }
    let chunk = Chunk::open(object, &ChunkLimits::default())?;
    for level in LEVELS {
        let packed = repack(&chunk, FrameCodec::Zstd { level })?;
        if checksum(&packed)? == entry.outcome.crc32c {
            return Ok(Some(Bytes::from(packed)));
        }
    }
    Ok(None)
}

/// Opens a split's object and verifies that it is the one committed as `entry`.
pub(crate) fn open(object: Bytes, entry: &ReadySplit, name: &str) -> Result<Chunk, FetchError> {
    check(&object, object.len() as u64, entry, name)?;
    Chunk::open(object, &ChunkLimits::default()).map_err(|error| bad(name, error))
}

/// Opens the index at the end of a split's object, and verifies that the object is the one committed as `entry`.
pub(crate) fn open_index(
    index: &[u8],
    entry: &ReadySplit,
    name: &str,
) -> Result<Footer, FetchError> {
    let object_bytes = entry.outcome.object_bytes;
    check(index, object_bytes, entry, name)?;
    Footer::parse(index, object_bytes, &ChunkLimits::default()).map_err(|error| bad(name, error))
}

/// The checksum at the end of an object identifies it.
fn check(end: &[u8], bytes: u64, entry: &ReadySplit, name: &str) -> Result<(), FetchError> {
    let checksum = checksum(end).map_err(|error| bad(name, error))?;
    if checksum == entry.outcome.crc32c && bytes == entry.outcome.object_bytes {
        Ok(())
    } else {
        Err(bad(name, "it is not the object that was committed"))
    }
}

fn bad(name: &str, error: impl std::fmt::Display) -> FetchError {
    FetchError::BadObject(format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FolderBuckets, PrefetchMemory,
        bounds::MemoryBound,
        samples::{SampleJob, entry, polled, split},
    };
    use futures::FutureExt as _;
    use gristmill_model::Nonce;
    use gristmill_model::splits::{ObjectSizes, WorkerTimes};
    use gristmill_model::wire::{IdleReply, PollReply};
    use gristmill_ports::ObjectStore;

    /// A chunk without frames, computed as the split at position 1.
    fn finished() -> (SplitName, FinishedSplit) {
        let mut writer = gristmill_chunk::ChunkWriter::new(FrameCodec::Stored);
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

    /// A sink over a store of `bytes`, and the objects that it puts.
    async fn sink(bytes: u64, is_shared: bool) -> (LocalSink, Arc<dyn ObjectStore>, String) {
        let (_, ports, config) = SampleJob::new(0, 0).await;
        let bound = MemoryBound::new(PrefetchMemory::Bytes(bytes), (1, 1), ObjectSizes::Real);
        let store = Arc::new(LocalStore::new(Arc::new(bound), is_shared));
        let ledger =
            SplitLedger::new(crate::samples::view(), split(0, 0), FolderBuckets::default());
        let objects = Arc::clone(&ports.objects);
        let sink = LocalSink {
            store,
            ledger: Arc::new(ledger),
            objects: ObjectSink { runner: ports.runner(&config), job: config.job },
            has_nothing: AtomicBool::new(false),
        };
        (sink, objects, config.bucket)
    }

    #[tokio::test]
    async fn a_chunk_is_stored_for_other_readers_and_kept_here() {
        for is_shared in [true, false] {
            let (sink, objects, bucket) = sink(1 << 20, is_shared).await;
            let (name, finished) = finished();
            let SplitCommit { outcome, .. } = sink.store(&name, &finished).await.unwrap();
            let kind = if is_shared { SplitKind::Object } else { SplitKind::Local };
            assert_eq!(outcome.kind, kind);
            let stored = objects.list(&bucket, "").await.unwrap();
            assert_eq!(stored.len(), usize::from(is_shared));
            let entry = ReadySplit { nonce: name.nonce, outcome, ..entry(0, 1, 0) };
            assert_eq!(sink.store.take(&entry), Some(finished.object));
        }
    }

    /// A poll is answered: `committed` splits are, and nobody works on the next.
    fn answer(ledger: &SplitLedger, committed: u32) {
        let from = ledger.known_until();
        let ready: Vec<_> = (from.position..committed).map(|at| entry(0, at, 4)).collect();
        ledger.merge(PollReply { head_of_line_blocked: true, ..polled(&ready) }, from);
    }

    fn needed(sink: &LocalSink) -> Option<u32> {
        match sink.claimable() {
            ClaimableBundles::Needed { place, .. } => Some(place.position),
            ClaimableBundles::Any => panic!("it may claim anything"),
            ClaimableBundles::Nothing => None,
        }
    }

    #[tokio::test]
    async fn a_full_store_asks_only_for_the_split_that_the_stream_waits_for() {
        let (sink, ..) = sink(1, false).await;
        assert!(matches!(sink.claimable(), ClaimableBundles::Any));
        let (name, finished) = finished();
        sink.store(&name, &finished).await.unwrap();
        answer(&sink.ledger, 0);
        assert_eq!(needed(&sink), None, "the stream does not wait");
        assert!(!sink.goes_on(0, &[0]));
        let mut waits = Box::pin(sink.ledger.take(split(0, 0)));
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!([needed(&sink), needed(&sink)], [Some(0), None], "once for each answer");
        assert!(!sink.is_awaited(&name) && sink.is_awaited(&SplitName { position: 0, ..name }));
        assert!(sink.goes_on(0, &[5, 0]) && sink.goes_on(0, &[1, 2]), "it is needed now, or next");
        assert!(!sink.goes_on(0, &[2, 3]) && !sink.goes_on(1, &[0]));
        answer(&sink.ledger, 1);
        assert!(waits.now_or_never().is_some());
        sink.discard(&name);
        assert!(matches!(sink.claimable(), ClaimableBundles::Any) && sink.goes_on(0, &[9]));
    }

    #[tokio::test]
    async fn a_full_store_indexes_a_dataset_whose_plan_the_table_has_lost() {
        let (sink, ..) = sink(1, false).await;
        let (name, finished) = finished();
        sink.store(&name, &finished).await.unwrap();
        let job = gristmill_model::wire::JobView { plan: None, ..crate::samples::view() };
        let answer = PollReply { job, head_of_line_blocked: true, ..polled(&[]) };
        sink.ledger.merge(answer, sink.ledger.known_until());
        assert_eq!([needed(&sink), needed(&sink)], [Some(0), None], "one worker asks");
        assert!(sink.goes_on(INDEX_EPOCH, &[1]) && !sink.goes_on(0, &[1]));
    }

    #[tokio::test]
    async fn a_full_window_bars_all_but_the_split_that_the_stream_waits_for() {
        let (sink, ..) = sink(1, true).await;
        let (name, finished) = finished();
        sink.store(&name, &finished).await.unwrap();
        assert!(matches!(sink.claimable(), ClaimableBundles::Any), "its copies may go at any time");
        answer(&sink.ledger, 0);
        let mut waits = Box::pin(sink.ledger.take(split(0, 0)));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(matches!(sink.claimable(), ClaimableBundles::Any), "it was not refused");
        let idle = |reason| ClaimReply::Idle(IdleReply { reason });
        sink.answered(&idle(IdleReason::WindowFull));
        assert_eq!(needed(&sink), Some(0));
        assert!(matches!(sink.claimable(), ClaimableBundles::Any), "the window may have moved");
        answer(&sink.ledger, 0);
        sink.answered(&idle(IdleReason::AllClaimed));
        assert_eq!(needed(&sink), Some(0), "ready bytes may fill a window that reaches the end");
    }
}
