//! The coordinator's calls over a table in memory, as workers and trainers send them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails the test")]

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{Coordinator, Settings};
use gristmill_pipeline::Pipeline;
use gristmill_ports::{
    Clock, InvokeError, Invoked, Invoker,
    memory::{MemoryObjects, MemoryTable},
};
use gristmill_protocol::{
    Call, Claim, Dataset, Idle, IdleReason, JobSpec, Lease, Poll, Polled, Register, Release, Reply,
    Request, SourceFile, TrainerMetrics, VERSION, Work,
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
    job: JobName,
}

impl World {
    /// A job that is about to index `files` files.
    async fn indexing(files: usize) -> Self {
        let coordinator = Coordinator::new(
            Arc::new(MemoryTable::default()),
            Arc::new(MemoryObjects::default()),
            Arc::new(NoWorkers),
            Arc::new(ManualClock(AtomicU64::new(1_000_000))),
            Settings::new("t".parse().unwrap(), "bucket".into(), "scaler".into()),
        );
        let world = Self { coordinator, job: "j".parse().unwrap() };
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
        let claim = Claim {
            job: self.job.clone(),
            nonce: Nonce([id; 8]),
            invocation: invocation(id),
            remaining_ms: 900_000,
            split_ms: 0,
            local: false,
        };
        self.call(Call::Claim(claim)).await
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
