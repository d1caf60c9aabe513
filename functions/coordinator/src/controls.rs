//! Controls: a split is found guilty of the death of its workers only beside one that they live through.

use crate::{
    Coordinator,
    items::JobItem,
    scan::{Scan, ScannedBundle},
};
use gristmill_protocol::Refusal;
use gristmill_splits::{Place, order::Ramp};
use gristmill_types::JobName;

/// Bundles behind the trainer that are searched, where nothing ahead of it is committed.
const SEARCHED_BACK: u32 = 8;

impl Coordinator {
    /// What may be claimed now, in the order to try, with the control for each that workers died of. Those
    /// without one come last: what is committed meanwhile is theirs.
    pub(crate) async fn trials<'a>(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &'a Scan,
        now_ms: u64,
    ) -> Result<Vec<(&'a ScannedBundle, Option<Place>)>, Refusal> {
        let candidates: Vec<_> = scan.candidates(now_ms).collect();
        let control = match candidates.iter().any(|bundle| bundle.has_suspect()) {
            true => self.control(job, item, scan).await?,
            false => None,
        };
        let mut trials: Vec<_> = candidates
            .into_iter()
            .map(|bundle| (bundle, control.filter(|_| bundle.has_suspect())))
            .collect();
        trials.sort_by_key(|(bundle, control)| bundle.has_suspect() && control.is_none());
        Ok(trials)
    }

    /// The committed split of the most rows: of those ahead of the trainer, or just behind it.
    async fn control(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &Scan,
    ) -> Result<Option<Place>, Refusal> {
        let longest = |bundles: &[ScannedBundle]| {
            let committed = bundles.iter().filter_map(ScannedBundle::longest_committed);
            committed.max_by_key(|(rows, _)| *rows).map(|(_, place)| place)
        };
        if let Some(place) = longest(&scan.bundles) {
            return Ok(Some(place));
        }
        let (Some(first), Some(plan)) = (scan.bundles.first(), item.plan) else { return Ok(None) };
        let ramp = Ramp::new(plan.n_splits, plan.r);
        let (epoch, end) = match (first.epoch, first.index) {
            (0, 0) => return Ok(None),
            (epoch, 0) => (epoch - 1, ramp.bundles()),
            (epoch, index) => (epoch, index),
        };
        let names: Vec<_> =
            (end.saturating_sub(SEARCHED_BACK)..end).map(|index| (epoch, index)).collect();
        Ok(longest(&self.read_bundles(job, &ramp, &names).await?))
    }
}
