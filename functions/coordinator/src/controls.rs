//! Controls: committed splits that a worker runs again before a suspect split. Only the death of a worker
//! that survived its control counts against the suspect.

use crate::{Splits, bundles::ScannedBundle, items::JobItem};
use gristmill_model::JobName;
use gristmill_model::splits::{JobProgress, SplitPlace};
use gristmill_model::wire::CallRefusal;

/// Number of splits behind the trainer to search if none ahead of it is committed.
const SEARCHED_BACK: u64 = 64;

impl Splits {
    /// The committed split with the most rows ahead of the trainer, or else just behind it.
    pub(crate) async fn control(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<Option<SplitPlace>, CallRefusal> {
        let longest = |bundles: &[ScannedBundle]| {
            let committed = bundles.iter().filter_map(ScannedBundle::longest_committed);
            committed.max_by_key(|(rows, _)| *rows).map(|(_, place)| place)
        };
        let scan = self.records.scan(job, item, progress, progress.horizon().slowest).await?;
        if let Some(place) = longest(&scan.bundles) {
            return Ok(Some(place));
        }
        let delivered = scan.ahead.delivered;
        let behind = delivered.saturating_sub(SEARCHED_BACK)..delivered;
        Ok(longest(&self.records.read_bundles(job, item, &item.course(behind)).await?))
    }
}
