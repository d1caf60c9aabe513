//! One invocation: works until there is no work or no time, then reports to the coordinator that it leaves.

use crate::tally::CountingCoordinator;
use gristmill_model::wire::{
    AppliedReply, IdleReason, LeaveCall, RefusalKind, SpokenVersions, WorkerEvent, protocol,
};
use gristmill_model::{InvocationId, JobName};
use gristmill_ports::{CallError, FunctionMetrics, call_with_retry};
use gristmill_runner::{JobContext, LeaseError, ObjectSink, Runner, WorkerStopReason, describe};
use serde::Serialize;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How long a worker retries its Leave call; afterwards the scaler relies on its silence.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// An invocation that must be seen as failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFunctionError {
    #[error("{}", protocol::other_event(*.0, *.1))]
    Version(u32, SpokenVersions),
    #[error("the event is for namespace {event}, this worker serves {own}")]
    Namespace { event: String, own: String },
    #[error(transparent)]
    Run(#[from] LeaseError),
}

/// The report of an invocation to the platform.
#[derive(Debug, Serialize)]
pub struct InvocationReport {
    pub ended: String,
}

/// The worker's state between invocations: its connections, and the program and indices of the last job.
pub struct WorkerFunction {
    runner: Runner,
    tallied: Arc<CountingCoordinator>,
    metrics: FunctionMetrics,
    spoken: SpokenVersions,
    warm: Mutex<Option<JobContext>>,
}

impl WorkerFunction {
    /// A function that works with `runner`.
    pub fn new(runner: Runner, metrics: FunctionMetrics) -> Self {
        let tallied = Arc::new(CountingCoordinator::new(Arc::clone(&runner.coordinator)));
        let runner = Runner { coordinator: Arc::clone(&tallied) as _, ..runner };
        Self { runner, tallied, metrics, spoken: SpokenVersions::BUILD, warm: Mutex::new(None) }
    }

    /// This worker as one that speaks these versions of the protocol.
    #[must_use]
    pub fn speaking(self, spoken: SpokenVersions) -> Self {
        Self { spoken, ..self }
    }

    /// Works for `event`'s job until `deadline_ms` (Unix time).
    pub async fn handle(
        &self,
        event: &WorkerEvent,
        request_id: String,
        deadline_ms: u64,
    ) -> Result<InvocationReport, WorkerFunctionError> {
        if !self.spoken.includes(event.v) {
            return Err(WorkerFunctionError::Version(event.v, self.spoken));
        }
        let own = &self.runner.config.ns;
        if event.ns != *own {
            let (event, own) = (event.ns.to_string(), own.to_string());
            return Err(WorkerFunctionError::Namespace { event, own });
        }
        // The job before may have had another version.
        self.runner.coordinator.speak(event.v);
        let invocation = InvocationId::new(event.worker, &request_id);
        let outcome = self.work(&event.job, invocation, deadline_ms).await;
        // The workers of an ended job are not counted.
        if !matches!(outcome, Ok(WorkerStopReason::Idle(IdleReason::JobEnded))) {
            let error = outcome.as_ref().err().map(LeaseError::to_string);
            self.leave(event, error).await;
        }
        self.measure(event);
        match outcome {
            Ok(ended) => Ok(InvocationReport { ended: format!("{ended:?}") }),
            // The job's bundle was given back, or its lease will expire: the function itself did not fail.
            Err(error @ (LeaseError::Fatal { .. } | LeaseError::Passing(_))) => {
                tracing::warn!(job = %event.job, worker = event.worker, %error, "worker ends");
                Ok(InvocationReport { ended: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Prints metrics of this invocation.
    fn measure(&self, event: &WorkerEvent) {
        let (job, worker) = (event.job.to_string(), event.worker.to_string());
        let properties = [("job", job.as_str()), ("worker", worker.as_str())];
        let measures = self.tallied.take().measures();
        self.metrics.print(self.runner.clock.now_ms(), &measures, &properties);
    }

    async fn work(
        &self,
        job: &JobName,
        invocation: InvocationId,
        deadline_ms: u64,
    ) -> Result<WorkerStopReason, LeaseError> {
        let context = self.context(job).await?;
        let sink = ObjectSink { runner: self.runner.clone(), job: job.clone() };
        self.runner.work(&context, &invocation, deadline_ms, &sink).await
    }

    async fn context(&self, job: &JobName) -> Result<JobContext, LeaseError> {
        let warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let same = match &warm {
            // The job may have been forgotten and its name used by another one.
            Some(context) if context.view.job == *job => {
                let registered_ms = context.view.registered_ms;
                describe(&self.runner, job).await?.registered_ms == registered_ms
            }
            _ => false,
        };
        match warm {
            Some(context) if same => Ok(context),
            _ => {
                let context = JobContext::load(&self.runner, job).await?;
                *self.warm.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.clone());
                Ok(context)
            }
        }
    }

    async fn leave(&self, event: &WorkerEvent, error: Option<String>) {
        let call = LeaveCall { job: event.job.clone(), worker: event.worker, error };
        let Runner { coordinator, clock, .. } = &self.runner;
        match call_with_retry(&**coordinator, &**clock, call, LEAVE_PATIENCE).await {
            Ok(AppliedReply {}) => {}
            Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, "cannot report to the coordinator that this worker leaves")
            }
        }
    }
}
