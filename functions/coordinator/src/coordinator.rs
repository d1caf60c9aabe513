//! The coordinator: checks a request's version and namespace, and dispatches its call to a handler.

use crate::{
    CoordinatorSettings,
    items::{ItemName, JobItem},
    kicks::LatestKicks,
    meter,
    snapshot::CoordinatorMemory,
    store::{NamespaceTable, invalid},
};
use gristmill_model::JobName;
use gristmill_model::splits::job::{JobEvent, apply};
use gristmill_model::splits::{TransitionOutcome, TransitionRefusal as SplitRefusal};
use gristmill_model::wire::{
    AnyCall, AnyReply, CallEnvelope, CallRefusal, CoordinatorCall, DescribeCall, JobView,
    RefusalKind, SpokenVersions, StopCall,
};
use gristmill_ports::{Clock, FunctionMetrics, Invoker, ObjectStore, Table};
use std::sync::Arc;

/// The handler of one kind of call.
pub trait CallHandler<C: CoordinatorCall> {
    fn handle(&self, call: &C) -> impl Future<Output = Result<C::Reply, CallRefusal>> + Send;
}

/// The coordinator with its ports and settings.
#[derive(Clone)]
pub struct CoordinatorFunction {
    pub(crate) store: NamespaceTable,
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) invoker: Arc<dyn Invoker>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Arc<CoordinatorSettings>,
    pub(crate) kicks: Arc<LatestKicks>,
    pub(crate) memory: CoordinatorMemory,
    /// The version of the call that is answered.
    pub(crate) version: u32,
    metrics: Option<FunctionMetrics>,
}

impl CoordinatorFunction {
    pub fn new(
        table: Arc<dyn Table>,
        objects: Arc<dyn ObjectStore>,
        invoker: Arc<dyn Invoker>,
        clock: Arc<dyn Clock>,
        settings: CoordinatorSettings,
    ) -> Self {
        let store = NamespaceTable::new(table, Arc::clone(&clock), settings.ns.clone());
        Self {
            store,
            objects,
            invoker,
            clock,
            version: settings.spoken.newest,
            settings: Arc::new(settings),
            kicks: Arc::default(),
            memory: CoordinatorMemory::default(),
            metrics: None,
        }
    }

    /// Shares `memory` with other coordinators of the same process.
    #[must_use]
    pub fn sharing(self, memory: &CoordinatorMemory) -> Self {
        Self { memory: memory.clone(), ..self }
    }

    /// Prints metrics of each call.
    pub fn metered(self, metrics: FunctionMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Answers one request; every error becomes a refusal.
    pub async fn answer(&self, request: &CallEnvelope) -> AnyReply {
        let started_ms = self.clock.now_ms();
        let reply = self.try_answer(request).await.unwrap_or_else(AnyReply::Refused);
        if let Some(metrics) = &self.metrics {
            let (ended_ms, conflicts) = (self.clock.now_ms(), self.store.take_conflicts());
            meter::print(metrics, &request.call, &reply, started_ms, ended_ms, conflicts);
        }
        reply
    }

    async fn try_answer(&self, request: &CallEnvelope) -> Result<AnyReply, CallRefusal> {
        let spoken = self.settings.spoken;
        if !spoken.includes(request.v) {
            return Err(spoken.refuse(request.v));
        }
        if request.ns != self.settings.ns {
            return Err(invalid(format!(
                "the call is for namespace {}, this coordinator serves {}",
                request.ns, self.settings.ns
            )));
        }
        Self { version: request.v, ..self.clone() }.dispatch(&request.call).await
    }

    /// Answers a call that this process makes itself.
    pub async fn answer_own(&self, call: impl Into<AnyCall>) -> AnyReply {
        let (v, ns) = (self.settings.spoken.newest, self.settings.ns.clone());
        self.answer(&CallEnvelope { v, ns, call: call.into() }).await
    }

    /// The versions of the protocol that it speaks.
    pub fn spoken(&self) -> SpokenVersions {
        self.settings.spoken
    }

    /// The job of that name.
    pub(crate) async fn job(&self, job: &JobName) -> Result<JobItem, CallRefusal> {
        let read = self.store.read::<JobItem>(&ItemName::Job(job)).await?;
        read.item.ok_or_else(|| no_job(job))
    }

    /// Fails the job that was read as `seen`; a job that has ended, or gone on after a failure since, stays as it is.
    pub(crate) async fn fail_job(
        &self,
        job: &JobName,
        seen: &JobItem,
        error: String,
    ) -> Result<JobItem, CallRefusal> {
        self.end_job(job, Some(seen.resumed), &JobEvent::Failed { error }).await
    }

    /// Stops the job; one that has ended stays as it is.
    pub(crate) async fn stop_job(&self, job: &JobName) -> Result<JobItem, CallRefusal> {
        self.end_job(job, None, &JobEvent::Stopped).await
    }

    async fn end_job(
        &self,
        job: &JobName,
        resumed: Option<u32>,
        event: &JobEvent,
    ) -> Result<JobItem, CallRefusal> {
        let end = |item: &mut JobItem| {
            if resumed.is_none_or(|resumed| resumed == item.resumed) {
                match apply(&item.state, event) {
                    Ok(TransitionOutcome::Write(state)) => item.state = state,
                    Ok(TransitionOutcome::AlreadyApplied(_)) | Err(SplitRefusal::Ended { .. }) => {}
                    Err(refusal) => return Err(invalid(refusal.to_string())),
                }
            }
            Ok(())
        };
        self.change_job(job, end).await
    }

    /// Lets `change` change the job. One that stays as it is is not written.
    pub(crate) async fn change_job<E: From<CallRefusal>>(
        &self,
        job: &JobName,
        change: impl Fn(&mut JobItem) -> Result<(), E>,
    ) -> Result<JobItem, E> {
        let decide = |before: Option<&JobItem>| {
            let mut after = before.cloned().ok_or_else(|| no_job(job))?;
            change(&mut after)?;
            Ok(TransitionOutcome::new(before, after))
        };
        self.store.update(&ItemName::Job(job), decide).await
    }
}

macro_rules! dispatch {
    ($($name:ident($call:ident)[$($job:tt)*] $text:literal $reply:ident)*) => {
        impl CoordinatorFunction {
            async fn dispatch(&self, call: &AnyCall) -> Result<AnyReply, CallRefusal> {
                match call {
                    $(AnyCall::$name(call) => self.handle(call).await.map(AnyReply::$name),)*
                }
            }
        }
    };
}

gristmill_model::for_each_call!(dispatch);

impl CallHandler<DescribeCall> for CoordinatorFunction {
    async fn handle(&self, DescribeCall { job }: &DescribeCall) -> Result<JobView, CallRefusal> {
        Ok(self.job(job).await?.view(job))
    }
}

impl CallHandler<StopCall> for CoordinatorFunction {
    async fn handle(&self, StopCall { job }: &StopCall) -> Result<JobView, CallRefusal> {
        Ok(self.stop_job(job).await?.view(job))
    }
}

pub(crate) fn no_job(job: &JobName) -> CallRefusal {
    let message = format!("there is no job {job} here");
    CallRefusal { kind: RefusalKind::NotFound, message }
}

/// Converts a refusal of the split table to the refusal of a call.
pub(crate) fn refuse(refusal: &SplitRefusal) -> CallRefusal {
    let kind = match refusal {
        SplitRefusal::Lost
        | SplitRefusal::Leased { .. }
        | SplitRefusal::NotDue { .. }
        | SplitRefusal::Done
        | SplitRefusal::Dead { .. }
        | SplitRefusal::DeathUnrecorded { .. } => RefusalKind::LeaseLost,
        SplitRefusal::Fenced { .. } | SplitRefusal::Replaced { .. } => RefusalKind::Fenced,
        SplitRefusal::Collected { .. } => RefusalKind::Collected,
        SplitRefusal::NotDone { .. } | SplitRefusal::NotDurable { .. } => RefusalKind::Busy,
        SplitRefusal::RunDiffers { run, .. } => RefusalKind::RunDiffers { run: *run },
        SplitRefusal::Contradiction { .. }
        | SplitRefusal::Invalid { .. }
        | SplitRefusal::TooManySkipped { .. }
        | SplitRefusal::Ended { .. } => RefusalKind::Invalid,
    };
    CallRefusal { kind, message: refusal.to_string() }
}
