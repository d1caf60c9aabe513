//! An `autocache` point over its life: stored, found, removed, and kept within the cache's capacity.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails the test")]

mod quiet;
mod trainer;

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{CoordinatorFunction, CoordinatorSettings};
use gristmill_model::splits::{SplitCommit, SplitKind, SplitOutcome, SplitPlace, WorkerTimes};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    AnyReply, CacheListCall, CacheListReply, CacheMode, CacheRemoveCall, CacheRemoveReply,
    CachingView, CallEnvelope, CallRefusal, ClaimCall, ClaimReply, CoordinatorCall, Dataset,
    FlushCall, JobSettings, JobSpec, Lease, LeaseWork, ListedCacheEntry, OpWork, RefusalKind,
    RegisterCall, SourceFile, StopCall, VERSION, WorkProfile,
};
use gristmill_model::{InvocationId, JobName, Namespace, Nonce};
use gristmill_ports::{
    Clock as _, ItemKey, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome, Table,
    TableError, TableItem, WriteOutcome,
    memory::{MemoryObjects, MemoryTable},
};
use quiet::{BETWEEN_POLLS, ManualClock, NoWorkers};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};
use trainer::Trainer;

/// One file of ten batches; each batch is a split of 100 bytes.
const SPLITS: u32 = 10;
const BATCH: u32 = 4;
const CHUNK_BYTES: u64 = 100;

struct World {
    coordinator: CoordinatorFunction,
    table: Arc<MemoryTable>,
    clock: Arc<ManualClock>,
    objects: Arc<MemoryObjects>,
    ns: Namespace,
}

impl World {
    fn new(cache_bytes: u64) -> Self {
        let ns: Namespace = "team".parse().unwrap();
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000)));
        let objects = Arc::new(MemoryObjects::default());
        let settings = CoordinatorSettings {
            cache_bytes,
            ..CoordinatorSettings::new(ns.clone(), "bucket".into(), "scaler".into())
        };
        let table = Arc::new(MemoryTable::default());
        let coordinator = CoordinatorFunction::new(
            Arc::clone(&table) as _,
            Arc::clone(&objects) as _,
            Arc::new(NoWorkers),
            Arc::clone(&clock) as _,
            settings,
        );
        Self { coordinator, table, clock, objects, ns }
    }

    /// A coordinator over the same world that dies after this many calls to its table and objects.
    fn dying_after(&self, calls: u32) -> CoordinatorFunction {
        let left = Arc::new(AtomicU32::new(calls));
        let table = Dying { inner: Arc::clone(&self.table), left: Arc::clone(&left) };
        CoordinatorFunction::new(
            Arc::new(table),
            Arc::new(Dying { inner: Arc::clone(&self.objects), left }),
            Arc::new(NoWorkers),
            Arc::clone(&self.clock) as _,
            CoordinatorSettings::new(self.ns.clone(), "bucket".into(), "scaler".into()),
        )
    }

    async fn call<C: CoordinatorCall>(&self, call: C) -> Result<C::Reply, CallRefusal> {
        let request = CallEnvelope { v: VERSION, ns: self.ns.clone(), call: call.into() };
        match self.coordinator.answer(&request).await {
            AnyReply::Refused(refusal) => Err(refusal),
            reply => Ok(C::reply_from(reply).unwrap()),
        }
    }

    /// Registers a job whose pipeline sleeps `ms` per record and is cached whole.
    async fn register(&self, job: &str, ms: u32, numerics: &str) {
        let pipeline = format!(
            "source: {{ tfrecord: x, features: {{ v: {{ key: v, dtype: i64 }} }} }}\n\
             ops: [sleep: {{ ms: {ms} }}, batch: {{ size: {BATCH} }}, autocache]\n"
        );
        let spec = JobSpec {
            epochs: 2,
            numerics: numerics.to_owned(),
            settings: JobSettings { split_batches: Some(1), ..JobSettings::default() },
            // The window must hold both epochs.
            workers: 20,
            ..JobSpec::new(gristmill_operators::parse(&pipeline).unwrap().canonical_json())
        };
        let file = SourceFile::new("f", 100, "e");
        let dataset = Dataset::one("data", vec![file]);
        let reply = self.call(RegisterCall::new(name(job), spec, dataset)).await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    async fn caching(&self, job: &str) -> CachingView {
        let poll = trainer::asks(&name(job), SplitPlace::default());
        self.clock.sleep(BETWEEN_POLLS).await;
        match self.call(poll).await {
            Ok(polled) => polled.job.caching.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn modes(&self, job: &str) -> Vec<CacheMode> {
        self.caching(job).await.modes.iter().map(|mode| mode.mode).collect()
    }

    async fn claim(&self, job: &str, id: u8) -> Result<ClaimReply, CallRefusal> {
        self.call(ClaimCall {
            registered_ms: 0,
            job: name(job),
            nonce: Nonce([id; 8]),
            invocation: InvocationId(format!("request-{id}")),
            numerics: "one".to_owned(),
            remaining_ms: 900_000,
            split_ms: 0,
            local: false,
            resent: false,
            needed: None,
            said: None,
        })
        .await
    }

    /// Works until there is nothing to claim; returns the leases.
    async fn work(&self, job: &str) -> Vec<Lease> {
        let mut leases = Vec::new();
        for id in 1.. {
            let Ok(ClaimReply::Leased(lease)) = self.claim(job, id).await else { break };
            let is_work = lease.work == LeaseWork::Splits;
            let commits = lease.todo.iter().map(|position| SplitCommit {
                split_index: u8::try_from(position - lease.first).unwrap(),
                outcome: SplitOutcome {
                    kind: SplitKind::Object,
                    object_bytes: if is_work { CHUNK_BYTES } else { 0 },
                    crc32c: *position,
                    rows: if is_work { BATCH } else { SPLITS * BATCH },
                    batches: u32::from(is_work),
                    remainder_rows: 0,
                    skipped_records: 0,
                },
            });
            let commits: Vec<SplitCommit> = commits.collect();
            let splits = commits.len() as u32;
            let flush = FlushCall {
                lease: lease.reference(&name(job), Nonce([id; 8])),
                commits,
                next: None,
                remaining_ms: 900_000,
                split_ms: 0,
                times: WorkerTimes::default(),
                profile: lease.cache.profile.then(|| measured(splits)),
            };
            let reply = self.call(flush).await;
            assert!(reply.is_ok(), "{reply:?}");
            if lease.work == LeaseWork::Index {
                self.caching(job).await;
            }
            leases.push(lease);
        }
        leases
    }

    async fn cached(&self) -> Vec<ListedCacheEntry> {
        match self.call(CacheListCall {}).await {
            Ok(CacheListReply { entries, .. }) => entries,
            other => panic!("{other:?}"),
        }
    }

    async fn remove(&self, listed: &ListedCacheEntry) -> Result<CacheRemoveReply, CallRefusal> {
        let fingerprint = listed.entry.fingerprint;
        self.call(CacheRemoveCall { fingerprint }).await
    }

    async fn stop(&self, job: &str) {
        let reply = self.call(StopCall { job: name(job) }).await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    async fn on(&self, prefix: &str) -> Vec<String> {
        let found = self.objects.list("bucket", prefix).await.unwrap();
        found.into_iter().map(|object| object.key).collect()
    }
}

/// A port that passes through a number of calls, then fails.
struct Dying<T> {
    inner: Arc<T>,
    left: Arc<AtomicU32>,
}

impl<T> Dying<T> {
    fn lives(&self) -> bool {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        taken.is_ok()
    }
}

#[async_trait]
impl Table for Dying<MemoryTable> {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        if self.lives() {
            self.inner.read(keys).await
        } else {
            Err(TableError::Unavailable("dead".into()))
        }
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        if self.lives() {
            self.inner.write(key, expected, body, expires_at_s).await
        } else {
            Err(TableError::Unavailable("dead".into()))
        }
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        if self.lives() {
            self.inner.range(pk, from, to).await
        } else {
            Err(TableError::Unavailable("dead".into()))
        }
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        if self.lives() {
            self.inner.last(pk, limit).await
        } else {
            Err(TableError::Unavailable("dead".into()))
        }
    }
}

#[async_trait]
impl ObjectStore for Dying<MemoryObjects> {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        if self.lives() {
            self.inner.put_if_absent(path, body, put_id).await
        } else {
            Err(ObjectError::Unavailable("dead".into()))
        }
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        if self.lives() {
            self.inner.get(path).await
        } else {
            Err(ObjectError::Unavailable("dead".into()))
        }
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        if self.lives() {
            self.inner.get_range(path, range, etag).await
        } else {
            Err(ObjectError::Unavailable("dead".into()))
        }
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        if self.lives() {
            self.inner.list(bucket, prefix).await
        } else {
            Err(ObjectError::Unavailable("dead".into()))
        }
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        if self.lives() {
            self.inner.delete(bucket, keys).await
        } else {
            Err(ObjectError::Unavailable("dead".into()))
        }
    }
}

fn name(job: &str) -> JobName {
    job.parse().unwrap()
}

/// A profile with slow computation and fast reads.
fn measured(splits: u32) -> WorkProfile {
    let op = |op: &str, stage, active_us, elements| OpWork {
        op: op.into(),
        stage,
        is_point: false,
        waits: false,
        active_us: active_us * u64::from(splits),
        elements: elements * u64::from(splits),
        bytes: 64 * u64::from(splits),
    };
    let elements = u64::from(BATCH);
    WorkProfile {
        splits,
        batches: splits,
        records: elements * u64::from(splits),
        object_bytes: CHUNK_BYTES * u64::from(splits),
        cpu_us: 0,
        ops: vec![
            op("source", None, 10, elements),
            op("sleep", Some(0), 500_000, elements),
            op("batch", Some(1), 10, 1),
        ],
        reads: vec![(CHUNK_BYTES, 1_000); splits as usize],
        source_wait_ms: 0,
    }
}

#[tokio::test]
async fn stored_cache_is_read_by_the_next_job_and_not_removed_meanwhile() {
    let world = World::new(1 << 30);
    world.register("a", 1, "").await;
    let leases = world.work("a").await;
    let splits: Vec<&Lease> =
        leases.iter().filter(|lease| lease.work == LeaseWork::Splits).collect();
    // All of the first epoch, and nothing of the second, which is not settled yet.
    assert_eq!(splits.iter().map(|lease| lease.todo.len()).sum::<usize>(), SPLITS as usize);
    assert!(splits.iter().all(|lease| lease.epoch == 0 && lease.cache.chunks.is_some()));
    let view = world.caching("a").await;
    let modes: Vec<CacheMode> = view.modes.iter().map(|mode| mode.mode).collect();
    assert_eq!(modes, [CacheMode::Profile, CacheMode::Get { point: 0 }]);
    assert_eq!((view.unsettled, view.delivered_prefix(1).is_some()), (None, true));
    assert!(world.work("a").await.is_empty(), "nobody works on what is cached");

    // The numerics class of the workers is known by now, though the job does not name it.
    world.register("b", 1, "").await;
    assert_eq!(world.modes("b").await, [CacheMode::Get { point: 0 }]);
    world.register("c", 1, "another").await;
    assert_eq!(world.modes("c").await, [CacheMode::Profile]);
    let reason = world.caching("c").await.modes[0].reason.clone();
    assert!(reason.contains("numerics class is another, was one"), "{reason}");

    let cached = world.cached().await;
    let [listed] = cached.as_slice() else { panic!("{cached:?}") };
    assert_eq!(
        (listed.entry.bytes, listed.entry.splits),
        (u64::from(SPLITS) * CHUNK_BYTES, SPLITS)
    );
    assert_eq!(listed.readers, [name("a"), name("b")]);
    for job in ["a", "b"] {
        let refused = world.remove(listed).await;
        let Err(CallRefusal { kind: RefusalKind::Invalid, message }) = refused else {
            panic!("{refused:?}")
        };
        assert!(message.contains(&format!("job {job} reads this entry")), "{message}");
        world.stop(job).await;
    }
    assert!(matches!(world.remove(listed).await, Ok(CacheRemoveReply { objects: 1 })));
    assert_eq!(
        (world.cached().await.len(), world.on(&listed.entry.cache_prefix).await.len()),
        (0, 0)
    );
    world.register("d", 1, "one").await;
    assert_eq!(world.modes("d").await, [CacheMode::Profile]);
}

#[tokio::test]
async fn an_entry_whose_manifest_is_gone_is_replaced_by_the_next_job() {
    let world = World::new(1 << 30);
    world.register("a", 1, "").await;
    world.work("a").await;
    world.caching("a").await;
    let cache_prefix = world.cached().await[0].entry.cache_prefix.clone();
    let manifests: Vec<String> = world
        .on(&cache_prefix)
        .await
        .into_iter()
        .filter(|key| key.ends_with("manifest.json"))
        .collect();
    assert_eq!(manifests.len(), 1);
    world.objects.delete("bucket", &manifests).await.unwrap();
    world.register("b", 1, "").await;
    assert_eq!(world.modes("b").await, [CacheMode::Profile], "it computes");
    world.work("b").await;
    world.caching("b").await;
    world.register("c", 1, "").await;
    assert_eq!(world.modes("c").await, [CacheMode::Get { point: 0 }]);
    assert_ne!(world.cached().await[0].entry.cache_prefix, cache_prefix);
}

#[tokio::test]
async fn an_epoch_that_the_trainer_has_passed_is_settled_at_once() {
    let world = World::new(1 << 30);
    world.register("a", 1, "").await;
    // No time has passed since the last look, before this work; still, the job may end with this poll.
    world.work("a").await;
    let (mut trainer, mut unsettled) = (Trainer::new(1, 0), Vec::new());
    for place in [0, 1].map(SplitPlace::start_of) {
        let polled = world.call(trainer.poll(&name("a"), place, place, place)).await.unwrap();
        trainer.answered(&polled);
        unsettled.push(polled.job.caching.unwrap().unsettled);
    }
    assert_eq!(unsettled, [Some(1), None]);
    assert_eq!(world.cached().await.len(), 1);
}

#[tokio::test]
async fn least_useful_cache_entry_makes_room_unless_it_is_read() {
    let world = World::new(u64::from(SPLITS) * CHUNK_BYTES * 3 / 2);
    for (job, ms) in [("a", 1), ("b", 2)] {
        world.register(job, ms, "").await;
        world.work(job).await;
        assert_eq!(world.modes(job).await, [CacheMode::Profile, CacheMode::Get { point: 0 }]);
        if job == "a" {
            world.stop(job).await;
        }
    }
    let cached = world.cached().await;
    assert_eq!(cached.iter().map(|listed| listed.entry.job.as_str()).collect::<Vec<_>>(), ["b"]);
    world.register("c", 3, "").await;
    world.work("c").await;
    assert_eq!(world.modes("c").await, [CacheMode::Profile, CacheMode::Compute]);
    let computed = world.work("c").await;
    assert_eq!(computed.iter().map(|lease| lease.todo.len()).sum::<usize>(), SPLITS as usize);
    let reason = world.caching("c").await.modes[1].reason.clone();
    assert!(reason.contains("1000 are in use"), "{reason}");
}

#[tokio::test]
async fn two_jobs_that_store_the_same_do_not_meet_and_one_of_them_stays() {
    let world = World::new(1 << 30);
    world.register("a", 1, "one").await;
    world.register("b", 1, "one").await;
    for job in ["a", "b"] {
        world.work(job).await;
        assert_eq!(world.modes(job).await.len(), 2);
    }
    let cache_prefix = |view: CachingView| view.modes[1].cache_prefix.clone().unwrap();
    let (a, b) = (cache_prefix(world.caching("a").await), cache_prefix(world.caching("b").await));
    assert_ne!(a, b);
    assert_eq!(world.cached().await[0].entry.cache_prefix, a);
    assert_eq!(world.on(&b).await, [keys::cache_manifest(&b)]);
    for job in ["a", "b"] {
        world.stop(job).await;
    }
    // After two hours, no worker can still put objects for the ended jobs.
    world.clock.0.fetch_add(7_200_000, Ordering::Relaxed);
    world.coordinator.upkeep().await.unwrap();
    assert_eq!(world.on(&b).await, Vec::<String>::new());
    assert_eq!(world.on(&a).await, [keys::cache_manifest(&a)]);
    world.register("c", 1, "one").await;
    assert_eq!(world.modes("c").await, [CacheMode::Get { point: 0 }]);
}

/// The actor that runs after an interrupted removal.
#[derive(Debug, Clone, Copy, PartialEq)]
enum After {
    Retry,
    Upkeep,
    /// A job that would read the half-removed entry.
    Job,
}

#[tokio::test]
async fn a_removal_that_dies_between_any_two_calls_is_finished_by_the_next_caller() {
    for after in [After::Retry, After::Upkeep, After::Job] {
        for calls in 0.. {
            let world = World::new(1 << 30);
            world.register("a", 1, "one").await;
            world.work("a").await;
            world.modes("a").await;
            world.stop("a").await;
            let listed = world.cached().await.remove(0);
            let fingerprint = listed.entry.fingerprint;
            let reply = world.dying_after(calls).call(CacheRemoveCall { fingerprint }).await;
            let finished = reply.is_ok();
            let at = format!("{after:?} comes after {calls} calls");
            match after {
                After::Retry => match world.remove(&listed).await {
                    Ok(CacheRemoveReply { .. }) => {}
                    Err(CallRefusal { kind: RefusalKind::NotFound, .. }) => {
                        assert!(world.on(&listed.entry.cache_prefix).await.is_empty(), "{at}");
                    }
                    other => panic!("{at}: {other:?}"),
                },
                After::Upkeep => drop(world.coordinator.upkeep().await.unwrap()),
                After::Job => {}
            }
            // The next job finds an entry that is stored from now on.
            world.register("b", 1, "one").await;
            world.work("b").await;
            let modes = world.modes("b").await;
            world.register("c", 1, "one").await;
            let got = [CacheMode::Get { point: 0 }];
            assert_eq!(world.modes("c").await, got, "{at}: after {modes:?}");
            let begun = modes != got;
            if begun {
                assert!(world.on(&listed.entry.cache_prefix).await.is_empty(), "{at}: left behind");
            }
            let Ok(CacheListReply { removing, .. }) = world.call(CacheListCall {}).await else {
                panic!()
            };
            assert!(removing.is_empty(), "{at}");
            if finished {
                assert!(calls > 5, "{calls}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_reader_that_lives_is_never_forgotten() {
    let world = World::new(1 << 30);
    world.register("first", 1, "one").await;
    world.work("first").await;
    world.modes("first").await;
    for i in 0..300 {
        let job = format!("j{i}");
        world.register(&job, 1, "one").await;
        if i % 2 == 0 {
            world.stop(&job).await;
        }
    }
    let listed = world.cached().await.remove(0);
    assert!(listed.readers.contains(&name("first")) && listed.readers.contains(&name("j1")));
    assert_eq!(listed.readers.len(), 151);
}
