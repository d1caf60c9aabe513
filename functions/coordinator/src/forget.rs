//! Forgets an ended job: deletes its items and objects, so that the name is free again.

use crate::{
    CallHandler, Jobs,
    files::DeletedObjects,
    items::{INDEX_EPOCH, ItemName, JobItem},
    snapshot::JobSnapshot,
    store::invalid,
};
use gristmill_model::JobName;
use gristmill_model::stored::keys;
use gristmill_model::wire::{CallRefusal, ForgetCall, ForgetReply};

/// Most items deleted in one call; the caller repeats the call for the rest.
const ITEMS_AT_ONCE: u64 = 2_000;

impl CallHandler<ForgetCall> for Jobs {
    /// Deletes a job: its objects, its bundles, its other items, and the job's own item last, so that an
    /// interrupted call can be repeated.
    async fn handle(&self, ForgetCall { job }: &ForgetCall) -> Result<ForgetReply, CallRefusal> {
        let JobSnapshot { item, progress, .. } = self.records.snapshot(job).await?;
        if !item.state.is_ended() {
            return Err(invalid(format!(
                "job {job} is running: stop it first (`gristmill stop {job}`), or wait for its end"
            )));
        }
        let DeletedObjects { objects, all } = self.forget_objects(job, &item).await?;
        let mut items = 0;
        if !all {
            return Ok(ForgetReply { items, objects, all });
        }
        // Bundles exist up to the trainer's epoch, and in the next one if the window reaches it.
        let reached = progress.horizon().fastest.epoch.saturating_add(2).min(item.spec.epochs);
        for epoch in (0..reached).chain([INDEX_EPOCH]) {
            items += self.records.delete_bundles(job, &item, epoch).await?;
            if items >= ITEMS_AT_ONCE {
                return Ok(ForgetReply { items, objects, all: false });
            }
        }
        let (store, ns) = (&self.records.store, &self.records.settings.ns);
        for pk in keys::left_partitions(ns, job) {
            items += store.delete_partition(&pk, |_| true).await?;
        }
        let own = keys::job_partition(ns, job);
        let (listed, last) = (ItemName::Listed(job).key(ns), ItemName::Job(job).key(ns));
        items += store.delete_partition(&own, |key| *key != last).await?;
        items += store.delete_partition(&listed.pk, |key| *key == listed).await?;
        items += store.delete_partition(&own, |_| true).await?;
        Ok(ForgetReply { items, objects, all: true })
    }
}

impl Jobs {
    async fn forget_objects(
        &self,
        job: &JobName,
        item: &JobItem,
    ) -> Result<DeletedObjects, CallRefusal> {
        let (ns, until_ms) = (&self.records.settings.ns, self.objects.in_time_of_a_call());
        let mut deleted = self.tidy_cache_prefixes(item.caching.as_ref(), until_ms).await?;
        for prefix in [keys::job_prefix(ns, job), keys::quarantine_prefix(ns, job)] {
            if deleted.all {
                deleted =
                    deleted.and(self.objects.delete_below(&prefix, until_ms, |_| true).await?);
            }
        }
        Ok(deleted)
    }
}
