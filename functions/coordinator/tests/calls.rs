//! The coordinator's calls over a table in memory, as workers and trainers send them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails the test")]

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{Coordinator, Settings, Upkeep};
use gristmill_pipeline::Pipeline;
use gristmill_ports::{
    Clock, InvokeError, Invoked, Invoker, ObjectPath, Objects as _,
    memory::{MemoryObjects, MemoryTable},
};
use gristmill_protocol::{
    Call, Claim, Commit, Dataset, Flush, Idle, IdleReason, JobSpec, JobState, Lease, Poll, Polled,
    Register, Release, Reply, Request, SourceFile, TrainerMetrics, VERSION, Work, WorkerCost,
};
use gristmill_types::{ErrorPolicy, InvocationId, JobName, Nonce};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Time stands still unless a test moves it.
struct ManualClock(AtomicU64);

#[async_trait]
impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }

    async fn sleep(&self, duration: Duration) {
        self.0.fetch_add(duration.as_millis() as u64, Ordering::Relaxed);
    }

    fn nonce(&self) -> Nonce {
        Nonce(self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes())
    }
}

struct NoWorkers;

#[async_trait]
impl Invoker for NoWorkers {
    async fn invoke(&self, _function: &str, _payload: Bytes) -> Result<Invoked, InvokeError> {
        Ok(Invoked::Accepted)
    }
}

struct World {
    coordinator: Coordinator,
    clock: Arc<ManualClock>,
    table: Arc<MemoryTable>,
    objects: Arc<MemoryObjects>,
    job: JobName,
}

impl World {
    /// A job that is about to index `files` files.
    async fn indexing(files: usize) -> Self {
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000)));
        let (table, objects) =
            (Arc::new(MemoryTable::default()), Arc::new(MemoryObjects::default()));
        let coordinator = Coordinator::new(
            Arc::clone(&table) as _,
            Arc::clone(&objects) as _,
            Arc::new(NoWorkers),
            Arc::clone(&clock) as _,
            Settings::new("t".parse().unwrap(), "bucket".into(), "scaler".into()),
        );
        let world = Self { coordinator, clock, table, objects, job: "j".parse().unwrap() };
        let pipeline = "source: { tfrecord: x, features: { v: { key: v, dtype: i64 } } }\n\
                        ops: [batch: { size: 4 }]\n";
        let spec = JobSpec {
            pipeline: Pipeline::parse(pipeline).unwrap().canonical_json(),
            seed: 0,
            epochs: 1,
            on_error: ErrorPolicy::Fail,
            numerics: String::new(),
            split_batches: None,
            workers: 2,
            local_workers: 0,
            max_skipped: 0,
        };
        let file = |i| SourceFile { key: format!("f{i}"), size: 100, etag: "e".into() };
        let dataset = Dataset { bucket: "data".into(), files: (0..files).map(file).collect() };
        let job = world.job.clone();
        let reply = world.call(Call::Register(Register { job, spec, dataset })).await;
        assert!(matches!(reply, Reply::Job(_)), "{reply:?}");
        world
    }

    async fn call(&self, call: Call) -> Reply {
        self.coordinator.answer(&Request { v: VERSION, ns: "t".parse().unwrap(), call }).await
    }

    async fn claim(&self, id: u8) -> Reply {
        self.claim_as(id, "one").await
    }

    async fn claim_as(&self, id: u8, numerics: &str) -> Reply {
        let claim = Claim {
            job: self.job.clone(),
            nonce: Nonce([id; 8]),
            invocation: invocation(id),
            numerics: numerics.to_owned(),
            remaining_ms: 900_000,
            split_ms: 0,
            local: false,
        };
        self.call(Call::Claim(claim)).await
    }

    /// A job of one split: its one file, of four records, is indexed.
    async fn running() -> Self {
        let world = Self::indexing(1).await;
        let lease = leased(world.claim(1).await);
        let commit = Commit {
            index: 0,
            local: false,
            object_bytes: 0,
            crc32c: 0,
            rows: 4,
            batches: 0,
            remainder_rows: 0,
            skipped: 0,
        };
        let flush = Flush {
            job: world.job.clone(),
            epoch: lease.epoch,
            bundle: lease.bundle,
            attempt: lease.attempt,
            nonce: Nonce([1; 8]),
            commits: vec![commit],
            next: None,
            remaining_ms: 900_000,
            split_ms: 1,
            cost: WorkerCost::default(),
        };
        let reply = world.call(Call::Flush(flush)).await;
        assert!(matches!(reply, Reply::Applied), "{reply:?}");
        assert_eq!(world.poll().await.job.state, JobState::Running);
        world
    }

    fn pass(&self, days: u64) {
        self.clock.0.fetch_add(days * 86_400_000, Ordering::Relaxed);
    }

    async fn put(&self, key: &str) {
        let path = ObjectPath::new("bucket", key);
        self.objects.put_if_absent(&path, Bytes::from_static(b"x"), "id").await.unwrap();
    }

    async fn died(&self, id: u8) {
        let release = Release {
            job: self.job.clone(),
            invocation: invocation(id),
            worker: Some(u32::from(id)),
            blameless: false,
        };
        let reply = self.call(Call::Release(release)).await;
        assert!(matches!(reply, Reply::Applied), "{reply:?}");
    }

    async fn poll(&self) -> Polled {
        let metrics = TrainerMetrics::default();
        let poll = Poll { job: self.job.clone(), from: (0, 0), ack: None, metrics };
        match self.call(Call::Poll(poll)).await {
            Reply::Polled(polled) => polled,
            other => panic!("{other:?}"),
        }
    }
}

fn invocation(id: u8) -> InvocationId {
    InvocationId(format!("request-{id}"))
}

fn leased(reply: Reply) -> Lease {
    match reply {
        Reply::Leased(lease) => lease,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_dead_workers_lease_is_free_at_once_and_nobody_elses() {
    let world = World::indexing(2).await;
    let (one, two) = (leased(world.claim(1).await), leased(world.claim(2).await));
    assert_eq!((one.work, one.bundle, two.bundle), (Work::Index, 0, 1));
    assert!(matches!(world.claim(3).await, Reply::Idle(Idle { reason: IdleReason::AllClaimed })));
    world.died(1).await;
    assert_eq!(world.poll().await.claimable, 1);
    let again = leased(world.claim(3).await);
    assert_eq!((again.bundle, again.attempt), (0, 2));
    // The report comes a second time: the lease is another's by now.
    world.died(1).await;
    assert_eq!(world.poll().await.claimable, 0);
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_worker_was_reported_dead_holds_nothing_for_long() {
    let world = World::indexing(1).await;
    world.died(1).await;
    assert_eq!(leased(world.claim(1).await).attempt, 1);
    let polled = world.poll().await;
    assert_eq!((polled.claimable, polled.active_workers), (1, 0), "the trainer's poll frees it");
    assert_eq!(leased(world.claim(2).await).attempt, 2);
    assert_eq!(world.poll().await.claimable, 0, "a living worker keeps its lease");
    // The platform had run the event twice, and the other copy lives: it loses no second lease.
    world.died(2).await;
    assert_eq!(leased(world.claim(1).await).attempt, 3);
    assert_eq!(world.poll().await.claimable, 0);
}

#[tokio::test]
async fn the_first_worker_settles_the_numerics_and_one_of_another_class_ends_the_job() {
    let world = World::running().await;
    assert!(matches!(world.claim_as(2, "one").await, Reply::Leased(_)));
    assert!(matches!(
        world.claim_as(3, "two").await,
        Reply::Idle(Idle { reason: IdleReason::JobEnded })
    ));
    let JobState::Failed { error } = world.poll().await.job.state else { panic!("it goes on") };
    assert!(error.contains("class one") && error.contains("came with two"), "{error}");
}

#[tokio::test]
async fn an_abandoned_job_is_stopped_and_what_it_left_is_deleted() {
    let world = World::running().await;
    let name: &str = "t/t/jobs/j/e000000/b00000000/00000000.1.0101010101010101";
    world.put(&format!("{name}.gmc")).await;
    world.put(&format!("{name}.skipped.json")).await;
    world.pass(13);
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, Upkeep { jobs: 1, ..Upkeep::default() }, "its trainer may come back");
    world.pass(2);
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, Upkeep { jobs: 1, abandoned: 1, ..Upkeep::default() });
    assert_eq!(world.poll().await.job.state, JobState::Stopped);
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, Upkeep { jobs: 1, tidied: 1, chunks: 1, ..Upkeep::default() });
    let left = world.objects.list("bucket", "t/t/jobs/").await.unwrap();
    let left: Vec<_> = left.into_iter().map(|object| object.key).collect();
    assert_eq!(left, [format!("{name}.skipped.json")], "why records are missing can still be read");
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, Upkeep::default(), "nothing is left to do");
    for (key, expires_at_s) in world.table.expiries() {
        assert!(expires_at_s.is_some(), "{key:?} stays for ever");
    }
}

#[tokio::test]
async fn bundles_expire_before_what_says_that_their_job_was_there() {
    let world = World::running().await;
    let reply = world.call(Call::Stop { job: world.job.clone() }).await;
    assert!(matches!(reply, Reply::Job(_)), "{reply:?}");
    assert_eq!(world.coordinator.upkeep().await.unwrap().tidied, 0, "workers may still put");
    world.pass(1);
    assert_eq!(world.coordinator.upkeep().await.unwrap().tidied, 1);
    let expiries = world.table.expiries();
    let of = |part: &str| {
        let found =
            expiries.iter().filter(|(key, _)| format!("{}/{}", key.pk, key.sk).contains(part));
        found.map(|(_, expires_at_s)| expires_at_s.unwrap()).collect::<Vec<_>>()
    };
    let (job, bundles) = (of("/JOB"), of("/B#"));
    assert!(!bundles.is_empty() && job.len() == 1);
    let margin = Duration::from_secs(7 * 86_400).as_secs();
    assert!(bundles.iter().all(|bundle| bundle + margin < job[0]), "{bundles:?} {job:?}");
}
