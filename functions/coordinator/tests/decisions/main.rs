//! Decisions about a whole job: lost workers, surplus workers, giving up, and reusing a name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails the test")]

mod needed;
#[path = "../quiet/mod.rs"]
mod quiet;
mod readers;
mod spending;
#[path = "../trainer/mod.rs"]
mod trainer;
mod trainers;

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{CoordinatorFunction, CoordinatorSettings};
use gristmill_model::splits::{SplitCommit, SplitKind, SplitOutcome, SplitPlace, WorkerTimes};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    AccountRoom, AnyReply, AppliedReply, CallEnvelope, CallRefusal, ClaimCall, ClaimReply,
    CoordinatorCall, Dataset, FlushCall, FlushReply, ForgetCall, ForgetReply, IdleReason,
    IdleReply, JobSettings, JobSpec, JobState, JobView, Lease, LeaseWork, LeaveCall, PollCall,
    PollReply, RefusalKind, RegisterCall, ReleaseCall, ScaleState, ScalerEvent,
    SkippedRecordLocation, SourceFile, StatusCall, StopCall, VERSION,
};
use gristmill_model::{
    ErrorPolicy, InvocationId, JobName, Namespace, Nonce, RecordKey, SkippedRecord,
};
use gristmill_ports::{
    Clock as _, InvokeError, InvokeOutcome, Invoker, ItemKey, ObjectPath, ObjectStore as _,
    Table as _, TableItem,
    memory::{MemoryObjects, MemoryTable},
};
use quiet::{BETWEEN_POLLS, ManualClock};
use std::{
    ops::Range,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};
use trainer::Trainer;

/// Records of the only file, in splits of one batch.
const RECORDS: u32 = 400;
const BATCH: u32 = 10;

#[derive(Default)]
struct Kicks(Mutex<Vec<ScalerEvent>>);

#[async_trait]
impl Invoker for Kicks {
    async fn invoke(&self, _function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        self.0.lock().unwrap().push(serde_json::from_slice(&payload).unwrap());
        Ok(InvokeOutcome::Accepted)
    }
}

struct World {
    coordinator: CoordinatorFunction,
    clock: Arc<ManualClock>,
    table: Arc<MemoryTable>,
    objects: Arc<MemoryObjects>,
    kicks: Arc<Kicks>,
    ns: Namespace,
    job: JobName,
    /// The one that polls.
    trainer: Mutex<Trainer>,
}

/// Splits of one batch.
fn settings(on_error: ErrorPolicy) -> JobSettings {
    JobSettings { on_error, split_batches: Some(1), ..JobSettings::default() }
}

impl World {
    /// A job whose dataset is indexed.
    async fn running(on_error: ErrorPolicy) -> Self {
        Self::with(settings(on_error), BATCH).await
    }

    /// The same, with these settings and batches of `batch` records.
    async fn with(settings: JobSettings, batch: u32) -> Self {
        let ns: Namespace = "team".parse().unwrap();
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000)));
        let (table, objects) =
            (Arc::new(MemoryTable::default()), Arc::new(MemoryObjects::default()));
        let kicks = Arc::new(Kicks::default());
        let coordinator = CoordinatorFunction::new(
            Arc::clone(&table) as _,
            Arc::clone(&objects) as _,
            Arc::clone(&kicks) as _,
            Arc::clone(&clock) as _,
            CoordinatorSettings::new(ns.clone(), "bucket".into(), "scaler".into()),
        );
        let (job, trainer) = ("j".parse().unwrap(), Mutex::new(Trainer::new(1, 0)));
        let world = Self { coordinator, clock, table, objects, kicks, ns, job, trainer };
        assert!(world.register(settings, batch).await.is_ok());
        let lease = world.leased(0).await;
        assert_eq!(lease.work, LeaseWork::Index);
        world.flush(&lease, RECORDS, 0).await;
        assert_eq!(world.poll(0, None).await.job.state, JobState::Running);
        world
    }

    async fn register(&self, settings: JobSettings, batch: u32) -> Result<JobView, CallRefusal> {
        let pipeline = format!(
            "source: {{ tfrecord: x, features: {{ v: {{ key: v, dtype: i64 }} }} }}\n\
             ops: [batch: {{ size: {batch} }}]\n"
        );
        let spec = JobSpec {
            settings,
            workers: 3,
            ..JobSpec::new(gristmill_operators::parse(&pipeline).unwrap().canonical_json())
        };
        let file = SourceFile::new("f", 100, "e");
        let dataset = Dataset::one("data", vec![file]);
        self.call(RegisterCall::new(self.job.clone(), spec, dataset)).await
    }

    async fn call<C: CoordinatorCall>(&self, call: C) -> Result<C::Reply, CallRefusal> {
        let request = CallEnvelope { v: VERSION, ns: self.ns.clone(), call: call.into() };
        match self.coordinator.answer(&request).await {
            AnyReply::Refused(refusal) => Err(refusal),
            reply => Ok(C::reply_from(reply).unwrap()),
        }
    }

    async fn claim(&self, worker: u32, registered_ms: u64) -> Result<ClaimReply, CallRefusal> {
        self.call(ClaimCall { registered_ms, ..self.claim_of_worker(worker) }).await
    }

    fn claim_of_worker(&self, worker: u32) -> ClaimCall {
        ClaimCall {
            job: self.job.clone(),
            registered_ms: 0,
            nonce: self.clock.nonce(),
            invocation: InvocationId::new(worker, "request"),
            numerics: "one".into(),
            remaining_ms: 900_000,
            split_ms: 0,
            local: false,
            resent: false,
            needed: None,
            said: None,
        }
    }

    /// A lease claimed by `worker`.
    async fn leased(&self, worker: u32) -> Lease {
        match self.claim(worker, 0).await {
            Ok(ClaimReply::Leased(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// The nonce of the last claim.
    fn last_nonce(&self) -> Nonce {
        let before = self.clock.now_ms() - 1;
        Nonce(before.to_be_bytes())
    }

    /// Commits every split of a lease just claimed, with `rows` rows and `skipped` skipped records each.
    async fn flush(&self, lease: &Lease, rows: u32, skipped: u32) -> FlushReply {
        self.flush_as(lease, self.last_nonce(), rows, skipped).await
    }

    async fn flush_as(&self, lease: &Lease, nonce: Nonce, rows: u32, skipped: u32) -> FlushReply {
        let commits = lease.todo.iter().map(|position| SplitCommit {
            split_index: u8::try_from(position - lease.first).unwrap(),
            outcome: SplitOutcome {
                kind: SplitKind::Object,
                object_bytes: 1,
                crc32c: 1,
                rows,
                batches: rows / BATCH,
                remainder_rows: rows % BATCH,
                skipped_records: skipped,
            },
        });
        let flush = FlushCall {
            lease: lease.reference(&self.job, nonce),
            commits: commits.collect(),
            next: None,
            remaining_ms: 900_000,
            split_ms: 0,
            times: WorkerTimes::default(),
            profile: None,
        };
        self.call(flush).await.unwrap()
    }

    async fn report(&self, lease: &Lease) {
        for &position in &lease.todo {
            let record = SkippedRecord {
                key: RecordKey { file: 0, record: position },
                op: "tfrecord".into(),
                reason: "feature `wrong` is missing".into(),
            };
            let at = SkippedRecordLocation { record, source: format!("data/f record {position}") };
            let key = keys::skipped(&self.ns, &self.job, lease.epoch, position);
            let body = serde_json::to_vec(&at).unwrap().into();
            self.objects.put_if_absent(&ObjectPath::new("bucket", key), body, "x").await.unwrap();
        }
    }

    /// Polls as a trainer that has received the positions before `delivered`.
    async fn poll(&self, delivered: u32, epoch: Option<u32>) -> PollReply {
        let place = SplitPlace { epoch: epoch.unwrap_or(0), position: delivered };
        let poll = match delivered {
            0 => trainer::asks(&self.job, place),
            _ => self.trainer.lock().unwrap().poll(&self.job, place, place, SplitPlace::default()),
        };
        self.clock.sleep(BETWEEN_POLLS).await;
        match self.call(poll).await {
            Ok(polled) => {
                self.trainer.lock().unwrap().answered(&polled);
                polled
            }
            other => panic!("{other:?}"),
        }
    }

    /// Polls as `trainer`, which has everything before `place` in a checkpoint.
    async fn poll_as(
        &self,
        trainer: &mut Trainer,
        place: SplitPlace,
    ) -> Result<PollReply, CallRefusal> {
        self.clock.sleep(BETWEEN_POLLS).await;
        let polled = self.call(trainer.poll(&self.job, place, place, place)).await;
        polled.inspect(|polled| trainer.answered(polled))
    }

    /// Makes `splits` splits or more, in the order of the epoch.
    async fn make(&self, splits: u32) {
        let mut made = 0;
        while made < splits {
            let lease = self.leased(1).await;
            made += u32::try_from(lease.todo.len()).unwrap();
            self.flush(&lease, BATCH, 0).await;
            self.poll(made, None).await;
        }
    }

    fn scale_key(&self) -> ItemKey {
        ItemKey { pk: keys::job_partition(&self.ns, &self.job), sk: keys::SCALE.into() }
    }

    async fn scale(&self) -> (u64, ScaleState) {
        let read = self.table.read(&[self.scale_key()]).await.unwrap().pop().flatten();
        read.map_or((0, ScaleState::default()), |TableItem { version, body }| {
            (version, serde_json::from_slice(&body).unwrap())
        })
    }

    async fn book(&self, numbers: Range<u32>, sent_ms: u64) {
        let (version, mut scale) = self.scale().await;
        scale.outstanding.add(numbers, sent_ms);
        let body = serde_json::to_vec(&scale).unwrap().into();
        self.table.write(&self.scale_key(), version, body, None).await.unwrap();
    }

    fn last_kick(&self) -> ScalerEvent {
        self.kicks.0.lock().unwrap().last().unwrap().clone()
    }

    fn kicked(&self) -> usize {
        self.kicks.0.lock().unwrap().len()
    }

    async fn pass(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    async fn failed(&self) -> Option<String> {
        match self.poll(0, None).await.job.state {
            JobState::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[tokio::test]
async fn silent_workers_are_reported_while_another_works() {
    let world = World::running(ErrorPolicy::Fail).await;
    let now_ms = world.clock.now_ms();
    world.book(10..13, now_ms).await;
    world.leased(11).await;
    let before = world.kicked();
    world.poll(0, None).await;
    assert_eq!(world.kicked(), before, "they may be on their way");
    world.pass(60).await;
    world.poll(0, None).await;
    assert_eq!(world.kicked(), before, "events wait so long for an environment");
    world.pass(11).await;
    world.poll(0, None).await;
    assert_eq!(world.kicked(), before + 1);
    assert_eq!(world.last_kick().silent, [10, 11, 12], "the first lease has run out");
    world.leased(11).await;
    world.pass(1).await;
    world.poll(0, None).await;
    assert_eq!(world.last_kick().silent, [10, 12], "one holds a lease");
    // A worker between two leases is not silent.
    let lease = world.leased(10).await;
    world.flush(&lease, BATCH, 0).await;
    world.poll(0, None).await;
    assert_eq!(world.kicked(), before + 2, "the scaler has done nothing yet");
    world.pass(1).await;
    world.poll(0, None).await;
    assert_eq!(world.last_kick().silent, [12]);
}

#[tokio::test]
async fn workers_that_leave_are_replaced_without_a_write_of_the_scalers_state() {
    let world = World::running(ErrorPolicy::Fail).await;
    world.book(60..63, world.clock.now_ms()).await;
    world.leased(60).await;
    let (before, kicked) = (world.scale().await, world.kicked());
    world.poll(0, None).await;
    assert_eq!(world.kicked(), kicked, "the target number is on its way");
    for worker in [61, 61, 62] {
        let leave = LeaveCall { job: world.job.clone(), worker, error: None, said: None };
        assert!(matches!(world.call(leave).await, Ok(AppliedReply {})));
    }
    assert_eq!(world.scale().await, before, "thousands may leave in one second");
    match world.call(StatusCall { job: world.job.clone() }).await {
        Ok(status) => assert_eq!(status.scale.outstanding.len(), 1),
        other => panic!("{other:?}"),
    }
    world.pass(1).await;
    world.poll(0, None).await;
    assert_eq!(world.kicked(), kicked + 1);
}

#[tokio::test]
async fn full_account_ends_kicks_until_more_workers_are_tried() {
    let world = World::running(ErrorPolicy::Fail).await;
    let now_ms = world.clock.now_ms();
    world.book(60..62, now_ms).await;
    world.leased(60).await;
    world.leased(61).await;
    let (version, scale) = world.scale().await;
    let scale = ScaleState { room: Some(AccountRoom::seen(2, now_ms)), ..scale };
    let body = serde_json::to_vec(&scale).unwrap().into();
    world.table.write(&world.scale_key(), version, body, None).await.unwrap();
    let kicked = world.kicked();
    for _ in 0..4 {
        world.poll(0, None).await;
        assert_eq!(world.kicked(), kicked, "two of three run");
        world.pass(2).await;
    }
    world.pass(3).await;
    world.poll(0, None).await;
    assert_eq!(world.kicked(), kicked + 1);
}

#[tokio::test]
async fn a_worker_too_many_leaves() {
    let world = World::running(ErrorPolicy::Fail).await;
    for worker in 0..3 {
        world.leased(worker).await;
    }
    assert!(matches!(world.claim(3, 0).await, Ok(ClaimReply::Leased(_))), "nobody has looked yet");
    world.poll(0, None).await;
    let mut surplus = 0;
    for worker in 0..4 {
        match world.claim(worker, 0).await {
            Ok(ClaimReply::Idle(IdleReply { reason: IdleReason::Surplus })) => surplus += 1,
            Ok(ClaimReply::Leased(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(surplus, 1, "four hold leases, and the target is three");
}

#[tokio::test]
async fn a_flush_asks_a_worker_too_many_to_leave() {
    let world = World::running(ErrorPolicy::Fail).await;
    let mut leases = Vec::new();
    for worker in 0..5 {
        leases.push((world.leased(worker).await, world.last_nonce()));
    }
    let asked = async || {
        let mut asked = Vec::new();
        for (lease, nonce) in &leases {
            let alive = Lease { todo: Vec::new(), ..lease.clone() };
            asked.push(world.flush_as(&alive, *nonce, 0, 0).await.leave);
        }
        asked
    };
    assert_eq!(asked().await, [false; 5], "nobody has looked yet");
    world.poll(0, None).await;
    assert_eq!(asked().await, [false, false, false, true, true], "the target is three");
    world.pass(3).await;
    assert_eq!(asked().await, [false; 5], "the look is old: the target may have risen since");
}

#[tokio::test]
async fn too_many_skipped_records_fail_the_job_also_once_they_are_delivered() {
    let world = World::running(ErrorPolicy::Skip).await;
    // The cap is one percent of 400 records.
    for delivered in 1..=4 {
        let lease = world.leased(1).await;
        let mut one = lease.clone();
        one.todo.truncate(1);
        world.report(&one).await;
        world.flush(&one, BATCH - 1, 1).await;
        // The trainer passes the split before the next one is committed.
        assert_eq!(world.poll(delivered, None).await.job.state, JobState::Running);
        if lease.todo.len() > 1 {
            world.pass(3600).await;
        }
    }
    let mut lease = world.leased(1).await;
    lease.todo.truncate(1);
    world.report(&lease).await;
    world.flush(&lease, BATCH - 1, 1).await;
    let JobState::Failed { error, .. } = world.poll(4, None).await.job.state else {
        panic!("it goes on")
    };
    for part in [
        "5 of 400 records of epoch 0",
        "--max-skipped 1% allows 4",
        "tfrecord: feature `wrong` is missing",
        "the first: data/f record 0",
        "gristmill status j --skipped",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn ready_batches_are_answered_to_a_trainer_that_went_back() {
    let world = World::running(ErrorPolicy::Skip).await;
    let splits = RECORDS / BATCH;
    world.make(splits).await;
    let (first, last) = (SplitPlace::new(0, 1), SplitPlace::new(0, splits - 1));
    let joins = Trainer::new(2, 1).poll(&world.job, first, first, SplitPlace::default());
    let ready = async |call: PollCall| match world.call(call).await {
        Ok(polled) => polled.ready.iter().map(|entry| entry.place.position).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ready(joins).await, (1..splits).collect::<Vec<_>>());
    assert_eq!(ready(trainer::asks(&world.job, last)).await, [splits - 1]);
}

#[tokio::test]
async fn job_whose_workers_all_die_says_so_rests_and_is_given_up() {
    let world = World::running(ErrorPolicy::Fail).await;
    let die = async |worker: u32| {
        let release = ReleaseCall {
            job: world.job.clone(),
            invocation: InvocationId::new(worker, "request"),
            worker: Some(worker),
            blameless: false,
            expired: false,
            error: "Runtime exited with error: signal: killed".into(),
        };
        assert!(matches!(world.call(release).await, Ok(AppliedReply {})));
    };
    for worker in 0..10 {
        die(worker).await;
        world.pass(10).await;
    }
    let before = world.kicked();
    let polled = world.poll(0, None).await;
    let trouble = polled.trouble.unwrap();
    assert!(trouble.contains("10 workers died") && trouble.contains("signal: killed"), "{trouble}");
    assert_eq!((polled.job.state, world.kicked()), (JobState::Running, before), "it rests");
    world.pass(30).await;
    world.poll(0, None).await;
    assert_eq!(world.kicked(), before + 1, "it is tried again");
    // One committed split ends the trouble.
    let mut lease = world.leased(50).await;
    lease.todo.truncate(1);
    world.flush(&lease, BATCH, 0).await;
    assert_eq!(world.poll(0, None).await.trouble, None);
    for worker in 100..120 {
        assert_eq!(world.failed().await, None);
        world.pass(7).await;
        die(worker).await;
    }
    let error = world.failed().await.unwrap();
    assert!(error.starts_with("20 workers died or could not start within"), "{error}");
    assert!(error.contains("last error: Runtime exited"), "{error}");
}

#[tokio::test]
async fn a_worker_that_cannot_begin_says_why() {
    let world = World::running(ErrorPolicy::Fail).await;
    for worker in 0..3 {
        let error = Some("GetObject on s3://b/k: AccessDenied".to_owned());
        let leave = LeaveCall { job: world.job.clone(), worker, error, said: None };
        assert!(matches!(world.call(leave).await, Ok(AppliedReply {})));
    }
    let trouble = world.poll(0, None).await.trouble.unwrap();
    assert!(trouble.contains("AccessDenied"), "{trouble}");
}

#[tokio::test]
async fn a_forgotten_job_leaves_its_name_and_nothing_else() {
    let world = World::running(ErrorPolicy::Fail).await;
    let lease = world.leased(1).await;
    world.flush(&lease, BATCH, 0).await;
    // Everything is claimed, and the process remembers the leases.
    while let Ok(ClaimReply::Leased(_)) = world.claim(1, 0).await {}
    let before = world.poll(1, None).await.job;
    let chunk = keys::job_prefix(&world.ns, &world.job) + "x.gmc";
    let path = ObjectPath::new("bucket", chunk);
    world.objects.put_if_absent(&path, Bytes::new(), "x").await.unwrap();
    let forget = || world.call(ForgetCall { job: world.job.clone() });
    let Err(CallRefusal { message, .. }) = forget().await else { panic!("it was running") };
    assert!(message.contains("gristmill stop j"), "{message}");
    world.call(StopCall { job: world.job.clone() }).await.unwrap();
    let Err(CallRefusal { message, .. }) = world.register(settings(ErrorPolicy::Fail), 8).await
    else {
        panic!("the name was free")
    };
    assert!(message.contains("gristmill forget j"), "{message}");
    let Ok(ForgetReply { items, objects: 1, all: true }) = forget().await else { panic!() };
    assert!(items >= 5, "{items}");
    assert!(forget().await.is_err(), "there is nothing left to forget");
    assert!(world.objects.get(&path).await.is_err());
    // A new job of this name starts at the beginning, and knows no worker of the old one.
    assert!(world.register(settings(ErrorPolicy::Fail), 8).await.is_ok());
    let polled = world.poll(0, None).await;
    assert_eq!((polled.generation, polled.ready.len()), (0, 0));
    assert!(polled.job.registered_ms > before.registered_ms);
    let reply = world.claim(1, before.registered_ms).await;
    assert!(
        matches!(reply, Ok(ClaimReply::Idle(IdleReply { reason: IdleReason::JobEnded }))),
        "{reply:?}"
    );
    // The process remembers the old job, and still leases from the new one.
    let reply = world.claim(1, polled.job.registered_ms).await;
    assert!(matches!(&reply, Ok(ClaimReply::Leased(lease)) if lease.first == 0), "{reply:?}");
}
