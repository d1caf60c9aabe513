//! Workers inside the trainer's process: the same loop as remote workers, but splits stay in memory.

use crate::{FetchError, ledger::SplitLedger, memory::MemoryBound};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkLimits, Footer, FrameCodec, checksum, repack};
use gristmill_model::splits::{
    INDEX_EPOCH, SplitCommit, SplitKind, SplitOutcome, SplitPlace, WorkerTimes,
};
use gristmill_model::wire::{
    CacheOrders, CachedChunk, CachingView, ClaimReply, IdleReason, ReadySplit,
};
use gristmill_model::{Epoch, InvocationId, Nonce, Position};
use gristmill_runner::{
    ClaimableBundles, FinishedSplit, JobContext, LEVELS, LeaseError, ObjectSink, SplitName,
    SplitSink, WorkerDismissal, WorkerStopReason,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How long a local worker pauses if there is nothing to claim; progress wakes it earlier.
const REST: Duration = Duration::from_millis(200);
/// How long it pauses after an error.
const REST_AFTER_ERROR: Duration = Duration::from_secs(2);
/// How long the stream waits for a split on which nobody works before a local worker takes it beyond a fixed share.
const SHARE_PATIENCE: Duration = Duration::from_secs(5);
/// No platform stops a local worker, so its leases may last as long as allowed.
const NO_DEADLINE_MS: u64 = 3_600_000;

/// A worker of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoolMember {
    pub number: u32,
    /// How many workers the pool wants now: those of the first numbers.
    pub count: Arc<AtomicU32>,
    /// Hosts with local workers, among which a fixed share is divided.
    pub hosts: u32,
}

impl PoolMember {
    fn is_wanted(&self) -> bool {
        self.number < self.count.load(Ordering::Relaxed)
    }
}

/// The place of local workers' splits; decides which splits they may claim.
pub(crate) struct LocalSink {
    member: PoolMember,
    store: Arc<LocalStore>,
    ledger: Arc<SplitLedger>,
    /// Stores chunks that other processes read too.
    objects: ObjectSink,
    /// Whether this worker's last claim found nothing, as with a full window.
    has_nothing: AtomicBool,
    /// Whether this worker's claim counts for a fixed share, and since when that share bars it from the split that the
    /// stream waits for.
    is_counted: AtomicBool,
    barred: Mutex<Option<Duration>>,
}

impl LocalSink {
    /// The sink of one worker.
    pub fn new(
        context: &JobContext,
        store: Arc<LocalStore>,
        ledger: Arc<SplitLedger>,
        member: PoolMember,
    ) -> Self {
        let (runner, job) = (Arc::clone(&context.runner), context.view.job.clone());
        let objects = ObjectSink { runner, job };
        Self {
            member,
            store,
            ledger,
            objects,
            has_nothing: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
            barred: Mutex::new(None),
        }
    }

    /// Whether there is room for the split at the beginning of `rest`. With a full store there is room for one that the
    /// stream waits for, or will wait for next.
    fn has_room_for(&self, epoch: Epoch, rest: &[Position]) -> bool {
        if self.store.has_room() {
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

    /// The bundles that it may claim within the share.
    fn claimable_within(&self, may: bool) -> ClaimableBundles {
        let has_room = self.store.has_room();
        if may && has_room && !self.has_nothing.load(Ordering::Relaxed) {
            return ClaimableBundles::Any;
        }
        let takes_turn = may || self.is_barred_long();
        match takes_turn.then(|| self.ledger.turn()).flatten() {
            Some(turn) => ClaimableBundles::Needed { place: turn.place, turn: Box::new(turn) },
            None if may && has_room => ClaimableBundles::Any,
            None => ClaimableBundles::Nothing,
        }
    }

    /// Whether nobody has worked for long on the split that the stream waits for: there are no remote workers for it.
    fn is_barred_long(&self) -> bool {
        let now = self.objects.runner.clock.monotonic();
        let mut barred = self.barred.lock();
        if !self.ledger.is_blocked() {
            *barred = None;
            return false;
        }
        let since = *barred.get_or_insert(now);
        drop(barred);
        now.saturating_sub(since) >= SHARE_PATIENCE
    }

    /// Its claim is over.
    fn end_claim(&self, begun: Option<SplitPlace>) {
        let was_counted = self.is_counted.swap(false, Ordering::Relaxed);
        self.ledger.end_local_claim(was_counted, begun);
    }
}

impl Drop for LocalSink {
    fn drop(&mut self) {
        self.end_claim(None);
    }
}

#[async_trait]
impl SplitSink for LocalSink {
    /// A full store, or a full window, bars all claims but that of the split which the stream waits for: only that
    /// one empties it.
    fn claimable(&self) -> ClaimableBundles {
        // A claim that was not answered is over.
        self.end_claim(None);
        if self.ledger.error().is_some() || !self.member.is_wanted() {
            return ClaimableBundles::Nothing;
        }
        let may = self.ledger.begin_local_claim(self.member.hosts);
        self.is_counted.store(may, Ordering::Relaxed);
        let claimable = self.claimable_within(may);
        if matches!(claimable, ClaimableBundles::Nothing) {
            self.end_claim(None);
        }
        claimable
    }

    fn answered(&self, reply: &ClaimReply) {
        self.has_nothing.store(matches!(reply, ClaimReply::Idle(_)), Ordering::Relaxed);
        let begun = match reply {
            ClaimReply::Leased(lease) if lease.epoch != INDEX_EPOCH => {
                lease.todo.first().map(|first| SplitPlace::new(lease.epoch, *first))
            }
            _ => None,
        };
        self.end_claim(begun);
    }

    /// An index fills no store, and counts for no share.
    fn goes_on(&self, epoch: Epoch, rest: &[Position]) -> bool {
        if !self.member.is_wanted() {
            return false;
        }
        let Some(first) = rest.first().filter(|_| epoch != INDEX_EPOCH) else { return true };
        self.has_room_for(epoch, rest)
            && self.ledger.begin_local_split(SplitPlace::new(epoch, *first), self.member.hosts)
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
        // A chunk below a cache prefix belongs to the cache, or may become part of it.
        let commit = if self.store.is_shared || split.cache_prefix.is_some() {
            self.objects.store(name, split).await?
        } else {
            let checksum =
                checksum(&split.object).map_err(|error| LeaseError::fatal(error.to_string()))?;
            split.commit(name.split_index, SplitKind::Local, checksum)
        };
        self.ledger.note_local_split(place, name.nonce);
        self.store.put(place, name.nonce, split.object.clone());
        Ok(commit)
    }

    fn dismissal(&self) -> WorkerDismissal {
        let member = self.member.clone();
        Arc::new(move || !member.is_wanted())
    }

    fn is_awaited(&self, name: &SplitName) -> bool {
        self.ledger.awaited() == Some(SplitPlace::new(name.epoch, name.position))
    }

    fn discard(&self, name: &SplitName) {
        self.store.discard(SplitPlace::new(name.epoch, name.position), name.nonce);
    }
}

/// Why a local worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkEnd {
    /// The job has ended, or the run has failed.
    JobEnded,
    /// The pool wants fewer workers.
    Unwanted,
}

/// Claims and works in this process until the job ends, the run fails, or the worker is not wanted any more.
pub(crate) async fn work(context: JobContext, sink: LocalSink) -> WorkEnd {
    let (ledger, clock) = (&sink.ledger, &context.runner.clock);
    let invocation = InvocationId(format!("local-{}", clock.nonce()));
    while ledger.error().is_none() {
        if !sink.member.is_wanted() {
            return WorkEnd::Unwanted;
        }
        let deadline_ms = clock.now_ms() + NO_DEADLINE_MS;
        match context.work(&invocation, deadline_ms, &sink).await {
            Ok(WorkerStopReason::Idle(IdleReason::JobEnded)) => return WorkEnd::JobEnded,
            Ok(_) => {}
            // The coordinator knows of fatal errors and ends the job for all workers.
            Err(error) => {
                tracing::warn!(%error, "local worker");
                clock.sleep(REST_AFTER_ERROR).await;
            }
        }
        tokio::select! {
            biased;
            () = clock.sleep(REST) => {}
            () = ledger.changed() => {}
            () = sink.store.freed(), if !sink.store.has_room() => {}
        }
    }
    WorkEnd::JobEnded
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

/// The part of the split at `place` before its first bad record, as if that had been committed; none if it cannot be
/// computed.
pub(crate) async fn before_bad(
    context: &JobContext,
    place: SplitPlace,
    orders: &CacheOrders,
) -> Option<(ReadySplit, Bytes)> {
    let split = context.compute_before_bad(orders, place).await.ok()?;
    let outcome = SplitOutcome {
        kind: SplitKind::Local,
        crc32c: checksum(&split.object).ok()?,
        skipped_records: 0,
        ..split.outcome
    };
    let (attempt, nonce, times) = (0, Nonce([0; 8]), WorkerTimes::default());
    let entry = ReadySplit { place, bundle: place.position, attempt, nonce, outcome, times };
    Some((entry, split.object))
}

/// Recomputes a split: a local one after a restart, or one whose object is missing or damaged. The result must
/// equal the committed one.
pub(crate) async fn recompute(
    context: &JobContext,
    entry: &ReadySplit,
    (place, orders): &(SplitPlace, CacheOrders),
) -> Result<Bytes, LeaseError> {
    let context = context.treating(entry.outcome.on_error());
    let split = context.compute_again(orders, *place).await?;
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

/// Behind every split.
const END: SplitPlace = SplitPlace { epoch: Epoch::MAX, position: Position::MAX };

/// Holds splits until they are taken. A full store delays claims. It accepts every split that is finished, because it
/// may be the one that the trainer waits for.
#[derive(Debug)]
pub(crate) struct LocalStore {
    inner: Mutex<Inner>,
    pub bound: Arc<MemoryBound>,
    /// Whether other readers of the run need every split: then each is an object too, and a copy may be dropped at any
    /// time.
    pub is_shared: bool,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    outputs: BTreeMap<(SplitPlace, Nonce), Output>,
    held_bytes: u64,
    /// The stream needs no split before this one.
    needed: SplitPlace,
}

#[derive(Debug)]
struct Output {
    object: Bytes,
    /// The bytes for which it counts.
    bytes: u64,
}

impl Inner {
    fn remove(&mut self, key: &(SplitPlace, Nonce)) -> Option<Bytes> {
        let Output { object, bytes } = self.outputs.remove(key)?;
        self.held_bytes -= bytes;
        Some(object)
    }

    /// The stream has come to `place`: drops what lies before.
    fn pass(&mut self, place: SplitPlace) {
        while let Some((key, _)) = self.outputs.first_key_value().filter(|((at, _), _)| *at < place)
        {
            let key = *key;
            self.remove(&key);
        }
        self.needed = self.needed.max(place);
    }
}

impl LocalStore {
    /// An empty store within `bound`; `is_shared` if other readers of the run need every split.
    pub fn new(bound: Arc<MemoryBound>, is_shared: bool) -> Self {
        Self { inner: Mutex::default(), bound, is_shared, freed: Notify::new() }
    }

    /// Keeps a finished split, unless the stream is past it. If it is an object too, keeps as many of the next ones as
    /// there is room for.
    pub fn put(&self, place: SplitPlace, nonce: Nonce, object: Bytes) {
        let bytes = self.bound.size(place, object.len() as u64);
        let mut inner = self.inner.lock();
        if place < inner.needed {
            return;
        }
        inner.remove(&(place, nonce));
        inner.held_bytes += bytes;
        inner.outputs.insert((place, nonce), Output { object, bytes });
        while self.is_shared
            && inner.held_bytes > self.bound.bytes()
            && let Some((furthest, _)) = inner.outputs.last_key_value()
        {
            let furthest = *furthest;
            inner.remove(&furthest);
        }
    }

    /// Whether the split committed as `entry` is held.
    pub fn holds(&self, entry: &ReadySplit) -> bool {
        self.inner.lock().outputs.contains_key(&(entry.place, entry.nonce))
    }

    /// Takes the split committed as `entry`, if this process computed it. Other results for its place are of no use,
    /// nor are those of earlier places.
    pub fn take(&self, entry: &ReadySplit) -> Option<Bytes> {
        let SplitPlace { epoch, position } = entry.place;
        let mut inner = self.inner.lock();
        let object = inner.remove(&(entry.place, entry.nonce));
        inner.pass(SplitPlace::new(epoch, position.saturating_add(1)));
        drop(inner);
        self.freed.notify_waiters();
        object
    }

    /// Drops a split that did not become known as committed.
    pub fn discard(&self, place: SplitPlace, nonce: Nonce) {
        self.inner.lock().remove(&(place, nonce));
        self.freed.notify_waiters();
    }

    /// The stream begins at `place`.
    pub fn begins_at(&self, place: SplitPlace) {
        self.inner.lock().pass(place);
        self.freed.notify_waiters();
    }

    /// The stream will begin again, and may need splits from `place` on. What is held may be needed too.
    pub fn reopen(&self, place: SplitPlace) {
        self.inner.lock().needed = place;
    }

    /// The stream is at its end.
    pub fn end(&self) {
        self.begins_at(END);
    }

    /// Whether there is room for more results.
    pub fn has_room(&self) -> bool {
        self.is_shared || self.inner.lock().held_bytes < self.bound.bytes()
    }

    /// The bytes for which the splits count that are held.
    pub fn held_bytes(&self) -> u64 {
        self.inner.lock().held_bytes
    }

    /// Resolves once a split has left.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FolderBuckets, PrefetchMemory,
        memory::MemoryBound,
        samples::{SampleJob, entry, polled, split},
    };
    use futures::FutureExt as _;
    use gristmill_model::Nonce;
    use gristmill_model::splits::ObjectSizes;
    use gristmill_model::wire::{IdleReply, PollReply};
    use gristmill_ports::ObjectStore;

    /// A chunk without frames, computed as the split at position 1.
    fn finished() -> (SplitName, FinishedSplit) {
        let mut writer = gristmill_chunk::ChunkWriter::new(FrameCodec::Stored);
        let outcome = entry(0, 1, 0).outcome;
        let object = writer.finish().unwrap().into();
        let finished = FinishedSplit { position: 1, object, outcome, ..FinishedSplit::default() };
        let nonce = Nonce([1; 8]);
        let name =
            SplitName { epoch: 0, position: 1, bundle: 0, split_index: 1, attempt: 1, nonce };
        (name, finished)
    }

    async fn sink(bytes: u64, is_shared: bool) -> (LocalSink, Arc<dyn ObjectStore>, String) {
        let (_, ports, config) = SampleJob::new(0, 0).await;
        let bound = MemoryBound::new(PrefetchMemory::Bytes(bytes), 1, 1, ObjectSizes::Real);
        let store = Arc::new(LocalStore::new(Arc::new(bound), is_shared));
        let ledger =
            SplitLedger::new(crate::samples::view(), split(0, 0), FolderBuckets::default());
        let objects = Arc::clone(&ports.objects);
        let sink = LocalSink {
            member: PoolMember { number: 0, count: Arc::new(AtomicU32::new(1)), hosts: 1 },
            store,
            ledger: Arc::new(ledger),
            objects: ObjectSink { runner: ports.runner(&config), job: config.job },
            has_nothing: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
            barred: Mutex::default(),
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
    async fn a_worker_that_is_not_wanted_claims_nothing_and_gives_back_what_is_left() {
        let (sink, ..) = sink(1 << 20, false).await;
        assert!(matches!(sink.claimable(), ClaimableBundles::Any) && sink.goes_on(0, &[1, 2]));
        sink.member.count.store(0, Ordering::Relaxed);
        let mut waits = Box::pin(sink.ledger.take(split(0, 0)));
        assert!(waits.as_mut().now_or_never().is_none());
        answer(&sink.ledger, 0);
        assert_eq!(needed(&sink), None, "remote workers make what the stream waits for");
        assert!(!sink.goes_on(0, &[0]));
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

    fn store(bytes: u64, is_shared: bool) -> LocalStore {
        let bound = MemoryBound::new(PrefetchMemory::Bytes(bytes), 1, 1, ObjectSizes::Real);
        LocalStore::new(Arc::new(bound), is_shared)
    }

    /// Puts a split of ten bytes.
    fn put(store: &LocalStore, position: u32, nonce: u8) {
        store.put(SplitPlace::new(0, position), Nonce([nonce; 8]), Bytes::from_static(&[0; 10]));
    }

    fn committed(position: u32, nonce: u8) -> ReadySplit {
        ReadySplit { nonce: Nonce([nonce; 8]), ..entry(0, position, 4) }
    }

    #[test]
    fn a_full_store_takes_what_is_finished() {
        let store = store(1, false);
        assert!(store.has_room());
        put(&store, 3, 1);
        assert!(!store.has_room());
        put(&store, 0, 1);
        assert_eq!(store.held_bytes(), 20);
        assert!(store.holds(&committed(0, 1)) && store.take(&committed(0, 1)).is_some());
        assert!(!store.has_room() && !store.holds(&committed(0, 1)));
        assert!(store.take(&committed(3, 1)).is_some() && store.has_room());
    }

    #[test]
    fn splits_that_are_never_taken_are_dropped() {
        let store = store(1, false);
        for (position, nonce) in [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)] {
            put(&store, position, nonce);
        }
        assert!(store.take(&committed(1, 9)).is_none(), "another process has committed it");
        assert_eq!(store.held_bytes(), 20, "the results for it and for earlier places are gone");
        put(&store, 1, 3);
        assert_eq!(store.held_bytes(), 20, "the stream is past it");
        store.discard(SplitPlace::new(0, 2), Nonce([1; 8]));
        store.discard(SplitPlace::new(0, 2), Nonce([1; 8]));
        assert_eq!(store.held_bytes(), 10);
        store.end();
        assert_eq!((store.held_bytes(), store.has_room()), (0, true));
        put(&store, 7, 1);
        assert_eq!(store.held_bytes(), 0);
    }

    #[test]
    fn a_stream_that_begins_again_finds_what_is_held() {
        let store = store(100, false);
        put(&store, 5, 1);
        assert!(store.take(&committed(4, 1)).is_none());
        store.reopen(SplitPlace::default());
        put(&store, 2, 1);
        store.begins_at(SplitPlace::new(0, 1));
        assert!(store.take(&committed(2, 1)).is_some() && store.take(&committed(5, 1)).is_some());
        store.reopen(SplitPlace::default());
        put(&store, 0, 1);
        store.begins_at(SplitPlace::new(0, 3));
        assert_eq!(store.held_bytes(), 0, "it begins behind that split");
    }

    #[test]
    fn splits_that_are_objects_too_leave_room_for_the_next_ones() {
        let store = store(25, true);
        for position in [4, 2, 3, 9] {
            put(&store, position, 1);
            assert!(store.has_room() && store.held_bytes() <= 25);
        }
        assert!(store.holds(&committed(2, 1)) && store.holds(&committed(3, 1)));
        let store = super::tests::store(1, true);
        put(&store, 0, 1);
        assert_eq!((store.held_bytes(), store.has_room()), (0, true));
    }

    #[tokio::test]
    async fn a_waiter_for_room_wakes_when_there_is_some() {
        let store = store(1, false);
        put(&store, 0, 1);
        let freed = store.freed();
        let freeing = async { store.take(&committed(0, 1)) };
        tokio::join!(freed, freeing);
        assert!(store.has_room());
    }
}
