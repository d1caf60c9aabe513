//! Collection: deletes objects behind the trainer's durable cursor. The horizon is written first, in the
//! same item as the cursor; an interrupted sweep is repeated from where the last one ended.

use crate::{
    Consumers,
    bundles::ScannedBundle,
    caching::ChunkRetention,
    items::{ItemName, JobItem, SweepProgress},
    store::VersionedItem,
};
use gristmill_model::JobName;
use gristmill_model::splits::{
    self, CommittedSplit, JobProgress, SplitKind, SplitPlace,
    collect::{ChunkName, CollectionDecision, decide},
    job::JobState,
    ranges::BundleRanges,
};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CallRefusal, EpochPlan};

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
        self.records.store.change_from(&ItemName::Swept(job), read, swept).await?;
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
