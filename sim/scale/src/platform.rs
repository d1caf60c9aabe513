//! The deployed functions: the coordinator behind its URL, the scaler, and the workers that it invokes.

use crate::{
    deployment::{BUCKET, SimulatedDeployment},
    figures::ScaleFigures,
    table::{MeteredTable, TableUsage},
    training,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{CoordinatorFunction as Function, CoordinatorSettings};
use gristmill_model::InvocationId;
use gristmill_model::wire::{
    AnyCall, AnyReply, CallEnvelope, ClaimReply, IdleReason, ReleaseCall, ScalerEvent,
    SpokenVersions, VERSION, WorkerEvent,
};
use gristmill_ports::limits::{EVENT_AGE, EventWaits, event_backoff};
use gristmill_ports::{
    CallError, Coordinator, FunctionMetrics, InvokeError, InvokeOutcome, Invoker, Table,
};
use gristmill_scaler::ScalerFunction;
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// Round trip to the coordinator's URL.
const CALL: Duration = Duration::from_millis(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeouts of invocations.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(30);
const SCALER_TIMEOUT: Duration = Duration::from_secs(60);
/// Size limit of a function's answer.
const MAX_ANSWER_BYTES: u64 = 6 << 20;
/// Latency of an asynchronous invocation for its sender, and until a new environment starts.
const INVOKE: Duration = Duration::from_millis(20);
const COLD_START: Duration = Duration::from_millis(300);
/// Time until the platform reports that an event expired.
const REPORTED: Duration = Duration::from_millis(500);
/// Latencies of the object store for functions.
const GET: Duration = Duration::from_millis(20);
const PUT: Duration = Duration::from_millis(60);
const SCALER: &str = "scaler";
/// Names of the polls of one among several readers: of that of rank 0, and of the others.
pub const LEADING_POLL: &str = "poll, leading";
/// See [`LEADING_POLL`].
pub const FOLLOWING_POLL: &str = "poll, following";

/// A warm coordinator and its table.
pub struct CoordinatorEnvironment {
    function: Function,
    table: Arc<MeteredTable>,
}

impl CoordinatorEnvironment {
    fn new(deployment: &Arc<SimulatedDeployment>) -> Self {
        let table = MeteredTable::new(deployment);
        let function = Function::new(
            Arc::clone(&table) as Arc<dyn Table>,
            deployment.objects(GET, PUT),
            Arc::new(PlatformInvoker::new(deployment)),
            deployment.clock(),
            CoordinatorSettings::new(deployment.ns.clone(), BUCKET.to_owned(), SCALER.to_owned()),
        );
        Self { function, table }
    }
}

/// The coordinator's URL.
pub struct UrlCoordinator(pub Arc<SimulatedDeployment>);

struct Answered {
    reply: AnyReply,
    used: TableUsage,
    busy: Duration,
}

impl UrlCoordinator {
    /// Runs the call in an environment of its own until it ends. None if it times out.
    async fn serve(
        deployment: Arc<SimulatedDeployment>,
        request: CallEnvelope,
    ) -> Option<Answered> {
        let began = deployment.now();
        // The lock is not held while the call runs.
        let idle = deployment.idle_environments().pop();
        let environment = idle.unwrap_or_else(|| CoordinatorEnvironment::new(&deployment));
        let reply = tokio::select! {
            biased;
            reply = environment.function.answer(&request) => reply,
            () = deployment.time.sleep(COORDINATOR_TIMEOUT) => {
                let name = request.call.name();
                deployment.trouble(&format!("{name}: the coordinator was ended after 30 s"));
                deployment.end_call();
                return None;
            }
        };
        let (used, busy) = (environment.table.take_used(), deployment.now() - began);
        deployment.idle_environments().push(environment);
        deployment.end_call();
        Some(Answered { reply, used, busy })
    }
}

#[async_trait]
impl Coordinator for UrlCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let deployment = &self.0;
        let began = deployment.now();
        deployment.figures().note_poll(call, began);
        let request = CallEnvelope { v: VERSION, ns: deployment.ns.clone(), call: call.clone() };
        deployment.pause(CALL / 2).await;
        if let Some(stack) = &deployment.stack
            && !stack.begin_call(deployment.now())
        {
            {
                let mut figures = deployment.figures();
                figures.refused_calls += u64::from(figures.is_measuring());
            }
            deployment.pause(CALL / 2).await;
            return Err(CallError::Throttled("429: too many requests".to_owned()));
        }
        // It goes on if its caller gives up.
        let serving = tokio::spawn(Self::serve(Arc::clone(deployment), request));
        let answered = tokio::select! {
            biased;
            Ok(Some(answered)) = serving => answered,
            () = deployment.time.sleep(CALL_TIMEOUT) => {
                let mut figures = deployment.figures();
                if figures.is_measuring() {
                    figures.calls.entry(call.name()).or_default().unanswered += 1;
                }
                drop(figures);
                deployment.trouble(&format!("{}: no answer within 10 s", call.name()));
                return Err(CallError::Unavailable("no answer within 10 s".to_owned()));
            }
        };
        deployment.pause(CALL / 2).await;
        let bytes = serde_json::to_vec(&answered.reply).map_or(0, |json| json.len() as u64);
        note(
            &mut deployment.figures(),
            deployment,
            call,
            &answered,
            bytes,
            deployment.now() - began,
        );
        match answered.reply {
            AnyReply::Refused(refusal) => {
                deployment.trouble(&format!("{}: {refusal}", call.name()));
                Err(CallError::Refused(refusal))
            }
            _ if bytes > MAX_ANSWER_BYTES => {
                deployment.trouble(&format!("{}: an answer above 6 MiB", call.name()));
                Err(CallError::Unavailable(format!("an answer of {bytes} bytes")))
            }
            reply => Ok(reply),
        }
    }

    fn speak(&self, _: u32) {}
}

fn note(
    figures: &mut ScaleFigures,
    deployment: &SimulatedDeployment,
    call: &AnyCall,
    answered: &Answered,
    bytes: u64,
    took: Duration,
) {
    let name = match &answered.reply {
        AnyReply::Claim(ClaimReply::Idle(idle)) => match idle.reason {
            IdleReason::WindowFull => "claim, window full",
            IdleReason::AllClaimed => "claim, all claimed",
            IdleReason::Surplus => "claim, surplus",
            IdleReason::JobEnded => "claim, job ended",
        },
        AnyReply::Refused(_) => "refused",
        AnyReply::Poll(_) => match call {
            AnyCall::Poll(poll) if poll.ranks.first > 0 => FOLLOWING_POLL,
            AnyCall::Poll(poll) if !poll.is_alone() => LEADING_POLL,
            _ => call.name(),
        },
        _ => call.name(),
    };
    let largest = figures.largest.entry(name).or_default();
    *largest = bytes.max(*largest);
    figures.record(name, &answered.used, took);
    if figures.is_measuring() {
        figures.busy += answered.busy;
    }
    if let (AnyCall::Flush(flush), AnyReply::Flush(_)) = (call, &answered.reply)
        && flush.lease.epoch != gristmill_model::Epoch::MAX
    {
        training::committed(figures, deployment, flush.commits.len() as u64);
    }
}

/// The platform's asynchronous invocations.
pub struct PlatformInvoker {
    deployment: Arc<SimulatedDeployment>,
    /// Whether a scaler invokes workers, how many it has, and its end.
    is_scaler: bool,
    invoked: Mutex<u32>,
    killed: Notify,
}

impl PlatformInvoker {
    fn new(deployment: &Arc<SimulatedDeployment>) -> Self {
        let deployment = Arc::clone(deployment);
        Self { deployment, is_scaler: false, invoked: Mutex::default(), killed: Notify::new() }
    }

    /// Whether the invoking scaler is killed instead.
    fn is_killed(&self) -> bool {
        if !self.is_scaler {
            return false;
        }
        let mut invoked = self.invoked.lock();
        *invoked += 1;
        let mut figures = self.deployment.figures();
        let kill = figures.scaler_killed.is_none()
            && self.deployment.setting.kill_scaler_at.is_some_and(|at| *invoked > at);
        if kill {
            figures.scaler_killed = Some(self.deployment.now());
            self.killed.notify_one();
        }
        kill
    }
}

#[async_trait]
impl Invoker for PlatformInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let deployment = Arc::clone(&self.deployment);
        deployment.pause(INVOKE).await;
        if !deployment.setting.real {
            return Ok(InvokeOutcome::Accepted);
        }
        if function == SCALER {
            if let Ok(event) = serde_json::from_slice::<ScalerEvent>(&payload) {
                tokio::spawn(scale(deployment, event));
            }
        } else if self.is_killed() {
            std::future::pending::<()>().await;
        } else if let Ok(event) = serde_json::from_slice::<WorkerEvent>(&payload) {
            deployment.figures().events += 1;
            tokio::spawn(run_event(deployment, event));
        }
        Ok(InvokeOutcome::Accepted)
    }
}

/// A worker's event: it waits until there is an environment, or expires, which the platform reports.
async fn run_event(deployment: Arc<SimulatedDeployment>, event: WorkerEvent) {
    if let Some(stack) = &deployment.stack {
        let mut waits = EventWaits::begin(deployment.now(), EVENT_AGE);
        while !stack.begin_worker(deployment.now()) {
            let Some(wait) = waits.next(deployment.now(), deployment.uniform()) else {
                deployment.figures().expired += 1;
                return report_expired(deployment, event).await;
            };
            deployment.time.sleep(wait).await;
        }
        training::note_running(&deployment, stack.workers());
    }
    deployment.pause(COLD_START).await;
    training::invoked_worker(Arc::clone(&deployment), event.worker).await;
    if let Some(stack) = &deployment.stack {
        stack.end_worker();
    }
}

/// The platform sends the report of an event to the coordinator as another event.
async fn report_expired(deployment: Arc<SimulatedDeployment>, event: WorkerEvent) {
    let release = ReleaseCall {
        job: event.job,
        invocation: InvocationId::new(event.worker, &format!("expired-{}", event.worker)),
        worker: Some(event.worker),
        blameless: true,
        expired: true,
        error: String::new(),
    };
    deployment.pause(REPORTED).await;
    let mut tries = 0;
    while deployment.stack.as_ref().is_some_and(|stack| !stack.begin_event()) {
        tries += 1;
        deployment.time.sleep(event_backoff(tries, deployment.uniform())).await;
    }
    let began = deployment.now();
    let request = CallEnvelope { v: VERSION, ns: deployment.ns.clone(), call: release.into() };
    let served = UrlCoordinator::serve(Arc::clone(&deployment), request).await;
    let Some(Answered { reply, used, busy }) = served else { return };
    if let AnyReply::Refused(refusal) = reply {
        deployment.trouble(&format!("the report of an expired event: {refusal}"));
    }
    let mut figures = deployment.figures();
    figures.record("release, expired", &used, deployment.now() - began);
    if figures.is_measuring() {
        figures.busy += busy;
    }
}

async fn scale(deployment: Arc<SimulatedDeployment>, event: ScalerEvent) {
    deployment.pause(CALL).await;
    let began = deployment.now();
    let table = MeteredTable::new(&deployment);
    let platform =
        Arc::new(PlatformInvoker { is_scaler: true, ..PlatformInvoker::new(&deployment) });
    let scaler = ScalerFunction {
        table: Arc::clone(&table) as Arc<dyn Table>,
        invoker: Arc::clone(&platform) as Arc<dyn Invoker>,
        worker_function: "worker".to_owned(),
        region: "simulated".to_owned(),
        max_workers: None,
        spoken: SpokenVersions::BUILD,
        metrics: FunctionMetrics::default(),
    };
    tokio::select! {
        biased;
        scaled = scaler.handle(&event) => if let Err(error) = scaled {
            deployment.trouble(&format!("scaler: {error}"));
        },
        () = platform.killed.notified() => {}
        () = deployment.time.sleep(SCALER_TIMEOUT) => {
            deployment.trouble("scaler: ended after 60 s");
        }
    }
    let took = deployment.now() - began;
    deployment.figures().record("scaler", &table.take_used(), took);
}
