//! The deployed functions: the coordinator behind its URL, the scaler, and the workers that it invokes.

use crate::{
    figures::Figures,
    table::{MeteredTable, Used},
    training,
    world::{BUCKET, World},
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

/// A warm coordinator and its table.
pub struct Environment {
    function: Function,
    table: Arc<MeteredTable>,
}

impl Environment {
    fn new(world: &Arc<World>) -> Self {
        let table = MeteredTable::new(world);
        let function = Function::new(
            Arc::clone(&table) as Arc<dyn Table>,
            world.objects(GET, PUT),
            Arc::new(Platform::new(world)),
            world.clock(),
            Settings::new(world.ns.clone(), BUCKET.to_owned(), SCALER.to_owned()),
        );
        Self { function, table }
    }
}

/// The coordinator's URL.
pub struct Link(pub Arc<World>);

struct Answered {
    reply: AnyReply,
    used: Used,
    busy: Duration,
}

impl Link {
    /// Runs the call in an environment of its own until it ends or times out.
    fn deliver(&self, request: Request, answer: oneshot::Sender<Answered>) {
        let world = Arc::clone(&self.0);
        tokio::spawn(async move {
            let began = world.now();
            // The lock is not held while the call runs.
            let idle = world.idle_environments().pop();
            let environment = idle.unwrap_or_else(|| Environment::new(&world));
            let reply = tokio::select! {
                biased;
                reply = environment.function.answer(&request) => reply,
                () = world.time.sleep(COORDINATOR_TIMEOUT) => {
                    let name = request.call.name();
                    world.meter.trouble(&format!("{name}: the coordinator was ended after 30 s"));
                    return;
                }
            };
            let (used, busy) = (environment.table.take_used(), world.now() - began);
            world.idle_environments().push(environment);
            // The caller may have given up.
            let _ = answer.send(Answered { reply, used, busy });
        });
    }
}

#[async_trait]
impl Coordinator for Link {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let world = &self.0;
        let began = world.now();
        let request = Request { v: VERSION, ns: world.ns.clone(), call: call.clone() };
        world.pause(CALL / 2).await;
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
            () = world.time.sleep(CALL_TIMEOUT) => {
                let mut figures = world.meter.figures();
                if figures.is_measuring() {
                    figures.call(call.name()).unanswered += 1;
                }
                drop(figures);
                world.meter.trouble(&format!("{}: no answer within 10 s", call.name()));
                return Err(CallError::Unavailable("no answer within 10 s".to_owned()));
            }
        };
        world.pause(CALL / 2).await;
        let bytes = serde_json::to_vec(&answered.reply).map_or(0, |json| json.len() as u64);
        note(&mut world.meter.figures(), world, call, &answered, bytes, world.now() - began);
        match answered.reply {
            AnyReply::Refused(refusal) => {
                world.meter.trouble(&format!("{}: {refusal}", call.name()));
                Err(CallError::Refused(refusal))
            }
            _ if bytes > MAX_ANSWER_BYTES => {
                world.meter.trouble(&format!("{}: an answer above 6 MiB", call.name()));
                Err(CallError::Unavailable(format!("an answer of {bytes} bytes")))
            }
            reply => Ok(reply),
        }
    }
}

/// Adds one call to the figures.
fn note(
    figures: &mut Figures,
    world: &World,
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
        && flush.epoch != gristmill_model::Epoch::MAX
    {
        training::committed(figures, world, flush.commits.len() as u64);
    }
}

/// The platform's asynchronous invocations.
pub struct Platform {
    world: Arc<World>,
    /// Workers invoked by this process, and its own termination.
    invoked: Mutex<u32>,
    killed: Option<tokio::sync::Notify>,
}

impl Platform {
    fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world), invoked: Mutex::default(), killed: None }
    }

    /// Whether the invoking scaler is killed instead.
    fn is_killed(&self) -> bool {
        let Some(killed) = &self.killed else { return false };
        let mut invoked = self.invoked.lock().unwrap_or_else(PoisonError::into_inner);
        *invoked += 1;
        let mut figures = self.world.meter.figures();
        let kill = figures.scaler_killed.is_none()
            && self.world.setting.kill_scaler_at.is_some_and(|at| *invoked > at);
        if kill {
            figures.scaler_killed = Some(self.world.now());
            killed.notify_one();
        }
        kill
    }
}

#[async_trait]
impl Invoker for Platform {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError> {
        let world = Arc::clone(&self.world);
        world.pause(INVOKE).await;
        if !world.setting.real {
            return Ok(Invoked::Accepted);
        }
        if function == SCALER {
            if let Ok(event) = serde_json::from_slice::<ScalerEvent>(&payload) {
                tokio::spawn(scale(world, event));
            }
        } else if self.is_killed() {
            std::future::pending::<()>().await;
        } else if let Ok(event) = serde_json::from_slice::<WorkerEvent>(&payload) {
            tokio::spawn(async move {
                world.pause(COLD_START).await;
                training::invoked_worker(world, event.worker).await;
            });
        }
        Ok(Invoked::Accepted)
    }
}

/// One event of the scaler function.
async fn scale(world: Arc<World>, event: ScalerEvent) {
    world.pause(CALL).await;
    let began = world.now();
    let table = MeteredTable::new(&world);
    let killed = Some(tokio::sync::Notify::new());
    let platform = Arc::new(Platform { killed, ..Platform::new(&world) });
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
            world.meter.trouble(&format!("scaler: {error}"));
        },
        () = is_killed => {}
        () = world.time.sleep(SCALER_TIMEOUT) => {
            world.meter.trouble("scaler: ended after 60 s");
        }
    }
    let mut figures = world.meter.figures();
    if figures.is_measuring() {
        let kind = figures.call("scaler");
        kind.calls += 1;
        kind.used.add(&table.take_used());
        kind.latencies_us
            .push(u32::try_from((world.now() - began).as_micros()).unwrap_or(u32::MAX));
    }
}
