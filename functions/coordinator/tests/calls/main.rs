//! The coordinator's calls, as workers and trainers send them: over a table in memory, and, ignored unless
//! `scripts/test-peers` runs them, over an independent implementation of DynamoDB.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails the test")]

mod expired;
mod lost_writes;
mod many_objects;
mod prune;
#[path = "../quiet/mod.rs"]
mod quiet;
mod reports;
#[path = "../trainer/mod.rs"]
mod trainer;
mod versions;
mod world;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use gristmill_aws::{Aws, AwsCredentials, AwsEndpoints};
use gristmill_coordinator::{CoordinatorFunction, CoordinatorSettings, UpkeepReport, handle};
use gristmill_model::splits::{SplitCommit, SplitKind, SplitOutcome, SplitPlace, WorkerTimes};
use gristmill_model::wire::{
    AnyReply, CallEnvelope, CallRefusal, ClaimCall, ClaimReply, CoordinatorCall, Dataset,
    FlushCall, FlushReply, IdleReason, IdleReply, JobSettings, JobSpec, JobState, Lease, LeaseWork,
    MarkCall, PollCall, PollReply, ReadySplit, RefusalKind, RegisterCall, ReleaseCall, SourceFile,
    StatusCall, StopCall, VERSION,
};
use gristmill_model::{InvocationId, JobName, Namespace, Nonce};
use gristmill_ports::{
    Clock as _, ItemKey, ObjectPath, ObjectStore as _, Table, TableError, TableItem, WriteOutcome,
    memory::{MemoryObjects, MemoryTable},
};
use quiet::{BETWEEN_POLLS, ManualClock, NoWorkers};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::Notify;
use trainer::Trainer;
use world::{BATCH, RECORDS, World};

/// A table that applies every third write but reports a failure, as if the answer was lost.
struct Lossy {
    table: Arc<dyn Table>,
    writes: AtomicU32,
}

#[async_trait]
impl Table for Lossy {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        self.table.read(keys).await
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        let outcome = self.table.write(key, expected, body, expires_at_s).await?;
        match self.writes.fetch_add(1, Ordering::Relaxed) % 3 {
            2 => Err(TableError::Unavailable("the answer is lost".to_owned())),
            _ => Ok(outcome),
        }
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.table.range(pk, from, to).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.table.last(pk, limit).await
    }
}

/// The table of a process that freezes after its first read of the job until the test wakes it.
struct Freezing {
    table: Arc<dyn Table>,
    reads: AtomicU32,
    frozen: Notify,
    goes_on: Notify,
}

#[async_trait]
impl Table for Freezing {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        let items = self.table.read(keys).await;
        let is_job = keys.iter().any(|key| key.sk == "JOB");
        if is_job && self.reads.fetch_add(1, Ordering::Relaxed) == 0 {
            self.frozen.notify_one();
            self.goes_on.notified().await;
        }
        items
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        self.table.write(key, expected, body, expires_at_s).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.table.range(pk, from, to).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.table.last(pk, limit).await
    }
}

fn invocation(id: u8) -> InvocationId {
    InvocationId(format!("request-{id}"))
}

fn leased(reply: Result<ClaimReply, CallRefusal>) -> Lease {
    match reply {
        Ok(ClaimReply::Leased(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

/// The table that `scripts/test-peers` created in an independent implementation of DynamoDB.
fn peer() -> Arc<dyn Table> {
    let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("set {name}"));
    let endpoints = AwsEndpoints {
        dynamodb: Some(variable("GRISTMILL_PEER_DYNAMODB")),
        ..AwsEndpoints::default()
    };
    let credentials = AwsCredentials {
        access_key_id: variable("AWS_ACCESS_KEY_ID"),
        secret_access_key: variable("AWS_SECRET_ACCESS_KEY"),
        session_token: None,
    };
    Aws::with(endpoints, "us-east-1".to_owned(), credentials).unwrap().table("gristmill")
}

/// Defines one test per case over a table in memory, and one over a peer's table.
macro_rules! cases {
    ($($name:ident,)*) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(std::sync::Arc::new(super::MemoryTable::default())).await;
            })*
        }
        mod peer {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs another DynamoDB: scripts/test-peers"]
            async fn $name() {
                super::$name(super::peer()).await;
            })*
        }
    };
}

cases! {
    a_poll_that_freezes_names_no_split_that_its_job_does_not_locate,
    a_dead_workers_lease_is_free_at_once_and_nobody_elses,
    a_claim_that_arrives_after_its_worker_was_reported_dead_holds_nothing_for_long,
    claims_that_race_get_a_lease_each_or_none,
    a_lease_that_ran_out_is_anothers_and_its_first_owner_is_refused,
    remembered_leases_may_be_outdated,
    a_worker_that_is_silent_while_others_go_on_loses_its_lease_early,
    a_call_that_is_sent_again_is_answered_the_same,
    files_too_many_for_a_call_lie_in_a_listing,
    the_first_worker_settles_the_numerics_and_one_of_another_class_ends_the_job,
    a_job_is_done_once_under_races_deaths_and_lost_answers,
}

#[tokio::test]
async fn a_call_through_the_endpoint_of_lambda_is_answered_as_one_to_the_url() {
    let world = World::indexing(Arc::new(MemoryTable::default()), 2).await;
    let status = StatusCall { job: world.job.clone() };
    let call = CallEnvelope { v: VERSION, ns: world.ns.clone(), call: status.into() };
    let call = serde_json::to_string(&call).unwrap();
    let asked = async |event: &str| {
        let event = lambda_http::request::from_str(event).unwrap();
        let answer = handle(&world.coordinator, &event).await.unwrap();
        match answer.into_body() {
            lambda_http::Body::Text(text) => text,
            other => panic!("{other:?}"),
        }
    };
    let context = serde_json::json!({
        "http": { "method": "POST", "path": "/", "protocol": "HTTP/1.1", "sourceIp": "::1" },
        "timeEpoch": 0,
    });
    let posted = serde_json::json!({
        "version": "2.0", "rawPath": "/", "rawQueryString": "", "headers": {},
        "requestContext": context, "body": call, "isBase64Encoded": false,
    });
    let answer = asked(&posted.to_string()).await;
    assert!(answer.contains(r#""reply":"status""#), "{answer}");
    assert_eq!(asked(&call).await, answer);
    assert_eq!(asked(r#"{"upkeep":false}"#).await, "null");
    assert!(asked(r#"{"v":2}"#).await.contains(r#""reply":"refused""#));
}

async fn a_dead_workers_lease_is_free_at_once_and_nobody_elses(table: Arc<dyn Table>) {
    let world = World::indexing(table, 2).await;
    let (one, two) = (leased(world.claim(1).await), leased(world.claim(2).await));
    assert_eq!((one.work, one.bundle, two.bundle), (LeaseWork::Index, 0, 1));
    assert!(matches!(
        world.claim(3).await,
        Ok(ClaimReply::Idle(IdleReply { reason: IdleReason::AllClaimed }))
    ));
    world.died(1).await;
    assert_eq!(world.poll().await.claimable, 1);
    let again = leased(world.claim(3).await);
    assert_eq!((again.bundle, again.attempt), (0, 2));
    // The report arrives twice: by now another worker holds the lease.
    world.died(1).await;
    assert_eq!(world.poll().await.claimable, 0);
}

async fn a_claim_that_arrives_after_its_worker_was_reported_dead_holds_nothing_for_long(
    table: Arc<dyn Table>,
) {
    let world = World::indexing(table, 1).await;
    world.died(1).await;
    assert_eq!(leased(world.claim(1).await).attempt, 1);
    let polled = world.poll().await;
    assert_eq!((polled.claimable, polled.active_workers()), (1, 0), "the trainer's poll frees it");
    assert_eq!(leased(world.claim(2).await).attempt, 2);
    assert_eq!(world.poll().await.claimable, 0, "a living worker keeps its lease");
    // The platform had run the event twice, and the other copy is alive: it loses no second lease.
    world.died(2).await;
    assert_eq!(leased(world.claim(1).await).attempt, 3);
    assert_eq!(world.poll().await.claimable, 0);
}

async fn claims_that_race_get_a_lease_each_or_none(table: Arc<dyn Table>) {
    let world = World::indexing(table, 5).await;
    let replies = join_all((1..=12).map(|id| world.claim(id))).await;
    let mut bundles = Vec::new();
    for reply in replies {
        match reply {
            Ok(ClaimReply::Leased(lease)) => bundles.push((lease.bundle, lease.attempt)),
            Ok(ClaimReply::Idle(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    bundles.sort_unstable();
    let every: Vec<_> = (0..bundles.len() as u32).map(|bundle| (bundle, 1)).collect();
    assert_eq!(bundles, every, "each bundle has one owner");
    assert_eq!(world.poll().await.claimable, 0);
}

async fn a_lease_that_ran_out_is_anothers_and_its_first_owner_is_refused(table: Arc<dyn Table>) {
    let world = World::indexing(table, 1).await;
    let late = leased(world.claim(1).await);
    assert!(
        matches!(world.claim(2).await, Ok(ClaimReply::Idle(_))),
        "nobody else's while it lasts"
    );
    world.clock.sleep(Duration::from_secs(3600)).await;
    // The trainer's poll looks at the window, and adds returned bundles to the hints.
    world.poll().await;
    let lease = leased(world.claim(2).await);
    assert_eq!((lease.bundle, lease.attempt), (late.bundle, 2));
    let refused = world.work(&late, Nonce([1; 8])).await;
    assert!(
        matches!(&refused, Err(refusal) if refusal.kind == RefusalKind::LeaseLost),
        "{refused:?}"
    );
    assert!(matches!(world.work(&lease, Nonce([2; 8])).await, Ok(FlushReply { .. })));
    assert_eq!(world.poll().await.job.state, JobState::Running);
}

async fn remembered_leases_may_be_outdated(table: Arc<dyn Table>) {
    let world = World::running(table).await;
    leased(world.claim(2).await);
    // Few workers are active: from now on the process remembers the leases it grants.
    assert_eq!(world.poll().await.active_workers(), 1);
    let old = leased(world.claim(3).await);
    let other = world.another_process();
    other.died(3).await;
    other.poll().await;
    let new = leased(other.claim(4).await);
    assert_eq!((new.bundle, new.attempt), (old.bundle, 2));
    // A bundle leased by another process, which this one does not know.
    let next = leased(other.claim(5).await);
    assert!(matches!(world.work(&new, Nonce([4; 8])).await, Ok(FlushReply { .. })));
    let refused = world.work(&old, Nonce([3; 8])).await;
    assert!(matches!(&refused, Err(refusal) if refusal.kind == RefusalKind::LeaseLost));
    let last = leased(world.claim(6).await);
    assert!(last.bundle > next.bundle, "{last:?} after {next:?}");
    for (lease, id) in [(next, 5), (last, 6)] {
        assert!(matches!(world.work(&lease, Nonce([id; 8])).await, Ok(FlushReply { .. })));
    }
}

async fn a_worker_that_is_silent_while_others_go_on_loses_its_lease_early(table: Arc<dyn Table>) {
    let world = World::running(table).await;
    let silent = leased(world.claim(2).await);
    let began_ms = world.clock.now_ms();
    for id in 10..40 {
        world.poll().await;
        let lease = leased(world.claim(id).await);
        if lease.bundle == silent.bundle {
            let waited_ms = world.clock.now_ms() - began_ms;
            assert!((2_500..6_000).contains(&waited_ms), "{waited_ms}");
            assert_eq!((lease.attempt, lease.todo.len()), (2, silent.todo.len()));
            let refused = world.work(&silent, Nonce([2; 8])).await;
            assert!(matches!(&refused, Err(r) if r.kind == RefusalKind::LeaseLost));
            assert!(matches!(world.work(&lease, Nonce([id; 8])).await, Ok(FlushReply { .. })));
            return;
        }
        assert!(matches!(world.work(&lease, Nonce([id; 8])).await, Ok(FlushReply { .. })));
        world.clock.sleep(Duration::from_millis(500)).await;
    }
    panic!("its lease was not ended");
}

async fn files_too_many_for_a_call_lie_in_a_listing(table: Arc<dyn Table>) {
    let world = World::indexing(table, 3).await;
    let view = world.poll().await.job;
    let registration = world.registration.clone();
    let stored = registration.clone().with_listing(view.dataset_version);
    // Both forms of the call join the same job: files in the call, or a stored listing.
    assert!(world.call(stored.clone()).await.is_ok());
    let named = |name: &str| RegisterCall { job: name.parse().unwrap(), ..stored.clone() };
    match world.call(named("listed")).await {
        Ok(view) => assert_eq!((view.state, view.n_files), (JobState::Indexing, 3)),
        other => panic!("{other:?}"),
    }
    let absent = gristmill_model::Fingerprint::from_content("test", b"another");
    let absent =
        RegisterCall { listing: registration.with_listing(absent).listing, ..named("absent") };
    match world.call(absent).await {
        Err(refusal) => {
            assert!(refusal.message.contains("is not stored"), "{refusal:?}")
        }
        other => panic!("{other:?}"),
    }
}

async fn a_call_that_is_sent_again_is_answered_the_same(table: Arc<dyn Table>) {
    let world = World::indexing(table, 2).await;
    let lease = leased(world.claim(1).await);
    let again = world.claim_of(Nonce([1; 8]), invocation(1), "one");
    let again = ClaimCall { resent: true, ..again };
    assert_eq!(leased(world.call(again).await), lease);
    for _ in 0..2 {
        assert!(matches!(world.work(&lease, Nonce([1; 8])).await, Ok(FlushReply { .. })));
    }
    assert_eq!(world.poll().await.indexed_files, 1);
}

async fn a_job_is_done_once_under_races_deaths_and_lost_answers(table: Arc<dyn Table>) {
    let table = Lossy { table, writes: AtomicU32::new(0) };
    let files = 3;
    let world = World::indexing(Arc::new(table), files as usize).await;
    let splits = files * RECORDS / BATCH;
    let workers = join_all((1..=6).map(|id| world.be_a_worker(id)));
    let job = async { tokio::join!(workers, world.be_the_trainer(splits)) };
    let (_, seen) = tokio::time::timeout(Duration::from_secs(120), job).await.unwrap();
    assert!(seen.keys().copied().eq(0..splits), "{:?}", seen.keys());
    assert_eq!(seen.values().map(|entry| entry.outcome.rows).sum::<u32>(), files * RECORDS);
    assert!(seen.values().any(|entry| entry.attempt > 1), "leases of the dead were taken over");
}

async fn a_poll_that_freezes_names_no_split_that_its_job_does_not_locate(table: Arc<dyn Table>) {
    let world = World::running(Arc::clone(&table)).await;
    let freezing = Arc::new(Freezing {
        table,
        reads: AtomicU32::new(0),
        frozen: Notify::new(),
        goes_on: Notify::new(),
    });
    let frozen = world.process_over(Arc::clone(&freezing) as _);
    let poll = async { frozen.poll().await };
    let others = async {
        freezing.frozen.notified().await;
        let lease = leased(world.claim(2).await);
        world.work(&lease, Nonce([2; 8])).await.unwrap();
        freezing.goes_on.notify_one();
    };
    let (polled, ()) = futures::join!(poll, others);
    assert_eq!(polled.job.spec.numerics, "");
    assert!(polled.ready.is_empty(), "{:?}", polled.ready);
    assert_eq!(world.poll().await.ready.len(), 1);
}

async fn the_first_worker_settles_the_numerics_and_one_of_another_class_ends_the_job(
    table: Arc<dyn Table>,
) {
    let world = World::running(table).await;
    assert!(matches!(world.claim_as(2, "one").await, Ok(ClaimReply::Leased(_))));
    assert!(matches!(
        world.claim_as(3, "two").await,
        Ok(ClaimReply::Idle(IdleReply { reason: IdleReason::JobEnded }))
    ));
    let JobState::Failed { error, .. } = world.poll().await.job.state else { panic!("it goes on") };
    assert!(error.contains("class one") && error.contains("has two"), "{error}");
}

#[tokio::test]
async fn an_abandoned_job_is_stopped_and_what_it_left_is_deleted() {
    let table = Arc::new(MemoryTable::default());
    let world = World::running(table.clone()).await;
    let jobs = format!("t/{}/jobs/", world.ns);
    let name = format!("{jobs}j/e000000/b00000000/00000000.1.0101010101010101");
    world.put(&format!("{name}.gmc")).await;
    let report = format!("t/{}/quarantine/j/e000000-00000000.skipped.json", world.ns);
    world.put(&report).await;
    world.pass(13);
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(
        upkeep,
        UpkeepReport { jobs: 1, ..UpkeepReport::default() },
        "its trainer may come back"
    );
    world.pass(2);
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, UpkeepReport { jobs: 1, abandoned: 1, ..UpkeepReport::default() });
    assert_eq!(world.poll().await.job.state, JobState::Stopped);
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, UpkeepReport { jobs: 1, tidied: 1, chunks: 1, ..UpkeepReport::default() });
    assert!(world.objects.list("bucket", &jobs).await.unwrap().is_empty());
    let left = world.objects.list("bucket", &report).await.unwrap();
    assert_eq!(left.len(), 1, "why records are missing can still be read");
    let upkeep = world.coordinator.upkeep().await.unwrap();
    assert_eq!(upkeep, UpkeepReport::default(), "nothing is left to do");
    for (key, expires_at_s) in table.expiries() {
        assert!(expires_at_s.is_some(), "{key:?} stays for ever");
    }
}

#[tokio::test]
async fn bundles_expire_before_what_says_that_their_job_was_there() {
    let table = Arc::new(MemoryTable::default());
    let world = World::running(table.clone()).await;
    let reply = world.call(StopCall { job: world.job.clone() }).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(world.coordinator.upkeep().await.unwrap().tidied, 0, "workers may still put");
    world.pass(1);
    assert_eq!(world.coordinator.upkeep().await.unwrap().tidied, 1);
    let expiries = table.expiries();
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
