//! One invocation: works until there is no work or no time, counts its calls, then reports to the coordinator that it
//! leaves.

use crate::paid_time::PaidTime;
use async_trait::async_trait;
use gristmill_model::{
    InvocationId, JobName,
    splits::WorkerTimes,
    wire::{
        AnyCall, AnyReply, AppliedReply, ClaimReply, FlushCall, IdleReason, LEAVING_MS, LeaseWork,
        LeaveCall, RefusalKind, SpokenVersions, WorkerEvent, protocol,
    },
};
use gristmill_ports::{CallError, Coordinator, FunctionMetrics, MetricValue, call_with_retry};
use gristmill_runner::{JobContext, LeaseError, ObjectSink, Runner, WorkerStopReason};
use parking_lot::Mutex;
use serde::Serialize;
use std::{sync::Arc, time::Duration};

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
    runner: Arc<Runner>,
    tallied: Arc<CountingCoordinator>,
    metrics: FunctionMetrics,
    spoken: SpokenVersions,
    warm: Mutex<Option<JobContext>>,
}

impl WorkerFunction {
    /// A function that works with `runner`.
    pub fn new(runner: Runner, metrics: FunctionMetrics) -> Self {
        let tallied = Arc::new(CountingCoordinator::new(Arc::clone(&runner.coordinator)));
        let runner = Arc::new(Runner { coordinator: Arc::clone(&tallied) as _, ..runner });
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
        let paid = event.first_ms.map(|first_ms| {
            Arc::new(PaidTime::new(Arc::clone(&self.runner.clock), event.worker, first_ms))
        });
        self.tallied.pay_for(paid.clone());
        let over = async {
            match &paid {
                Some(paid) => paid.over().await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            () = over => Ok(WorkerStopReason::OutOfTime),
            outcome = self.work(&event.job, invocation, deadline_ms) => outcome,
        };
        if paid.as_ref().is_some_and(|paid| !paid.is_admitted()) {
            let ended = "not expected: another invocation has its event, or none".to_owned();
            return Ok(InvocationReport { ended });
        }
        // The workers of an ended job are not counted.
        if paid.is_some() || !matches!(outcome, Ok(WorkerStopReason::Idle(IdleReason::JobEnded))) {
            let error = outcome.as_ref().err().map(LeaseError::to_string);
            self.leave(event, error, paid.as_deref()).await;
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
        let sink = ObjectSink { runner: Arc::clone(&self.runner), job: job.clone() };
        context.work(&invocation, deadline_ms, &sink).await
    }

    async fn context(&self, job: &JobName) -> Result<JobContext, LeaseError> {
        let warm = self.warm.lock().clone();
        // The job may have been forgotten and its name used by another one.
        if let Some(context) = warm.filter(|context| context.view.job == *job)
            && self.runner.describe(job).await?.registered_ms == context.view.registered_ms
        {
            return Ok(context);
        }
        let context = JobContext::load(Arc::clone(&self.runner), job).await?;
        *self.warm.lock() = Some(context.clone());
        Ok(context)
    }

    async fn leave(&self, event: &WorkerEvent, error: Option<String>, paid: Option<&PaidTime>) {
        let said = paid.map(PaidTime::said);
        let call = LeaveCall { job: event.job.clone(), worker: event.worker, error, said };
        let patience = paid.map_or(LEAVE_PATIENCE, |_| Duration::from_millis(LEAVING_MS));
        let Runner { coordinator, clock, .. } = &*self.runner;
        let leaving = call_with_retry(&**coordinator, &**clock, call, patience);
        let left = tokio::select! {
            biased;
            left = leaving => left,
            () = clock.sleep(patience) => Err(CallError::Unavailable("no answer".to_owned())),
        };
        match left {
            Ok(AppliedReply {}) => {}
            Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, "cannot report to the coordinator that this worker leaves")
            }
        }
    }
}

/// Totals since the last [`CountingCoordinator::take`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InvocationTotals {
    splits: u64,
    rows: u64,
    skipped: u64,
    files_indexed: u64,
    bundles_lost: u64,
    times: WorkerTimes,
    /// The current lease indexes files.
    is_indexing: bool,
}

impl InvocationTotals {
    /// The totals as metrics.
    pub fn measures(&self) -> Vec<MetricValue> {
        vec![
            MetricValue::count("splits", self.splits),
            MetricValue::count("rows", self.rows),
            MetricValue::count("skipped", self.skipped),
            MetricValue::count("files_indexed", self.files_indexed),
            MetricValue::count("bundles_lost", self.bundles_lost),
            MetricValue::ms("source_ms", self.times.source_ms),
            MetricValue::ms("compute_ms", self.times.compute_ms),
            MetricValue::ms("put_ms", self.times.put_ms),
        ]
    }

    fn note(&mut self, call: &AnyCall, answer: &Result<AnyReply, CallError>) {
        match (call, answer) {
            (AnyCall::Claim(_), Ok(AnyReply::Claim(ClaimReply::Leased(lease)))) => {
                self.is_indexing = matches!(lease.work, LeaseWork::Index);
            }
            (AnyCall::Flush(flush), Ok(AnyReply::Flush(_))) => self.add(flush),
            (AnyCall::Flush(_) | AnyCall::Mark(_), Err(CallError::Refused(refusal)))
                if refusal.kind == RefusalKind::LeaseLost =>
            {
                self.bundles_lost += 1;
            }
            _ => {}
        }
    }

    fn add(&mut self, flush: &FlushCall) {
        let WorkerTimes { source_ms, .. } = flush.times;
        let of_index = WorkerTimes { source_ms, ..WorkerTimes::default() };
        self.times = self.times.plus(if self.is_indexing { of_index } else { flush.times });
        if self.is_indexing {
            self.files_indexed += flush.commits.len() as u64;
            return;
        }
        self.splits += flush.commits.len() as u64;
        for commit in &flush.commits {
            self.rows += u64::from(commit.outcome.rows);
            self.skipped += u64::from(commit.outcome.skipped_records);
        }
    }
}

/// The coordinator, with totals of this worker's calls.
pub(crate) struct CountingCoordinator {
    inner: Arc<dyn Coordinator>,
    totals: Mutex<InvocationTotals>,
    /// The time of the present invocation, under a budget.
    paid: Mutex<Option<Arc<PaidTime>>>,
}

impl CountingCoordinator {
    /// Counts the calls of `inner`.
    pub fn new(inner: Arc<dyn Coordinator>) -> Self {
        Self { inner, totals: Mutex::default(), paid: Mutex::default() }
    }

    /// The next calls are those of an invocation with that time.
    pub fn pay_for(&self, paid: Option<Arc<PaidTime>>) {
        *self.paid.lock() = paid;
    }

    /// Returns the totals and resets them.
    pub fn take(&self) -> InvocationTotals {
        std::mem::take(&mut *self.totals.lock())
    }
}

#[async_trait]
impl Coordinator for CountingCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let paid = self.paid.lock().clone();
        let answer = match paid {
            Some(paid) => {
                let call = paid.stamp(call);
                let answer = self.inner.exchange(&call).await;
                paid.learn(&call, &answer);
                answer
            }
            None => self.inner.exchange(call).await,
        };
        self.totals.lock().note(call, &answer);
        answer
    }

    fn speak(&self, version: u32) {
        self.inner.speak(version);
    }
}

#[cfg(test)]
mod times_tests {
    use super::*;
    use gristmill_model::Nonce;
    use gristmill_model::splits::{SplitCommit, SplitKind, SplitOutcome};
    use gristmill_model::wire::{BundlePartition, CallRefusal, FlushReply, LeaseRef};

    fn flush(commits: usize) -> AnyCall {
        let commit = SplitCommit {
            split_index: 0,
            outcome: SplitOutcome {
                kind: SplitKind::Object,
                object_bytes: 1,
                crc32c: 0,
                rows: 10,
                batches: 1,
                remainder_rows: 0,
                skipped_records: 1,
            },
        };
        FlushCall {
            lease: LeaseRef {
                job: "j".parse().unwrap(),
                partition: BundlePartition { registered_ms: 0, partition: 0 },
                epoch: 0,
                bundle: 0,
                attempt: 1,
                nonce: Nonce([0; 8]),
            },
            commits: vec![commit; commits],
            next: None,
            remaining_ms: 1,
            split_ms: 1,
            times: WorkerTimes { source_ms: 2, compute_ms: 3, put_ms: 4 },
            profile: None,
        }
        .into()
    }

    #[test]
    fn committed_bytes_count_once() {
        let mut totals = InvocationTotals::default();
        let call = flush(2);
        totals.note(&call, &Err(CallError::Unavailable("the answer was lost".to_owned())));
        totals.note(&call, &Ok(AnyReply::Flush(FlushReply::default())));
        totals.note(&flush(1), &Ok(AnyReply::Flush(FlushReply::default())));
        let expected = InvocationTotals {
            splits: 3,
            rows: 30,
            skipped: 3,
            times: WorkerTimes { source_ms: 4, compute_ms: 6, put_ms: 8 },
            ..InvocationTotals::default()
        };
        assert_eq!(totals, expected);
    }

    #[test]
    fn bundles_that_others_took_are_lost() {
        let mut totals = InvocationTotals::default();
        let kind = RefusalKind::LeaseLost;
        let refusal = CallRefusal { kind, message: "lost".to_owned() };
        totals.note(&flush(2), &Err(CallError::Refused(refusal)));
        assert_eq!(totals, InvocationTotals { bundles_lost: 1, ..InvocationTotals::default() });
    }

    /// Keeps the version that it is to speak.
    #[derive(Default)]
    struct Spoken(std::sync::atomic::AtomicU32);

    #[async_trait]
    impl Coordinator for Spoken {
        async fn exchange(&self, _: &AnyCall) -> Result<AnyReply, CallError> {
            Err(CallError::Unavailable(String::new()))
        }

        fn speak(&self, version: u32) {
            self.0.store(version, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn the_version_of_an_event_reaches_the_calls() {
        let inner = Arc::new(Spoken::default());
        CountingCoordinator::new(Arc::clone(&inner) as _).speak(2);
        assert_eq!(inner.0.load(std::sync::atomic::Ordering::Relaxed), 2);
    }
}
