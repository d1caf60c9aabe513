//! The coordinator: checks a request's version and namespace, and dispatches its call to a handler.

use crate::{
    CoordinatorMemory, CoordinatorSettings,
    files::BucketObjects,
    kicks::ScalerKicks,
    records::JobRecords,
    store::{NamespaceTable, invalid},
};
use gristmill_model::wire::{
    AnyCall, AnyReply, CallEnvelope, CallRefusal, CoordinatorCall, DescribeCall, JobView,
    SpokenVersions, StopCall,
};
use gristmill_ports::{Clock, FunctionMetrics, Invoker, MetricValue, ObjectStore, Table};
use std::sync::Arc;

/// The handler of one kind of call.
pub(crate) trait CallHandler<C: CoordinatorCall> {
    fn handle(&self, call: &C) -> impl Future<Output = Result<C::Reply, CallRefusal>> + Send;
}

/// The coordinator: its three rooms, and what checks and counts calls.
#[derive(Clone)]
pub struct CoordinatorFunction {
    pub(crate) jobs: Jobs,
    pub(crate) splits: Splits,
    pub(crate) consumers: Consumers,
    metrics: Option<FunctionMetrics>,
}

/// Jobs from their registration to the deletion of what they leave: what each is to deliver, its index and plan, what it
/// caches, its epochs.
#[derive(Clone)]
pub(crate) struct Jobs {
    pub records: JobRecords,
    pub objects: BucketObjects,
    pub kicks: ScalerKicks,
    /// The version of the call that is answered.
    pub version: u32,
}

/// The splits of jobs: claims and leases of workers, commits, failures, and workers that are gone.
#[derive(Clone)]
pub(crate) struct Splits {
    pub records: JobRecords,
    pub jobs: Jobs,
}

/// Trainers: their polls and acknowledgements, the readers of a run, the window ahead of them, and what they have passed.
#[derive(Clone)]
pub(crate) struct Consumers {
    pub records: JobRecords,
    pub objects: BucketObjects,
    pub kicks: ScalerKicks,
    pub jobs: Jobs,
    pub splits: Splits,
}

impl CoordinatorFunction {
    /// A coordinator over these ports; it speaks the newest version of `settings`.
    pub fn new(
        table: Arc<dyn Table>,
        objects: Arc<dyn ObjectStore>,
        invoker: Arc<dyn Invoker>,
        clock: Arc<dyn Clock>,
        settings: CoordinatorSettings,
    ) -> Self {
        let store = NamespaceTable::new(table, Arc::clone(&clock), settings.ns.clone());
        let (version, settings) = (settings.spoken.newest, Arc::new(settings));
        let objects = BucketObjects {
            store: objects,
            clock: Arc::clone(&clock),
            settings: Arc::clone(&settings),
        };
        let kicks = ScalerKicks::new(invoker, Arc::clone(&settings));
        let memory = CoordinatorMemory::default();
        let records = JobRecords { store, clock, settings, memory };
        Self::over(Jobs { records, objects, kicks, version })
    }

    fn over(jobs: Jobs) -> Self {
        let Jobs { records, objects, kicks, .. } = jobs.clone();
        let splits = Splits { records: records.clone(), jobs: jobs.clone() };
        let consumers =
            Consumers { records, objects, kicks, jobs: jobs.clone(), splits: splits.clone() };
        Self { jobs, splits, consumers, metrics: None }
    }

    /// Shares `memory` with other coordinators of the same process.
    #[must_use]
    pub fn sharing(self, memory: &CoordinatorMemory) -> Self {
        let records = JobRecords { memory: memory.clone(), ..self.jobs.records };
        Self { metrics: self.metrics, ..Self::over(Jobs { records, ..self.jobs }) }
    }

    /// Prints metrics of each call.
    pub fn metered(self, metrics: FunctionMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Answers one request; every error becomes a refusal.
    pub async fn answer(&self, request: &CallEnvelope) -> AnyReply {
        let started_ms = self.jobs.records.clock.now_ms();
        let reply = self.try_answer(request).await.unwrap_or_else(AnyReply::Refused);
        if let Some(metrics) = &self.metrics {
            let JobRecords { clock, store, .. } = &self.jobs.records;
            let ended_ms = clock.now_ms();
            let measured = [
                MetricValue::count(request.call.name(), 1),
                MetricValue::count("refusals", u64::from(matches!(reply, AnyReply::Refused(_)))),
                // The platform sends an environment one call at a time, so they are those of this call.
                MetricValue::count("conflicts", store.take_conflicts()),
                MetricValue::ms("latency_ms", ended_ms.saturating_sub(started_ms)),
            ];
            let job = request.call.job().map_or("", |job| job.as_str());
            metrics.print(ended_ms, &measured, &[("job", job)]);
        }
        reply
    }

    async fn try_answer(&self, request: &CallEnvelope) -> Result<AnyReply, CallRefusal> {
        let CoordinatorSettings { spoken, ns, .. } = &*self.jobs.records.settings;
        if !spoken.includes(request.v) {
            return Err(spoken.refuse(request.v));
        }
        if request.ns != *ns {
            return Err(invalid(format!(
                "the call is for namespace {}, this coordinator serves {ns}",
                request.ns
            )));
        }
        let jobs = Jobs { version: request.v, ..self.jobs.clone() };
        Self { jobs, ..self.clone() }.dispatch(&request.call).await
    }

    /// Answers a call that this process makes itself.
    pub async fn answer_own(&self, call: impl Into<AnyCall>) -> AnyReply {
        let CoordinatorSettings { spoken, ns, .. } = &*self.jobs.records.settings;
        self.answer(&CallEnvelope { v: spoken.newest, ns: ns.clone(), call: call.into() }).await
    }

    /// Answers a call of the newest version, without counting it.
    pub async fn call<C: CoordinatorCall>(&self, call: C) -> Result<C::Reply, CallRefusal> {
        let reply = self.dispatch(&call.into()).await?;
        C::reply_from(reply)
            .map_err(|other| invalid(format!("{} is answered by {other:?}", C::NAME)))
    }

    /// The versions of the protocol that it speaks.
    pub fn spoken(&self) -> SpokenVersions {
        self.jobs.records.settings.spoken
    }
}

macro_rules! dispatch {
    ($($room:ident: $($name:ident)*;)*) => {
        impl CoordinatorFunction {
            async fn dispatch(&self, call: &AnyCall) -> Result<AnyReply, CallRefusal> {
                match call {
                    $($(AnyCall::$name(call) => self.$room.handle(call).await.map(AnyReply::$name),)*)*
                }
            }
        }
    };
}

dispatch! {
    jobs: Register Stop Forget CacheList CacheExplain CacheRemove;
    splits: Describe Claim Mark Flush Fail Release Leave;
    consumers: Poll Status;
}

impl CallHandler<DescribeCall> for Splits {
    async fn handle(
        &self,
        DescribeCall { job, admits }: &DescribeCall,
    ) -> Result<JobView, CallRefusal> {
        if let Some(worker) = admits {
            self.admit(job, *worker).await?;
        }
        Ok(self.records.job(job).await?.view(job))
    }
}

impl CallHandler<StopCall> for Jobs {
    async fn handle(&self, StopCall { job }: &StopCall) -> Result<JobView, CallRefusal> {
        Ok(self.records.stop_job(job).await?.view(job))
    }
}
