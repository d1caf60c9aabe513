//! The deployed stack: the coordinator behind its URL, and the platform that runs scaler and workers. It delays, repeats,
//! drops and runs their events, and reports failures.

use crate::{
    FaultKind, FaultSimulation, Mutant, ProcessKind, SimClock, SimProcess,
    coordinator::{SimCoordinator, SimInvoker},
    objects::{SharedObjects, SimObjects},
    releases::DeployedStack,
    scenario::FaultScenario,
    table::{MOST_LOST, SharedItems, SimTable},
};
use bytes::Bytes;
use gristmill_coordinator::{
    CoordinatorFunction, CoordinatorMemory, CoordinatorSettings,
    inspect::{self, DecodedItem},
};
use gristmill_model::{
    InvocationId, JobName,
    splits::{Bundle, BundleState, JobProgress, SplitCommit},
    wire::{
        AnyCall, AnyReply, CallEnvelope, CallRefusal, CoordinatorCall, FlushCall, LeaseRef,
        RefusalKind, ReleaseCall, ScalerEvent, SpokenVersions, VERSION, WorkerEvent,
        protocol::{self, read_event},
    },
};
use gristmill_ports::{CallError, Clock as _, Coordinator, FunctionMetrics};
use gristmill_runner::{Runner, RunnerConfig};
use gristmill_scaler::ScalerFunction;
use gristmill_worker::WorkerFunction;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The bucket of batches.
pub const BUCKET: &str = "chunks";
const SCALER: &str = "scaler";
const WORKER: &str = "worker";
/// Longest latency of a request in milliseconds, without faults.
pub const LATENCY_MS: u64 = 30;
/// Timeout of an invocation.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(30);
/// Latest arrival of repeated calls and reports.
pub const LATEST_MS: u64 = 6 * 3_600_000;

/// More concurrency than any simulation uses.
const UNLIMITED: u32 = 10_000;
/// Longer than any simulation.
const FOREVER_MS: u64 = 1 << 50;

type Answer = oneshot::Sender<Result<AnyReply, CallError>>;

/// The deployed stack as one job uses it.
#[derive(Clone)]
pub struct SimCloud {
    pub sim: Arc<FaultSimulation>,
    pub items: Arc<SharedItems>,
    pub store: Arc<SharedObjects>,
    /// Whether jobs compete for the account's concurrency.
    pub is_shared: bool,
    events: Arc<AtomicU64>,
    pub deployed: Arc<DeployedStack>,
    /// Free concurrency of coordinators, and of other functions.
    slots: [Arc<Semaphore>; 2],
    workers: Arc<Mutex<Vec<SimProcess>>>,
    /// In-process memory of the coordinator's environments.
    warm: Arc<Mutex<[CoordinatorMemory; 3]>>,
    cuts: Arc<AtomicU64>,
}

impl SimCloud {
    /// A stack with an empty table, in the releases of the simulation's plan.
    pub fn new(sim: &Arc<FaultSimulation>, store: SharedObjects) -> Arc<Self> {
        let (coordinators, others) = sim.plan.concurrency.unwrap_or((UNLIMITED, UNLIMITED));
        Arc::new(Self {
            sim: Arc::clone(sim),
            items: Arc::new(SharedItems::new(
                sim.plan.rates.table_limits(sim.plan.partition_writes),
            )),
            store: Arc::new(store),
            is_shared: false,
            events: Arc::default(),
            deployed: Arc::new(DeployedStack::new(sim)),
            slots: [coordinators, others].map(|most| Arc::new(Semaphore::new(most as usize))),
            workers: Arc::default(),
            warm: Arc::default(),
            cuts: Arc::default(),
        })
    }

    /// The same stack as used by another job, concurrent or later.
    pub fn with_job(&self, job: JobName, scenario: FaultScenario, is_shared: bool) -> Arc<Self> {
        let store = Arc::new(self.store.with_job(job, scenario));
        Arc::new(Self { store, is_shared, workers: Arc::default(), ..self.clone() })
    }

    /// Acquires concurrency for one function of this kind, until it is dropped.
    fn slot(&self, kind: ProcessKind) -> Option<OwnedSemaphorePermit> {
        let reserved =
            kind == ProcessKind::Coordinator && self.sim.mutant != Some(Mutant::NoHeadroom);
        let slot = Arc::clone(&self.slots[usize::from(!reserved)]).try_acquire_owned().ok();
        if slot.is_none() {
            self.sim.suffers(FaultKind::AccountFull);
        }
        slot
    }

    /// Remote workers that can make progress.
    pub fn workers(&self) -> u32 {
        let mut workers = self.workers.lock();
        workers.retain(|worker| !worker.is_dead());
        workers.iter().filter(|worker| worker.is_well()).count() as u32
    }

    /// All workers die.
    pub fn kill_workers(&self) {
        let mut workers = self.workers.lock();
        workers.drain(..).for_each(|worker| worker.kill());
    }

    /// Whether `function` can be invoked: a deleted version cannot.
    pub fn is_deployed(&self, function: &str) -> bool {
        function == SCALER || self.spoken_by(function).is_some()
    }

    fn worker_function(&self) -> String {
        format!("{WORKER}:{}", self.deployed.newest_worker())
    }

    /// The versions of the protocol that a worker function speaks; none if it is deleted.
    fn spoken_by(&self, function: &str) -> Option<SpokenVersions> {
        let number = function.strip_prefix(WORKER)?.strip_prefix(':')?.parse().ok()?;
        self.deployed.worker(number)
    }

    /// The coordinator's URL as used by `process` on a trainer's host.
    pub fn link(self: &Arc<Self>, process: &SimProcess) -> Arc<dyn Coordinator> {
        let spoken = self.deployed.hosts();
        Arc::new(SimCoordinator::new(process.clone(), Arc::clone(self), spoken))
    }

    /// The objects as `process` reaches them.
    pub fn objects(&self, process: &SimProcess) -> Arc<SimObjects> {
        let (store, items) = (Arc::clone(&self.store), Arc::clone(&self.items));
        Arc::new(SimObjects { process: process.clone(), store, items })
    }

    pub fn table(&self, process: &SimProcess) -> Arc<SimTable> {
        Arc::new(self.items.opened_by(process, &self.store, &self.deployed))
    }

    /// Cuts the power of a local service now and then, until the faults end.
    pub async fn cut_power(&self) {
        loop {
            let pause = self.sim.between_ms(1_000, 60_000);
            self.sim.time.sleep(pause).await;
            if self.sim.happens(FaultKind::WritesLost) {
                self.items.lose(&self.sim, 1 + self.sim.below(MOST_LOST as u64) as usize);
                self.cuts.fetch_add(1, Ordering::Relaxed);
                // The processes that start afterwards remember nothing.
                *self.warm.lock() = Default::default();
            }
        }
    }

    /// Number of power cuts so far: what was under way before the last one is gone.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    fn platform(self: &Arc<Self>, process: &SimProcess) -> Arc<SimInvoker> {
        Arc::new(SimInvoker { process: process.clone(), cloud: Arc::clone(self) })
    }

    fn coordinator(self: &Arc<Self>, process: &SimProcess) -> CoordinatorFunction {
        let settings =
            CoordinatorSettings::new(self.store.ns.clone(), BUCKET.to_owned(), SCALER.to_owned())
                .with_pruning();
        let warm = self.warm.lock().clone();
        let forever = self.sim.mutant == Some(Mutant::SharedForGood);
        // A second, as with thousands of workers.
        let shared_ms = if forever { u64::MAX } else { 1_000 };
        CoordinatorFunction::new(
            self.table(process),
            self.objects(process),
            self.platform(process),
            Arc::new(SimClock(process.clone())),
            CoordinatorSettings {
                shared_reads: vec![(1, shared_ms)],
                window_bytes: self.sim.plan.memory.window_bytes,
                object_sizes: self.sim.plan.memory.sizes,
                spoken: self.deployed.coordinator(),
                ..settings
            },
        )
        .sharing(&warm[self.sim.below(warm.len() as u64) as usize])
    }

    /// Calls a coordinator that runs in `process` itself.
    pub async fn ask<C: CoordinatorCall>(
        self: &Arc<Self>,
        process: &SimProcess,
        call: C,
    ) -> Result<C::Reply, CallRefusal> {
        self.coordinator(process).call(call).await
    }

    /// Runs `work` as an invocation of a function; `None` if it died or timed out.
    async fn invocation<T>(
        &self,
        process: &SimProcess,
        timeout: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            outcome = process.run(work) => outcome,
            () = self.sim.time.sleep(timeout) => {
                process.kill();
                None
            }
        }
    }

    /// Delivers a call to the coordinator, in a version of the protocol; none for a call that the coordinator makes itself.
    pub fn deliver(self: &Arc<Self>, call: AnyCall, version: Option<u32>, answer: Option<Answer>) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let Some(_slot) = cloud.slot(ProcessKind::Coordinator) else {
                let full = CallError::Throttled("429: too many functions (simulated)".to_owned());
                // The caller may be gone.
                return answer.map_or((), |answer| drop(answer.send(Err(full))));
            };
            let process = SimProcess::new(&cloud.sim, ProcessKind::Coordinator);
            let call = cloud.mistaken(call).await;
            let coordinator = cloud.coordinator(&process);
            let v = version.unwrap_or(coordinator.spoken().newest);
            let request = CallEnvelope { v, ns: cloud.store.ns.clone(), call };
            let work = answer_in(&coordinator, &request);
            let reply = cloud.invocation(&process, COORDINATOR_TIMEOUT, work).await;
            if let (AnyCall::Flush(flush), Some(AnyReply::Refused(refusal))) =
                (&request.call, &reply)
                && !refusal.kind.is_passing()
                // Its caller sends it again in another version.
                && !matches!(refusal.kind, RefusalKind::OtherVersion { .. })
            {
                cloud.check_refused(flush, refusal).await;
            }
            if let (Some(answer), Some(reply)) = (answer, reply) {
                // The caller may be gone.
                let _ = answer.send(Ok(reply));
            }
        });
    }

    /// The bundle that `flush` is for, as stored.
    async fn bundle(&self, flush: &FlushCall) -> Option<Box<Bundle>> {
        let LeaseRef { partition, epoch, bundle, .. } = flush.lease;
        let (ns, job) = (&self.store.ns, &self.store.job);
        let key = inspect::bundle_key(ns, job, partition, epoch, bundle);
        match inspect::decode(&key, &self.items.item(&key).await?.body) {
            Ok(DecodedItem::Bundle(bundle)) => Some(bundle),
            _ => None,
        }
    }

    /// Invariant 13: a permanently refused flush was not applied.
    async fn check_refused(&self, flush: &FlushCall, refusal: &CallRefusal) {
        let Some(bundle) = self.bundle(flush).await else { return };
        let applied = |commit: &SplitCommit| {
            bundle.entry(commit.split_index).is_some_and(|entry| {
                (entry.attempt, entry.nonce) == (flush.lease.attempt, flush.lease.nonce)
            })
        };
        if !flush.commits.is_empty() && flush.commits.iter().all(applied) {
            self.sim.violated(format_args!("invariant 13: applied, and refused: {refusal}"));
        }
    }

    /// The call as understood by a coordinator with this simulation's bug.
    async fn mistaken(&self, mut call: AnyCall) -> AnyCall {
        match (self.sim.mutant, &mut call) {
            (Some(Mutant::CommitsWithoutOwner), AnyCall::Flush(flush)) => {
                if let Some(bundle) = self.bundle(flush).await
                    && bundle.state == BundleState::Leased
                {
                    (flush.lease.attempt, flush.lease.nonce) = (bundle.attempt, bundle.owner);
                }
            }
            (Some(Mutant::JudgedBySlowest), AnyCall::Claim(claim)) => {
                if let Some((needed, progress)) = claim.needed.as_mut().zip(self.progress().await) {
                    *needed = progress.delivered.min(*needed);
                }
            }
            (Some(Mutant::CollectsDelivered), AnyCall::Poll(poll)) => {
                if let Some(report) = &mut poll.report {
                    report.ack.durable_place = report.ack.delivered;
                }
            }
            (Some(Mutant::LeasesForGood), AnyCall::Claim(claim)) => {
                (claim.remaining_ms, claim.split_ms) = (FOREVER_MS, FOREVER_MS);
            }
            (Some(Mutant::UnfencedAcks), AnyCall::Poll(poll)) => {
                if let Some((report, progress)) = poll.report.as_mut().zip(self.progress().await) {
                    report.ack.generation = progress.generation;
                }
            }
            _ => {}
        }
        call
    }

    /// The job's progress, as stored.
    pub async fn progress(&self) -> Option<Box<JobProgress>> {
        let key = inspect::progress_key(&self.store.ns, &self.store.job);
        match inspect::decode(&key, &self.items.item(&key).await?.body) {
            Ok(DecodedItem::Progress(progress)) => Some(progress),
            _ => None,
        }
    }

    /// The schedule: upkeep every quarter of an hour, throughout the simulation.
    pub async fn upkeep(self: Arc<Self>) {
        loop {
            self.sim.time.sleep(Duration::from_secs(900)).await;
            let process = SimProcess::new(&self.sim, ProcessKind::Coordinator);
            let coordinator = self.coordinator(&process);
            let _ = self.invocation(&process, COORDINATOR_TIMEOUT, coordinator.upkeep()).await;
        }
    }

    /// The bug of collecting uncommitted objects.
    pub async fn collect_early(self: Arc<Self>) {
        use gristmill_ports::ObjectStore as _;
        loop {
            self.sim.time.sleep(Duration::from_secs(1)).await;
            let process = SimProcess::new(&self.sim, ProcessKind::Coordinator);
            let objects = self.objects(&process);
            let prefix = gristmill_model::stored::keys::job_prefix(&self.store.ns, &self.store.job);
            let Ok(found) = objects.list(BUCKET, &prefix).await else { continue };
            let keys: Vec<_> = found.into_iter().map(|object| object.key).collect();
            let _ = objects.delete(BUCKET, &keys).await;
        }
    }

    /// A worker's loop in `process`, which speaks these versions of the protocol.
    pub fn runner(self: &Arc<Self>, process: &SimProcess, spoken: SpokenVersions) -> Runner {
        Runner {
            coordinator: Arc::new(SimCoordinator::new(process.clone(), Arc::clone(self), spoken)),
            objects: self.objects(process),
            clock: Arc::new(SimClock(process.clone())),
            compute: self.sim.plan.memory.compute,
            operators: Arc::new(gristmill_operators::registry().clone()),
            config: RunnerConfig {
                ns: self.store.ns.clone(),
                bucket: BUCKET.to_owned(),
                local: false,
                shape: None,
            },
        }
    }
}

/// The answer of `coordinator` to `request`, as both travel in the version of the request. Those of the present one need
/// no translation.
async fn answer_in(coordinator: &CoordinatorFunction, request: &CallEnvelope) -> AnyReply {
    let spoken = coordinator.spoken();
    if request.v == VERSION && spoken.includes(VERSION) {
        return coordinator.answer(request).await;
    }
    let reply = match protocol::write(request, request.v) {
        Ok(body) => match CallEnvelope::read(&body, spoken) {
            Ok(request) => coordinator.answer(&request).await,
            Err(refusal) => AnyReply::Refused(refusal),
        },
        Err(error) => unreachable!("a request is written: {error}"),
    };
    let body = protocol::write(&reply, request.v).unwrap_or_default();
    protocol::read(&body, request.v).unwrap_or(reply)
}

const SCALER_TIMEOUT: Duration = Duration::from_secs(60);
/// Events that wait longer expire.
const EVENT_AGE_MS: u64 = 60_000;

impl SimCloud {
    /// Waits for concurrency for an event's function; `None` if the event expires first.
    async fn wait_for_slot(&self, kind: ProcessKind) -> Option<OwnedSemaphorePermit> {
        let give_up = self.sim.time.now() + Duration::from_millis(EVENT_AGE_MS);
        loop {
            match self.slot(kind) {
                None if self.sim.time.now() < give_up => {
                    self.sim.time.sleep(self.sim.between_ms(1_000, 5_000)).await;
                }
                slot => return slot,
            }
        }
    }

    fn run_scaler(self: &Arc<Self>, event: ScalerEvent) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let Some(_slot) = cloud.wait_for_slot(ProcessKind::Scaler).await else { return };
            let process = SimProcess::new(&cloud.sim, ProcessKind::Scaler);
            if cloud.sim.happens(FaultKind::VersionDeleted) {
                cloud.deployed.redeploy_workers();
            }
            let scaler = ScalerFunction {
                table: cloud.table(&process),
                invoker: cloud.platform(&process),
                worker_function: cloud.worker_function(),
                region: "simulated".to_owned(),
                max_workers: None,
                spoken: cloud.deployed.scaler(),
                metrics: FunctionMetrics::default(),
            };
            let _ = cloud.invocation(&process, SCALER_TIMEOUT, scaler.handle(&event)).await;
        });
    }

    fn run_worker(
        self: &Arc<Self>,
        event: WorkerEvent,
        spoken: SpokenVersions,
        request_id: String,
    ) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let Some(slot) = cloud.wait_for_slot(ProcessKind::Worker).await else {
                return cloud.report(&event, request_id, true).await;
            };
            let process = SimProcess::new(&cloud.sim, ProcessKind::Worker);
            cloud.workers.lock().push(process.clone());
            let lifetime = cloud.sim.between_ms(20_000, 900_000);
            let deadline_ms = SimClock(process.clone()).now_ms() + lifetime.as_millis() as u64;
            let runner = cloud.runner(&process, spoken);
            let function = WorkerFunction::new(runner, FunctionMetrics::default()).speaking(spoken);
            let work = function.handle(&event, request_id.clone(), deadline_ms);
            let began = cloud.store.spending.begin(&cloud.sim);
            let ended = cloud.invocation(&process, lifetime, work).await;
            cloud.store.spending.end(&cloud.sim, began);
            drop(slot);
            if let Some(Ok(_)) = ended {
                return;
            }
            cloud.sim.event(format_args!("worker {} of {request_id} died", event.worker));
            cloud.report(&event, request_id, false).await;
        });
    }

    /// Reports a failed invocation to the coordinator, as the platform does.
    async fn report(self: &Arc<Self>, event: &WorkerEvent, request_id: String, blameless: bool) {
        let sim = &self.sim;
        sim.time.sleep(sim.between_ms(10, 2_000)).await;
        let release = ReleaseCall {
            job: event.job.clone(),
            invocation: InvocationId::new(event.worker, &request_id),
            worker: Some(event.worker),
            blameless,
            expired: blameless,
            error: String::new(),
        };
        if !sim.happens(FaultKind::ReportLost) {
            self.deliver(release.clone().into(), None, None);
        }
        if sim.happens(FaultKind::ReportRepeated) {
            sim.time.sleep(sim.between_ms(1, LATEST_MS)).await;
            self.deliver(release.into(), None, None);
        }
    }

    /// Processes an accepted event.
    pub fn accept(self: &Arc<Self>, function: &str, payload: &Bytes) {
        let cloud = Arc::clone(self);
        let sim = &self.sim;
        if function == SCALER {
            let Some(mut event) = read::<ScalerEvent>(payload) else { return };
            if sim.mutant == Some(Mutant::NobodyIsSilent) {
                event.silent.clear();
            }
            let late = self.delay();
            tokio::spawn(async move {
                cloud.sim.time.sleep(late).await;
                cloud.run_scaler(event);
            });
            return;
        }
        let (Some(event), Some(spoken)) = (read::<WorkerEvent>(payload), self.spoken_by(function))
        else {
            return;
        };
        let request_id = format!("request-{}", self.events.fetch_add(1, Ordering::Relaxed));
        if sim.happens(FaultKind::EventDropped) {
            tokio::spawn(async move {
                cloud.sim.time.sleep(Duration::from_millis(EVENT_AGE_MS)).await;
                cloud.report(&event, request_id, true).await;
            });
            return;
        }
        let copies = if sim.happens(FaultKind::EventRepeated) { 2 + sim.below(2) } else { 1 };
        for _ in 0..copies {
            let (cloud, event, request_id) = (Arc::clone(self), event.clone(), request_id.clone());
            let late = self.delay();
            tokio::spawn(async move {
                cloud.sim.time.sleep(late).await;
                cloud.run_worker(event, spoken, request_id);
            });
        }
    }

    fn delay(&self) -> Duration {
        let most = if self.sim.happens(FaultKind::EventLate) { EVENT_AGE_MS } else { 400 };
        self.sim.between_ms(1, most)
    }
}

fn read<M: DeserializeOwned>(payload: &[u8]) -> Option<M> {
    read_event(serde_json::from_slice(payload).ok()?).ok()
}
