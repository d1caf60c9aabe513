//! Collection: deletes objects behind the trainer's durable cursor. The horizon is written first, in the
//! same item as the cursor; an interrupted sweep is repeated from where the last one ended.

use crate::{
    CallHandler, Consumers, Jobs,
    bundles::ScannedBundle,
    caching::ChunkRetention,
    files::DeletedObjects,
    items::{INDEX_EPOCH, ItemName, JobItem, SweepProgress},
    snapshot::JobSnapshot,
    store::{VersionedItem, invalid},
};
use gristmill_model::{
    JobName,
    splits::{
        self, CommittedSplit, JobProgress, SplitKind, SplitPlace,
        collect::{ChunkName, CollectionDecision, decide},
        job::JobState,
        ranges::BundleRanges,
    },
    stored::keys,
    wire::{CallRefusal, EpochPlan, ForgetCall, ForgetReply},
};

/// Most splits whose objects one poll deletes, so that it is answered in time.
const MOST_SWEPT: u64 = 4_000;

impl Consumers {
    /// Deletes objects that `progress` has durably passed, once they are worth two writes.
    pub(crate) async fn collect(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: JobProgress,
        swept: VersionedItem<SweepProgress>,
    ) -> Result<(), CallRefusal> {
        let Some(plan) = item.plan.filter(|plan| plan.n_splits > 0) else { return Ok(()) };
        let n = plan.n_splits;
        let passed =
            progress.durable_place.linear(n).saturating_sub(progress.collected_place.linear(n));
        let worth = u64::from(plan.window_splits / 2).clamp(8, MOST_SWEPT / 4);
        let is_due = passed >= worth || item.state == JobState::Done;
        let collected = if is_due {
            self.move_horizon(job).await?.collected_place
        } else {
            progress.collected_place
        };
        // Splits that are made again are deleted when they are made.
        let collected = collected.min(progress.horizon().slowest);
        let behind = swept.item.unwrap_or_default().place < collected;
        if is_due || behind { self.sweep(job, item, plan, swept, collected).await } else { Ok(()) }
    }

    /// Moves the horizon to the durable cursor; a run that begins before it computes again what it needs.
    pub(crate) async fn move_horizon(&self, job: &JobName) -> Result<JobProgress, CallRefusal> {
        Ok(self.records.store.update(&ItemName::Progress(job), splits::collected).await?)
    }

    /// Deletes remaining objects of splits before `horizon`, a limited number; the next poll goes on.
    async fn sweep(
        &self,
        job: &JobName,
        item: &JobItem,
        plan: EpochPlan,
        read: VersionedItem<SweepProgress>,
        horizon: SplitPlace,
    ) -> Result<(), CallRefusal> {
        let caching = item.caching.as_ref();
        let passed =
            |epoch| caching.map_or(ChunkRetention::Deleted, |caching| caching.passed(epoch));
        let n = plan.n_splits;
        let swept = read.item.unwrap_or_default().place;
        // Stop at an epoch whose chunks are undecided; a later sweep goes on from there.
        let undecided =
            (swept.epoch..=horizon.epoch).find(|&epoch| passed(epoch) == ChunkRetention::Undecided);
        let decided =
            undecided.map_or(horizon, |epoch| horizon.min(SplitPlace { epoch, position: 0 }));
        let from = swept.linear(n);
        let to = decided.linear(n).min(from.saturating_add(MOST_SWEPT));
        let ranges = BundleRanges::from_positions(item.division(), from..to, |epoch| {
            passed(epoch) == ChunkRetention::Deleted
        });
        let mut doomed = Vec::new();
        for bundle in self.records.read_bundles(job, item, &ranges).await? {
            let cache_prefix = caching.and_then(|caching| caching.view.chunks_prefix(bundle.epoch));
            doomed.extend(self.deletable(job, cache_prefix, &bundle, horizon).await?);
        }
        self.objects.delete_objects(&doomed).await?;
        let place = SplitPlace::from_linear(to, n);
        let swept = |swept: &mut SweepProgress| swept.place = swept.place.max(place);
        self.records.store.change_or_create_from(&ItemName::Swept(job), read, swept).await?;
        Ok(())
    }

    /// Keys of a bundle's objects that may be deleted. Lists the objects only if an attempt failed: only
    /// then can there be objects that no entry names.
    async fn deletable(
        &self,
        job: &JobName,
        cache_prefix: Option<&str>,
        bundle: &ScannedBundle,
        horizon: SplitPlace,
    ) -> Result<Vec<String>, CallRefusal> {
        let Some(item) = &bundle.item else { return Ok(Vec::new()) };
        let own = keys::bundle_prefix(&self.records.settings.ns, job, bundle.epoch, bundle.index);
        let prefix = cache_prefix
            .map_or(own, |cache_prefix| keys::cached_bundle(cache_prefix, bundle.index));
        let decide = |position, attempt, nonce| {
            let name = ChunkName { epoch: bundle.epoch, position, attempt, nonce };
            decide(&name, Some(item), bundle.positions.start, horizon, false)
        };
        let mut doomed = Vec::new();
        for (position, entry) in bundle.positions.clone().zip(&item.entries) {
            if let Some(CommittedSplit { outcome, attempt, nonce }) = *entry
                && outcome.kind == SplitKind::Object
                && decide(position, attempt, nonce) != CollectionDecision::Keep
            {
                doomed.push(keys::chunk(&prefix, position, attempt, nonce));
            }
        }
        if item.attempt > 1 && item.state == splits::BundleState::Done {
            for info in self.objects.list_objects(&prefix).await? {
                if let Some((position, attempt, nonce)) = keys::parse_chunk(&prefix, &info.key)
                    && decide(position, attempt, nonce) == CollectionDecision::DeleteOrphan
                {
                    doomed.push(info.key);
                }
            }
        }
        Ok(doomed)
    }
}

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
