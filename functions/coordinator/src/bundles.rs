//! Reads bundles of a part of the run, by key or with one query per partition.

use crate::{
    JobRecords,
    items::{
        INDEX_EPOCH, ItemName, JobItem, SweepProgress, bundle_partition, bundle_sk, parse_bundle_sk,
    },
    store::{VersionedItem, decode},
};
use futures::future::try_join_all;
use gristmill_model::{
    BundleIndex, Epoch, JobName, Nonce, Position,
    splits::{
        Bundle, JobProgress, SplitKind, SplitPlace, TRIAL_ATTEMPTS,
        order::BundleDivision,
        ranges::{BundleRanges, EpochBundleRange},
    },
    wire::CallRefusal,
};
use gristmill_ports::TableItem;
use std::ops::Range;

/// Up to this many bundles, one batch read is cheaper than one query per partition, if there are fewer
/// partitions than that: a bundle costs one read unit, a query at least one.
const FEW: usize = 24;

#[derive(Debug, Clone)]
pub(crate) struct ScannedBundle {
    pub epoch: Epoch,
    pub index: BundleIndex,
    pub positions: Range<Position>,
    /// The first position, counted through all epochs.
    pub linear: u64,
    pub version: u64,
    pub item: Option<Bundle>,
}

impl ScannedBundle {
    /// An unclaimed bundle. `base` is the epoch's first position, counted through all epochs.
    pub fn unseen(division: &BundleDivision, epoch: Epoch, base: u64, index: BundleIndex) -> Self {
        let positions = division.positions(index);
        let linear = base + u64::from(positions.start);
        Self { epoch, index, positions, linear, version: 0, item: None }
    }

    /// An unclaimed bundle of one of `ranges`.
    pub fn in_range(ranges: &BundleRanges, range: &EpochBundleRange, index: BundleIndex) -> Self {
        Self::unseen(&ranges.division, range.epoch, range.base, index)
    }

    /// The bundles of ranges, in their order.
    pub fn all_unseen(ranges: &BundleRanges) -> Vec<Self> {
        let of = |range: &'_ EpochBundleRange| {
            let range = range.clone();
            range.bundles.clone().map(move |index| Self::in_range(ranges, &range, index))
        };
        ranges.by_epoch.iter().flat_map(of).collect()
    }

    /// Sets the bundle to the item that the table holds.
    pub fn read(
        &mut self,
        name: &ItemName<'_>,
        stored: Option<&TableItem>,
    ) -> Result<(), CallRefusal> {
        let read = decode::<Bundle>(name, stored)?;
        (self.version, self.item) = (read.version, read.item);
        Ok(())
    }

    /// The bundle's positions, counted through all epochs.
    pub fn span(&self) -> Range<u64> {
        self.linear..self.linear + u64::from(self.positions.end - self.positions.start)
    }

    /// The bundle if `nonce` has leased it, expired or not.
    pub fn lease_of(&self, nonce: Nonce) -> Option<&Bundle> {
        self.item.as_ref().filter(|item| item.is_held_by(nonce))
    }

    /// Whether a claim at `now_ms` can succeed.
    pub fn is_claimable(&self, now_ms: u64) -> bool {
        match &self.item {
            None => true,
            Some(bundle) => bundle.claimable_at_ms().is_some_and(|at_ms| at_ms <= now_ms),
        }
    }

    /// Whether one of its splits keeps losing its workers and must be proved poisoned or cleared.
    pub fn is_on_trial(&self) -> bool {
        let Some(bundle) = self.item.as_ref().filter(|b| b.attempt >= TRIAL_ATTEMPTS) else {
            return false;
        };
        // A split that was proved poisoned has an entry.
        bundle.suspect.is_some_and(|suspect| bundle.entry(suspect.split_index).is_none())
    }

    /// The committed split with the most rows, if any, with its number of rows.
    pub fn longest_committed(&self) -> Option<(u32, SplitPlace)> {
        let entries = self.positions.clone().zip(&self.item.as_ref()?.entries);
        let committed = entries.filter_map(|(position, entry)| {
            let entry = entry.filter(|entry| entry.outcome.kind != SplitKind::Poison)?;
            Some((entry.outcome.rows, SplitPlace { epoch: self.epoch, position }))
        });
        committed.max_by_key(|(rows, _)| *rows)
    }

    /// Whether workers died on one of its splits that is not committed.
    pub fn has_suspect(&self) -> bool {
        let open = |bundle: &Bundle| {
            let at = bundle.suspect.map(|suspect| suspect.split_index).or(bundle.current_split);
            at.is_some_and(|at| bundle.entry(at).is_none())
        };
        self.item.as_ref().is_some_and(open)
    }

    /// Number of positions that are not committed.
    pub fn open(&self) -> u32 {
        match &self.item {
            None => self.positions.end - self.positions.start,
            Some(bundle) => bundle.todo().len() as u32,
        }
    }

    /// The item with its version, for a conditional write.
    pub fn versioned(&self) -> VersionedItem<Bundle> {
        VersionedItem { version: self.version, item: self.item.clone() }
    }
}

impl JobRecords {
    /// The bundles of `ranges`, in their order.
    pub(crate) async fn read_bundles(
        &self,
        job: &JobName,
        item: &JobItem,
        ranges: &BundleRanges,
    ) -> Result<Vec<ScannedBundle>, CallRefusal> {
        let mut bundles = ScannedBundle::all_unseen(ranges);
        if bundles.len() <= FEW.max(item.partitions() as usize) {
            self.read_by_key(job, item, &mut bundles).await?;
            return Ok(bundles);
        }
        let mut of_range = bundles.as_mut_slice();
        for range in &ranges.by_epoch {
            let (bundles, rest) = of_range.split_at_mut(range.bundles.len());
            self.read_by_partition(job, item, range, bundles).await?;
            of_range = rest;
        }
        Ok(bundles)
    }

    pub(crate) async fn read_by_key(
        &self,
        job: &JobName,
        item: &JobItem,
        bundles: &mut [ScannedBundle],
    ) -> Result<(), CallRefusal> {
        let names: Vec<_> = bundles.iter().map(|b| item.bundle(job, b.epoch, b.index)).collect();
        let items = self.store.read_all_raw(&names).await?;
        for ((bundle, name), item) in bundles.iter_mut().zip(&names).zip(items) {
            bundle.read(name, item.as_ref())?;
        }
        Ok(())
    }

    /// Reads the bundles of one range with one query per partition, concurrently.
    async fn read_by_partition(
        &self,
        job: &JobName,
        item: &JobItem,
        range: &EpochBundleRange,
        bundles: &mut [ScannedBundle],
    ) -> Result<(), CallRefusal> {
        let (first, last) = (range.bundles.start, range.bundles.end.saturating_sub(1));
        let (from, to) = (&bundle_sk(first), &bundle_sk(last));
        let queries = (0..item.partitions()).map(|partition| async move {
            let partition = item.partition_at(partition);
            let pk = bundle_partition(&self.settings.ns, job, partition, range.epoch);
            self.store.range(&pk, from, to).await
        });
        for (sk, stored) in try_join_all(queries).await?.into_iter().flatten() {
            let bundle = parse_bundle_sk(&sk).and_then(|index| index.checked_sub(first));
            let Some(bundle) = bundle.and_then(|at| bundles.get_mut(at as usize)) else { continue };
            bundle.read(&item.bundle(job, bundle.epoch, bundle.index), Some(&stored))?;
        }
        Ok(())
    }
}

/// Most epochs that one round prunes.
const EPOCHS_A_ROUND: Epoch = 64;

impl JobRecords {
    /// Deletes the bundles of the epochs before the last two that a checkpoint may name; of an ended job, all. Returns
    /// their number.
    pub(crate) async fn prune(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<u64, CallRefusal> {
        if !self.settings.prunes_bundles {
            return Ok(0);
        }
        let name = ItemName::Swept(job);
        let read = self.store.read::<SweepProgress>(&name).await?;
        let swept = read.item.unwrap_or_default();
        // The sweep of objects reads the bundles, and stops where a cache still needs them.
        let returnable = progress.collected_place.epoch.min(swept.place.epoch).saturating_sub(1);
        let until = if item.state.is_ended() { item.spec.epochs } else { returnable };
        let until = until.min(swept.pruned.saturating_add(EPOCHS_A_ROUND));
        let mut deleted = 0;
        let index = item.state.is_ended().then_some(INDEX_EPOCH);
        for epoch in (swept.pruned..until).chain(index) {
            deleted += self.delete_bundles(job, item, epoch).await?;
        }
        let pruned = |swept: &mut SweepProgress| swept.pruned = swept.pruned.max(until);
        self.store.change_or_create_from(&name, read, pruned).await?;
        Ok(deleted)
    }

    /// Deletes the bundles of an epoch, and returns their number.
    pub(crate) async fn delete_bundles(
        &self,
        job: &JobName,
        item: &JobItem,
        epoch: Epoch,
    ) -> Result<u64, CallRefusal> {
        let mut deleted = 0;
        for partition in 0..item.partitions() {
            let partition = item.partition_at(partition);
            let pk = bundle_partition(&self.settings.ns, job, partition, epoch);
            deleted += self.store.delete_partition(&pk, |_| true).await?;
        }
        Ok(deleted)
    }
}
