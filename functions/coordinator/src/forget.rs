//! Forgets an ended job: deletes its items and objects, so that the name is free again.

use crate::{
    CallHandler, Jobs,
    files::DeletedObjects,
    items::{INDEX_EPOCH, ItemName, JobItem, bundle_partition},
    snapshot::JobSnapshot,
    store::invalid,
};
use futures::future::try_join_all;
use gristmill_model::stored::keys;
use gristmill_model::wire::{CallRefusal, ForgetCall, ForgetReply};
use gristmill_model::{Epoch, JobName};
use gristmill_ports::ItemKey;

/// Most items deleted in one call; the caller repeats the call for the rest.
const ITEMS_AT_ONCE: u64 = 2_000;
/// Number of concurrent writes.
const WRITES: usize = 16;

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
            items += self.forget_bundles(job, &item, epoch).await?;
            if items >= ITEMS_AT_ONCE {
                return Ok(ForgetReply { items, objects, all: false });
            }
        }
        for pk in keys::left_partitions(&self.records.settings.ns, job) {
            items += self.forget_partition(&pk, |_| true).await?;
        }
        let own = keys::job_partition(&self.records.settings.ns, job);
        let listed = ItemName::Listed(job).key(&self.records.settings.ns);
        let last = ItemName::Job(job).key(&self.records.settings.ns);
        items += self.forget_partition(&own, |key| *key != last).await?;
        items += self.forget_partition(&listed.pk, |key| *key == listed).await?;
        items += self.forget_partition(&own, |_| true).await?;
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

    async fn forget_bundles(
        &self,
        job: &JobName,
        item: &JobItem,
        epoch: Epoch,
    ) -> Result<u64, CallRefusal> {
        let mut items = 0;
        for partition in 0..item.partitions() {
            let pk = bundle_partition(
                &self.records.settings.ns,
                job,
                item.partition_at(partition),
                epoch,
            );
            items += self.forget_partition(&pk, |_| true).await?;
        }
        Ok(items)
    }

    async fn forget_partition(
        &self,
        pk: &str,
        doomed: impl Fn(&ItemKey) -> bool,
    ) -> Result<u64, CallRefusal> {
        let found = self.records.store.query(pk).await?.into_iter();
        let found = found.map(|(sk, item)| (ItemKey { pk: pk.to_owned(), sk }, item));
        let found: Vec<_> = found.filter(|(key, _)| doomed(key)).collect();
        let mut items = 0;
        for some in found.chunks(WRITES) {
            let deleted = some.iter().map(|(key, item)| self.records.store.delete(key, item));
            let deleted = try_join_all(deleted).await?;
            items += deleted.into_iter().filter(|deleted| *deleted).count() as u64;
        }
        Ok(items)
    }
}
