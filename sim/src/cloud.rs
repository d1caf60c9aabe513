//! The deployed stack: the coordinator behind its URL, and the platform that runs scaler and workers.

use crate::{
    Fault, Kind, Mutant, Process, SimClock, World,
    objects::{SimObjects, Store},
    table::{Items, SimTable},
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{
    Coordinator as Function, Settings,
    inspect::{self, Stored},
};
use gristmill_ports::{CallError, Clock as _, Coordinator, InvokeError, Invoked, Invoker, Metrics};
use gristmill_protocol::{
    Call, Commit, Flush, Poll, Refusal, RefusalKind, Release, Reply, Request, ScalerEvent, VERSION,
    WorkerEvent,
};
use gristmill_runner::{Compute, Runner, RunnerConfig};
use gristmill_scaler::Scaler;
use gristmill_splits::BundleState;
use gristmill_types::InvocationId;
use gristmill_worker::WorkerFunction;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::oneshot;

pub const BUCKET: &str = "chunks";
const SCALER: &str = "scaler";
const WORKER: &str = "worker";
const LATENCY_MS: u64 = 30;
/// How long a caller waits for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// When the platform ends an invocation.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(30);
const SCALER_TIMEOUT: Duration = Duration::from_secs(60);
/// Events that wait longer are dropped.
const EVENT_AGE_MS: u64 = 60_000;
/// Repeated calls and reports come as late as this.
const LATEST_MS: u64 = 6 * 3_600_000;

/// Everything that is deployed.
pub struct Cloud {
    pub world: Arc<World>,
    pub items: Arc<Items>,
    pub store: Arc<Store>,
    events: AtomicU64,
}

impl Cloud {
    pub fn new(world: &Arc<World>, store: Store) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            items: Arc::default(),
            store: Arc::new(store),
            events: AtomicU64::new(0),
        })
    }

    /// The coordinator's URL, for `process` to call.
    pub fn link(self: &Arc<Self>, process: &Process) -> Arc<dyn Coordinator> {
        Arc::new(Link { process: process.clone(), cloud: Arc::clone(self) })
    }

    pub fn objects(&self, process: &Process) -> Arc<SimObjects> {
        let (store, items) = (Arc::clone(&self.store), Arc::clone(&self.items));
        Arc::new(SimObjects { process: process.clone(), store, items })
    }

    fn table(&self, process: &Process) -> Arc<SimTable> {
        let (store, items) = (Arc::clone(&self.store), Arc::clone(&self.items));
        Arc::new(SimTable { process: process.clone(), store, items })
    }

    fn platform(self: &Arc<Self>, process: &Process) -> Arc<Platform> {
        Arc::new(Platform { process: process.clone(), cloud: Arc::clone(self) })
    }

    fn coordinator(self: &Arc<Self>, process: &Process) -> Function {
        Function::new(
            self.table(process),
            self.objects(process),
            self.platform(process),
            Arc::new(SimClock(process.clone())),
            Settings::new(self.store.ns.clone(), BUCKET.to_owned(), SCALER.to_owned()),
        )
    }

    /// Runs `work` as an invocation of a function; none if it died or took too long.
    async fn invocation<T>(
        &self,
        process: &Process,
        timeout: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            outcome = process.run(work) => outcome,
            () = self.world.time.sleep(timeout) => {
                process.kill();
                None
            }
        }
    }

    /// A call reaches the coordinator.
    fn deliver(self: &Arc<Self>, call: Call, answer: Option<oneshot::Sender<Reply>>) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let process = Process::new(&cloud.world, Kind::Coordinator);
            let call = cloud.mistaken(call).await;
            let request = Request { v: VERSION, ns: cloud.store.ns.clone(), call };
            let coordinator = cloud.coordinator(&process);
            let work = coordinator.answer(&request);
            let reply = cloud.invocation(&process, COORDINATOR_TIMEOUT, work).await;
            if let (Call::Flush(flush), Some(Reply::Refused(refusal))) = (&request.call, &reply)
                && refusal.kind != RefusalKind::Busy
            {
                cloud.check_refused(flush, refusal).await;
            }
            if let (Some(answer), Some(reply)) = (answer, reply) {
                // The caller may be gone.
                let _ = answer.send(reply);
            }
        });
    }

    /// 13. What is refused for good was not applied.
    async fn check_refused(&self, flush: &Flush, refusal: &Refusal) {
        let key = inspect::bundle_key(&self.store.ns, &self.store.job, flush.epoch, flush.bundle);
        let Some(item) = self.items.item(&key).await else { return };
        let Ok(Stored::Bundle(bundle)) = inspect::decode(&key, &item.body) else { return };
        let applied = |commit: &Commit| {
            bundle
                .entry(commit.index)
                .is_some_and(|entry| (entry.attempt, entry.nonce) == (flush.attempt, flush.nonce))
        };
        if !flush.commits.is_empty() && flush.commits.iter().all(applied) {
            self.world.violated(format_args!("invariant 13: applied, and refused: {refusal}"));
        }
    }

    /// The call as a coordinator that makes this world's mistake would understand it.
    async fn mistaken(&self, mut call: Call) -> Call {
        match (self.world.mutant, &mut call) {
            (Some(Mutant::CommitsWithoutOwner), Call::Flush(flush)) => {
                let key =
                    inspect::bundle_key(&self.store.ns, &self.store.job, flush.epoch, flush.bundle);
                if let Some(item) = self.items.item(&key).await
                    && let Ok(Stored::Bundle(bundle)) = inspect::decode(&key, &item.body)
                    && bundle.state == BundleState::Leased
                {
                    (flush.attempt, flush.nonce) = (bundle.attempt, bundle.owner);
                }
            }
            (Some(Mutant::CollectsDelivered), Call::Poll(poll)) => {
                if let Some(ack) = &mut poll.ack {
                    ack.durable_position = ack.delivered;
                }
            }
            (Some(Mutant::UnfencedAcks), Call::Poll(poll)) => {
                if let Some(ack) = &mut poll.ack {
                    ack.generation = 1;
                }
            }
            _ => {}
        }
        call
    }

    /// The schedule: upkeep every quarter of an hour, for as long as the world lasts.
    pub async fn upkeep(self: Arc<Self>) {
        loop {
            self.world.time.sleep(Duration::from_secs(900)).await;
            let process = Process::new(&self.world, Kind::Coordinator);
            let coordinator = self.coordinator(&process);
            let _ = self.invocation(&process, COORDINATOR_TIMEOUT, coordinator.upkeep()).await;
        }
    }

    /// The mistake of collecting what is not committed yet.
    pub async fn collect_early(self: Arc<Self>) {
        use gristmill_ports::Objects as _;
        loop {
            self.world.time.sleep(Duration::from_secs(1)).await;
            let process = Process::new(&self.world, Kind::Coordinator);
            let objects = self.objects(&process);
            let prefix = gristmill_protocol::keys::job_prefix(&self.store.ns, &self.store.job);
            let Ok(found) = objects.list(BUCKET, &prefix).await else { continue };
            let keys: Vec<_> = found.into_iter().map(|object| object.key).collect();
            let _ = objects.delete(BUCKET, &keys).await;
        }
    }

    fn run_scaler(self: &Arc<Self>, event: ScalerEvent) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let process = Process::new(&cloud.world, Kind::Scaler);
            let scaler = Scaler {
                table: cloud.table(&process),
                invoker: cloud.platform(&process),
                worker_function: WORKER.to_owned(),
                max_workers: None,
                metrics: Metrics::default(),
            };
            let _ = cloud.invocation(&process, SCALER_TIMEOUT, scaler.handle(&event)).await;
        });
    }

    fn run_worker(self: &Arc<Self>, event: WorkerEvent, request_id: String) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let process = Process::new(&cloud.world, Kind::Worker);
            let lifetime = cloud.world.between_ms(20_000, 900_000);
            let deadline_ms = SimClock(process.clone()).now_ms() + lifetime.as_millis() as u64;
            let function = WorkerFunction::new(cloud.runner(&process, false), Metrics::default());
            let work = function.handle(&event, request_id.clone(), deadline_ms);
            if let Some(Ok(_)) = cloud.invocation(&process, lifetime, work).await {
                return;
            }
            cloud.world.event(format_args!("worker {} of {request_id} died", event.worker));
            cloud.report(&event, request_id, false).await;
        });
    }

    /// A worker's loop in `process`.
    pub fn runner(self: &Arc<Self>, process: &Process, local: bool) -> Runner {
        Runner {
            coordinator: self.link(process),
            objects: self.objects(process),
            clock: Arc::new(SimClock(process.clone())),
            compute: Compute::Inline,
            operators: Arc::default(),
            config: RunnerConfig { ns: self.store.ns.clone(), bucket: BUCKET.to_owned(), local },
        }
    }

    /// The platform tells the coordinator that an invocation failed.
    async fn report(self: &Arc<Self>, event: &WorkerEvent, request_id: String, blameless: bool) {
        let world = &self.world;
        world.time.sleep(world.between_ms(10, 2_000)).await;
        let release = Release {
            job: event.job.clone(),
            invocation: InvocationId::of(event.worker, &request_id),
            worker: Some(event.worker),
            blameless,
            error: String::new(),
        };
        if !world.happens(Fault::ReportLost) {
            self.deliver(Call::Release(release.clone()), None);
        }
        if world.happens(Fault::ReportRepeated) {
            world.time.sleep(world.between_ms(1, LATEST_MS)).await;
            self.deliver(Call::Release(release), None);
        }
    }

    /// An accepted event takes its course.
    fn accept(self: &Arc<Self>, function: &str, payload: &Bytes) {
        let cloud = Arc::clone(self);
        let world = &self.world;
        if function == SCALER {
            let Ok(event) = serde_json::from_slice::<ScalerEvent>(payload) else { return };
            let late = self.delay();
            tokio::spawn(async move {
                cloud.world.time.sleep(late).await;
                cloud.run_scaler(event);
            });
            return;
        }
        let Ok(event) = serde_json::from_slice::<WorkerEvent>(payload) else { return };
        let request_id = format!("request-{}", self.events.fetch_add(1, Ordering::Relaxed));
        if world.happens(Fault::EventDropped) {
            tokio::spawn(async move {
                cloud.world.time.sleep(Duration::from_millis(EVENT_AGE_MS)).await;
                cloud.report(&event, request_id, true).await;
            });
            return;
        }
        let copies = if world.happens(Fault::EventRepeated) { 2 + world.below(2) } else { 1 };
        for _ in 0..copies {
            let (cloud, event, request_id) = (Arc::clone(self), event.clone(), request_id.clone());
            let late = self.delay();
            tokio::spawn(async move {
                cloud.world.time.sleep(late).await;
                cloud.run_worker(event, request_id);
            });
        }
    }

    fn delay(&self) -> Duration {
        let most = if self.world.happens(Fault::EventLate) { EVENT_AGE_MS } else { 400 };
        self.world.between_ms(1, most)
    }
}

/// The way from a process to the coordinator.
struct Link {
    process: Process,
    cloud: Arc<Cloud>,
}

/// What operators take is not what this machine takes, or no world would be the same twice: computing is
/// slow, and reading fast.
fn measured_alike(call: &Call) -> Call {
    let mut call = call.clone();
    if let Call::Flush(Flush { profile: Some(profile), .. }) = &mut call {
        for (i, op) in profile.ops.iter_mut().enumerate() {
            op.active_us = if i == 0 { 1_000_000 } else { 10 };
        }
        for (_, took_us) in &mut profile.reads {
            *took_us = 100;
        }
        profile.source_wait_ms = 0;
    }
    call
}

fn no_answer(why: &str) -> CallError {
    CallError::Unavailable(format!("simulated: {why}"))
}

#[async_trait]
impl Coordinator for Link {
    async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        let Self { process, cloud } = self;
        let call = &measured_alike(call);
        let world = &cloud.world;
        world.count_call();
        world.event(format_args!("call {}", call.name()));
        process.point(LATENCY_MS).await;
        if world.happens(Fault::CallLost) {
            world.time.sleep(CALL_TIMEOUT).await;
            return Err(no_answer("the call was lost"));
        }
        if world.happens(Fault::CallRepeated) {
            for _ in 0..=world.below(4) {
                let (cloud, call) = (Arc::clone(cloud), call.clone());
                let most = if world.below(2) == 0 { 5_000 } else { LATEST_MS };
                let late = world.between_ms(0, most);
                tokio::spawn(async move {
                    cloud.world.time.sleep(late).await;
                    cloud.deliver(call, None);
                });
            }
        }
        let (sender, answer) = oneshot::channel();
        cloud.deliver(call.clone(), Some(sender));
        let reply = tokio::select! {
            biased;
            reply = answer => reply.map_err(|_| no_answer("the coordinator died"))?,
            () = world.time.sleep(CALL_TIMEOUT) => return Err(no_answer("timeout")),
        };
        process.point(LATENCY_MS).await;
        if world.happens(Fault::AnswerLost) {
            return Err(no_answer("the answer was lost"));
        }
        match reply {
            Reply::Polled(polled) => {
                let (ready, claimable) = (polled.ready.len(), polled.claimable);
                world.event(format_args!("{ready} ready, {claimable} claimable"));
                if let Call::Poll(Poll { ack: Some(ack), .. }) = call {
                    process.let_in(ack.generation);
                }
                Ok(Reply::Polled(polled))
            }
            Reply::Refused(refusal) => Err(CallError::Refused(refusal)),
            reply => Ok(reply),
        }
    }
}

/// The platform by the hands of a process.
struct Platform {
    process: Process,
    cloud: Arc<Cloud>,
}

#[async_trait]
impl Invoker for Platform {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError> {
        let Self { process, cloud } = self;
        process.point(LATENCY_MS).await;
        let world = &cloud.world;
        if world.happens(Fault::InvokeThrottled) {
            return Ok(Invoked::Throttled);
        }
        world.event(format_args!("invoke {function}"));
        cloud.accept(function, &payload);
        process.point(LATENCY_MS).await;
        match world.happens(Fault::InvokeFails) {
            true => {
                let (function, reason) = (function.to_owned(), "simulated".to_owned());
                Err(InvokeError { function, reason, gone: false })
            }
            false => Ok(Invoked::Accepted),
        }
    }
}
