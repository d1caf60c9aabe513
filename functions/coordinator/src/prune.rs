//! Pruning: deletes the bundles of epochs to which no trainer can return, for a table whose space counts. On AWS they expire
//! by themselves, because a deletion costs as much as a write.

use crate::{
    JobRecords,
    items::{INDEX_EPOCH, ItemName, JobItem, SweepProgress, bundle_partition},
};
use gristmill_model::splits::JobProgress;
use gristmill_model::wire::CallRefusal;
use gristmill_model::{Epoch, JobName};
use gristmill_ports::ItemKey;

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
            for partition in 0..item.partitions() {
                let pk = bundle_partition(&self.settings.ns, job, item.homes(partition), epoch);
                for (sk, stored) in self.store.query(&pk).await? {
                    let key = ItemKey { pk: pk.clone(), sk };
                    deleted += u64::from(self.store.delete(&key, &stored).await?);
                }
            }
        }
        let pruned = |swept: &mut SweepProgress| swept.pruned = swept.pruned.max(until);
        self.store.change_from(&name, read, pruned).await?;
        Ok(deleted)
    }
}
