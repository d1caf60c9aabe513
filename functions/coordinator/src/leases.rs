//! Leases: mark, flush, fail and give back, each one transition of one bundle.

use crate::{
    Coordinator, Handle,
    items::ItemName,
    store::{Unchanged, Versioned},
};
use gristmill_model::ErrorPolicy;
use gristmill_model::splits::{
    self, Bundle, BundleState, Outcome, Refusal as SplitRefusal, Term, retry_delay_ms,
};
use gristmill_model::wire::{Applied, Fail, Flush, LeaseRef, Mark, Refusal};

impl Handle<Mark> for Coordinator {
    /// Records which split the worker is about to start.
    async fn handle(&self, mark: &Mark) -> Result<Applied, Refusal> {
        let Mark { lease, split_index } = mark;
        let LeaseRef { attempt, nonce, .. } = *lease;
        let command = splits::Mark { attempt, nonce, split_index: *split_index };
        self.transition(lease, |before| splits::mark(before, &command)).await?;
        Ok(Applied {})
    }
}

impl Handle<Flush> for Coordinator {
    /// Commits splits and renews the lease.
    async fn handle(&self, flush: &Flush) -> Result<Applied, Refusal> {
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&Bundle>| {
            let open = before.map_or(0, |bundle| bundle.todo().len()) as u64;
            let predicted_ms = flush.split_ms.saturating_mul(open);
            let command = splits::Flush {
                attempt: flush.lease.attempt,
                nonce: flush.lease.nonce,
                commits: &flush.commits,
                next: flush.next,
                term: Term { now_ms, remaining_ms: flush.remaining_ms, predicted_ms },
                times: flush.times,
            };
            splits::flush(before, &command)
        };
        self.transition(&flush.lease, decide).await?;
        if let Some(profile) = &flush.profile {
            self.add_profile(&flush.lease.job, profile).await;
        }
        Ok(Applied {})
    }
}

impl Handle<Fail> for Coordinator {
    /// Returns a bundle for another attempt, or for the same one if it is blameless; a fatal failure ends the job.
    async fn handle(&self, fail: &Fail) -> Result<Applied, Refusal> {
        let Fail { lease, error, fatal, record, blameless } = fail;
        let LeaseRef { attempt, nonce, .. } = *lease;
        if *blameless {
            let command = splits::GiveBack { attempt, nonce };
            let after =
                self.transition(lease, |before| splits::give_back(before, &command)).await?;
            // A bundle on trial waits for the next look, which allows one trial at a time.
            if after.suspect.is_none() {
                self.note_freed(&lease.job, &[(lease.epoch, lease.bundle)]).await?;
            }
            return Ok(Applied {});
        }
        let retry_at_ms = self.clock.now_ms().saturating_add(retry_delay_ms(attempt));
        let seen = if *fatal { Some(self.job(&lease.job).await?) } else { None };
        // Bad records may be left out from the next lease on.
        let seen = seen
            .filter(|item| record.is_none() || item.spec.settings.on_error == ErrorPolicy::Fail);
        let command = splits::Fail { attempt, nonce, error, retry_at_ms, fatal: seen.is_some() };
        let after = self.transition(lease, |before| splits::fail(before, &command)).await?;
        // A late copy of the call may find that the job has gone on since.
        if let Some(seen) = seen.filter(|_| after.state == BundleState::Dead) {
            self.fail_job(&lease.job, &seen, error.clone()).await?;
        }
        Ok(Applied {})
    }
}

impl Coordinator {
    async fn transition(
        &self,
        lease: &LeaseRef,
        mut decide: impl FnMut(Option<&Bundle>) -> Result<Outcome<Bundle>, SplitRefusal>,
    ) -> Result<Bundle, Refusal> {
        let LeaseRef { job, home, epoch, bundle, .. } = lease;
        let (home, epoch, bundle) = (*home, *epoch, *bundle);
        let name = ItemName::Bundle(job, home, epoch, bundle);
        let at = (job.clone(), home, (epoch, bundle));
        // Use a remembered version only for writes, which the table checks; a refusal could be outdated.
        let writes = |known: &Versioned<Bundle>| {
            matches!(decide(known.item.as_ref()), Ok(Outcome::Write(_)))
        };
        let known = self.memory.take_lease(&at).filter(writes);
        let is_known = known.is_some();
        let read = match known {
            Some(known) => known,
            None => self.store.read(&name).await?,
        };
        let decide = |before: Option<&Bundle>| decide(before).map_err(Unchanged::Declined);
        let (bundle, version) = self.store.update_versioned(&name, read, decide).await?;
        if is_known && bundle.state == BundleState::Leased {
            self.memory.keep_lease(at, Versioned { version, item: Some(bundle.clone()) });
        }
        Ok(bundle)
    }
}
