//! The job's records in the table, which every call starts from: the job itself, what its workers measured, its bundles
//! ([`bundles`](crate::bundles)), its window ([`scan`](crate::scan)) and snapshots ([`snapshot`](crate::snapshot)).

use crate::{
    CoordinatorMemory, CoordinatorSettings,
    items::{ItemName, JobItem},
    store::NamespaceTable,
};
use gristmill_model::{
    JobName,
    splits::{
        TransitionOutcome,
        job::{JobEvent, apply},
    },
    wire::{CallRefusal, RefusalKind, WorkProfile},
};
use gristmill_ports::Clock;
use std::sync::Arc;

/// Reads and changes of jobs in the table.
#[derive(Clone)]
pub(crate) struct JobRecords {
    pub store: NamespaceTable,
    pub clock: Arc<dyn Clock>,
    pub settings: Arc<CoordinatorSettings>,
    pub memory: CoordinatorMemory,
}

impl JobRecords {
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
        self.end_job(job, Some(seen.resumed), &JobEvent::Failed { error, at_record: false }).await
    }

    /// Stops the job; one that has ended stays as it is.
    pub(crate) async fn stop_job(&self, job: &JobName) -> Result<JobItem, CallRefusal> {
        self.end_job(job, None, &JobEvent::Stopped).await
    }

    /// Ends the job, if it has not gone on as often as `resumed` says or more since.
    pub(crate) async fn end_job(
        &self,
        job: &JobName,
        resumed: Option<u32>,
        event: &JobEvent,
    ) -> Result<JobItem, CallRefusal> {
        let end = |item: &mut JobItem| {
            if resumed.is_none_or(|resumed| resumed == item.resumed)
                && let Ok(ended) = apply(&item.state, event)
            {
                item.state = ended.into_item();
            }
        };
        self.change_job(job, end).await
    }

    /// Lets `change` change the job. One that stays as it is is not written.
    pub(crate) async fn change_job(
        &self,
        job: &JobName,
        change: impl Fn(&mut JobItem),
    ) -> Result<JobItem, CallRefusal> {
        let decide = |before: Option<&JobItem>| {
            let mut after = before.cloned().ok_or_else(|| no_job(job))?;
            change(&mut after);
            Ok::<_, CallRefusal>(TransitionOutcome::new(before, after))
        };
        Ok(self.store.update(&ItemName::Job(job), decide).await?)
    }

    pub(crate) async fn profile(&self, job: &JobName) -> Result<WorkProfile, CallRefusal> {
        Ok(self.store.read(&ItemName::Profile(job)).await?.item.unwrap_or_default())
    }

    /// Adds the measurements of a flush. Best effort: a partial profile suffices.
    pub(crate) async fn add_profile(&self, job: &JobName, measured: &WorkProfile) {
        let add = |profile: &mut WorkProfile| profile.add(measured);
        if let Err(error) = self.store.change_or_create(&ItemName::Profile(job), add).await {
            tracing::warn!(%job, %error, "measurements of a flush are not added to the profile");
        }
    }
}

pub(crate) fn no_job(job: &JobName) -> CallRefusal {
    let message = format!("there is no job {job} here");
    CallRefusal { kind: RefusalKind::NotFound, message }
}
