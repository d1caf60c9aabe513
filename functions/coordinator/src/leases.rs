//! Leases: mark, flush, fail and give back, each one transition of one bundle.

use crate::{CallHandler, Splits, items::ItemName, store::VersionedItem};
use gristmill_model::ErrorPolicy;
use gristmill_model::splits::job::JobEvent;
use gristmill_model::splits::{
    self, Bundle, BundleState, LeaseTerm, TransitionOutcome, TransitionRefusal as SplitRefusal,
    retry_delay_ms,
};
use gristmill_model::wire::{
    AppliedReply, CallRefusal, FailCall, FlushCall, FlushReply, LeaseRef, MarkCall,
};

impl CallHandler<MarkCall> for Splits {
    async fn handle(&self, mark: &MarkCall) -> Result<AppliedReply, CallRefusal> {
        let MarkCall { lease, split_index } = mark;
        let LeaseRef { attempt, nonce, .. } = *lease;
        let command = splits::MarkTransition { attempt, nonce, split_index: *split_index };
        self.transition(lease, |before| splits::mark(before, &command)).await?;
        Ok(AppliedReply {})
    }
}

impl CallHandler<FlushCall> for Splits {
    async fn handle(&self, flush: &FlushCall) -> Result<FlushReply, CallRefusal> {
        let now_ms = self.records.clock.now_ms();
        let decide = |before: Option<&Bundle>| {
            let open = before.map_or(0, |bundle| bundle.todo().len()) as u64;
            let predicted_ms = flush.split_ms.saturating_mul(open);
            let command = splits::FlushTransition {
                attempt: flush.lease.attempt,
                nonce: flush.lease.nonce,
                commits: &flush.commits,
                next: flush.next,
                term: LeaseTerm { now_ms, remaining_ms: flush.remaining_ms, predicted_ms },
                times: flush.times,
            };
            splits::flush(before, &command)
        };
        let after = self.transition(&flush.lease, decide).await?;
        if let Some(profile) = &flush.profile {
            self.records.add_profile(&flush.lease.job, profile).await;
        }
        let job = &flush.lease.job;
        Ok(FlushReply { leave: self.records.is_surplus(job, &after.invocation).await })
    }
}

impl CallHandler<FailCall> for Splits {
    /// Returns a bundle for another attempt, or for the same one if it is blameless; a fatal failure ends the job.
    async fn handle(&self, fail: &FailCall) -> Result<AppliedReply, CallRefusal> {
        let FailCall { lease, error, fatal, record, blameless } = fail;
        let LeaseRef { attempt, nonce, .. } = *lease;
        if *blameless {
            let give_back = |before: Option<&Bundle>| splits::give_back(before, attempt, nonce);
            let after = self.transition(lease, give_back).await?;
            // A bundle on trial waits for the next look, which allows one trial at a time.
            if after.suspect.is_none() {
                self.note_freed(&lease.job, &[(lease.epoch, lease.bundle)]).await?;
            }
            return Ok(AppliedReply {});
        }
        let retry_at_ms = self.records.clock.now_ms().saturating_add(retry_delay_ms(attempt));
        let seen = if *fatal { Some(self.records.job(&lease.job).await?) } else { None };
        // Bad records may be left out from the next lease on.
        let seen = seen
            .filter(|item| record.is_none() || item.spec.settings.on_error == ErrorPolicy::Fail);
        let command =
            splits::FailTransition { attempt, nonce, error, retry_at_ms, fatal: seen.is_some() };
        let after = self.transition(lease, |before| splits::fail(before, &command)).await?;
        // A late copy of the call may find that the job has gone on since.
        if let Some(seen) = seen.filter(|_| after.state == BundleState::Dead) {
            let failed = JobEvent::Failed { error: error.clone(), at_record: record.is_some() };
            self.records.end_job(&lease.job, Some(seen.resumed), &failed).await?;
        }
        Ok(AppliedReply {})
    }
}

impl Splits {
    async fn transition(
        &self,
        lease: &LeaseRef,
        mut decide: impl FnMut(Option<&Bundle>) -> Result<TransitionOutcome<Bundle>, SplitRefusal>,
    ) -> Result<Bundle, CallRefusal> {
        let LeaseRef { job, partition, epoch, bundle, .. } = lease;
        let (partition, epoch, bundle) = (*partition, *epoch, *bundle);
        let name = ItemName::Bundle(job, partition, epoch, bundle);
        let at = (job.clone(), partition, (epoch, bundle));
        // Use a remembered version only for writes, which the table checks; a refusal could be outdated.
        let writes = |known: &VersionedItem<Bundle>| {
            matches!(decide(known.item.as_ref()), Ok(TransitionOutcome::Write(_)))
        };
        let known = self.records.memory.take_lease(&at).filter(writes);
        let is_known = known.is_some();
        let read = match known {
            Some(known) => known,
            None => self.records.store.read(&name).await?,
        };
        let (bundle, version) = self.records.store.update_versioned(&name, read, decide).await?;
        if is_known && bundle.state == BundleState::Leased {
            self.records.memory.keep_lease(at, (bundle.clone(), version).into());
        }
        Ok(bundle)
    }
}
