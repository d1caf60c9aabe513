//! The deployed functions: the coordinator behind its URL, the scaler, and the workers that it invokes.

use crate::{
    deployment::{BUCKET, Deployment},
    figures::Figures,
    table::{MeteredTable, Used},
    training,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::{Coordinator as Function, Settings};
use gristmill_model::wire::{
    AnyCall, AnyReply, ClaimReply, IdleReason, Request, ScalerEvent, VERSION, WorkerEvent,
};
use gristmill_ports::{CallError, Coordinator, InvokeError, Invoked, Invoker, Metrics, Table};
use gristmill_scaler::Scaler;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::oneshot;

/// Round trip to the coordinator's URL.
const CALL: Duration = Duration::from_millis(30);
/// Timeout of a caller.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeouts of invocations.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(30);
const SCALER_TIMEOUT: Duration = Duration::from_secs(60);
/// Size limit of a function's answer.
const MAX_ANSWER_BYTES: u64 = 6 << 20;
/// Latency of an asynchronous invocation for its sender, and until a new environment starts.
const INVOKE: Duration = Duration::from_millis(20);
const COLD_START: Duration = Duration::from_millis(300);
/// Latencies of the object store for functions.
const GET: Duration = Duration::from_millis(20);
const PUT: Duration = Duration::from_millis(60);
const SCALER: &str = "scaler";
/// Names of the polls of one among several readers: of that of rank 0, and of the others.
pub const LEADING: &str = "poll, leading";
pub const FOLLOWING: &str = "poll, following";

/// A warm coordinator and its table.
pub struct Environment {
    function: Function,
    table: Arc<MeteredTable>,
}

impl Environment {
    fn new(deployment: &Arc<Deployment>) -> Self {
        let table = MeteredTable::new(deployment);
        let function = Function::new(
            Arc::clone(&table) as Arc<dyn Table>,
            deployment.objects(GET, PUT),
            Arc::new(Platform::new(deployment)),
            deployment.clock(),
            Settings::new(deployment.ns.clone(), BUCKET.to_owned(), SCALER.to_owned()),
        );
        Self { function, table }
    }
}

/// The coordinator's URL.
pub struct Link(pub Arc<Deployment>);

struct Answered {
    reply: AnyReply,
    used: Used,
    busy: Duration,
}

impl Link {
    /// Runs the call in an environment of its own until it ends or times out.
    fn deliver(&self, request: Request, answer: oneshot::Sender<Answered>) {
        let deployment = Arc::clone(&self.0);
        tokio::spawn(async move {
            let began = deployment.now();
            // The lock is not held while the call runs.
            let idle = deployment.idle_environments().pop();
            let environment = idle.unwrap_or_else(|| Environment::new(&deployment));
            let reply = tokio::select! {
                biased;
                reply = environment.function.answer(&request) => reply,
                () = deployment.time.sleep(COORDINATOR_TIMEOUT) => {
                    let name = request.call.name();
                    deployment.meter.trouble(&format!("{name}: the coordinator was ended after 30 s"));
                    return;
                }
            };
            let (used, busy) = (environment.table.take_used(), deployment.now() - began);
            deployment.idle_environments().push(environment);
            // The caller may have given up.
            let _ = answer.send(Answered { reply, used, busy });
        });
    }
}

#[async_trait]
impl Coordinator for Link {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let deployment = &self.0;
        let began = deployment.now();
        deployment.meter.figures().note_poll(call, began);
        let request = Request { v: VERSION, ns: deployment.ns.clone(), call: call.clone() };
        deployment.pause(CALL / 2).await;
        let (sender, answer) = oneshot::channel();
        self.deliver(request, sender);
        // An invocation that timed out never answers.
        let answer = async {
            match answer.await {
                Ok(answered) => answered,
                Err(_) => std::future::pending().await,
            }
        };
        let answered = tokio::select! {
            biased;
            answered = answer => answered,
            () = deployment.time.sleep(CALL_TIMEOUT) => {
                let mut figures = deployment.meter.figures();
                if figures.is_measuring() {
                    figures.call(call.name()).unanswered += 1;
                }
                drop(figures);
                deployment.meter.trouble(&format!("{}: no answer within 10 s", call.name()));
                return Err(CallError::Unavailable("no answer within 10 s".to_owned()));
            }
        };
        deployment.pause(CALL / 2).await;
        let bytes = serde_json::to_vec(&answered.reply).map_or(0, |json| json.len() as u64);
        note(
            &mut deployment.meter.figures(),
            deployment,
            call,
            &answered,
            bytes,
            deployment.now() - began,
        );
        match answered.reply {
            AnyReply::Refused(refusal) => {
                deployment.meter.trouble(&format!("{}: {refusal}", call.name()));
                Err(CallError::Refused(refusal))
            }
            _ if bytes > MAX_ANSWER_BYTES => {
                deployment.meter.trouble(&format!("{}: an answer above 6 MiB", call.name()));
                Err(CallError::Unavailable(format!("an answer of {bytes} bytes")))
            }
            reply => Ok(reply),
        }
    }
}

/// Adds one call to the figures.
fn note(
    figures: &mut Figures,
    deployment: &Deployment,
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
            AnyCall::Poll(poll) if poll.ranks.first > 0 => FOLLOWING,
            AnyCall::Poll(poll) if !poll.is_alone() => LEADING,
            _ => call.name(),
        },
        _ => call.name(),
    };
    let largest = figures.largest.entry(name).or_default();
    *largest = bytes.max(*largest);
    if figures.is_measuring() {
        let kind = figures.call(name);
        kind.calls += 1;
        kind.used.add(&answered.used);
        kind.latencies_us.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        figures.busy += answered.busy;
    }
    if let (AnyCall::Flush(flush), AnyReply::Flush(_)) = (call, &answered.reply)
        && flush.lease.epoch != gristmill_model::Epoch::MAX
    {
        training::committed(figures, deployment, flush.commits.len() as u64);
    }
}

/// The platform's asynchronous invocations.
pub struct Platform {
    deployment: Arc<Deployment>,
    /// Workers invoked by this process, and its own termination.
    invoked: Mutex<u32>,
    killed: Option<tokio::sync::Notify>,
}

impl Platform {
    fn new(deployment: &Arc<Deployment>) -> Self {
        Self { deployment: Arc::clone(deployment), invoked: Mutex::default(), killed: None }
    }

    /// Whether the invoking scaler is killed instead.
    fn is_killed(&self) -> bool {
        let Some(killed) = &self.killed else { return false };
        let mut invoked = self.invoked.lock().unwrap_or_else(PoisonError::into_inner);
        *invoked += 1;
        let mut figures = self.deployment.meter.figures();
        let kill = figures.scaler_killed.is_none()
            && self.deployment.setting.kill_scaler_at.is_some_and(|at| *invoked > at);
        if kill {
            figures.scaler_killed = Some(self.deployment.now());
            killed.notify_one();
        }
        kill
    }
}

#[async_trait]
impl Invoker for Platform {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError> {
        let deployment = Arc::clone(&self.deployment);
        deployment.pause(INVOKE).await;
        if !deployment.setting.real {
            return Ok(Invoked::Accepted);
        }
        if function == SCALER {
            if let Ok(event) = serde_json::from_slice::<ScalerEvent>(&payload) {
                tokio::spawn(scale(deployment, event));
            }
        } else if self.is_killed() {
            std::future::pending::<()>().await;
        } else if let Ok(event) = serde_json::from_slice::<WorkerEvent>(&payload) {
            tokio::spawn(async move {
                deployment.pause(COLD_START).await;
                training::invoked_worker(deployment, event.worker).await;
            });
        }
        Ok(Invoked::Accepted)
    }
}

/// One event of the scaler function.
async fn scale(deployment: Arc<Deployment>, event: ScalerEvent) {
    deployment.pause(CALL).await;
    let began = deployment.now();
    let table = MeteredTable::new(&deployment);
    let killed = Some(tokio::sync::Notify::new());
    let platform = Arc::new(Platform { killed, ..Platform::new(&deployment) });
    let scaler = Scaler {
        table: Arc::clone(&table) as Arc<dyn Table>,
        invoker: Arc::clone(&platform) as Arc<dyn Invoker>,
        worker_function: "worker".to_owned(),
        max_workers: None,
        metrics: Metrics::default(),
    };
    let is_killed = async {
        match &platform.killed {
            Some(killed) => killed.notified().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        scaled = scaler.handle(&event) => if let Err(error) = scaled {
            deployment.meter.trouble(&format!("scaler: {error}"));
        },
        () = is_killed => {}
        () = deployment.time.sleep(SCALER_TIMEOUT) => {
            deployment.meter.trouble("scaler: ended after 60 s");
        }
    }
    let mut figures = deployment.meter.figures();
    if figures.is_measuring() {
        let kind = figures.call("scaler");
        kind.calls += 1;
        kind.used.add(&table.take_used());
        kind.latencies_us
            .push(u32::try_from((deployment.now() - began).as_micros()).unwrap_or(u32::MAX));
    }
}
