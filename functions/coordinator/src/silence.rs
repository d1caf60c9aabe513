//! Workers whose death was not reported, inferred from the progress of others.
//!
//! A worker that is silent for longer than others need (`splits::silence`) has most likely died, and its
//! lease ends early. It may still be alive: so the bundle's next owner gets twice the time, the silent
//! worker may commit until another worker claims, and the silence does not count against the split.

use crate::{
    Splits,
    bundles::ScannedBundle,
    items::{ItemName, JobItem},
    scan::WindowScan,
    store::{ItemUpdateError, accepted},
};
use gristmill_model::JobName;
use gristmill_model::splits::{self, Bundle, BundleState, silence::patience_ms};
use gristmill_model::wire::CallRefusal;

/// A bundle with commits, as evidence of how long splits take.
struct Witness<'a> {
    bundle: &'a Bundle,
    split_ms: u64,
}

fn witness(bundle: &ScannedBundle) -> Option<Witness<'_>> {
    let bundle = bundle.item.as_ref()?;
    let committed = bundle.entries.iter().flatten().count() as u64;
    (committed > 0).then(|| Witness { bundle, split_ms: bundle.times.total_ms() / committed })
}

/// Indices of bundles in `scan` whose workers have most likely died. Looks at the window have been regular
/// since `steady_since_ms`; before that, workers may have been silent because their calls were not answered.
pub(crate) fn overdue(scan: &WindowScan, steady_since_ms: u64, now_ms: u64) -> Vec<usize> {
    let witnesses: Vec<_> = scan.bundles.iter().filter_map(witness).collect();
    let longest_ms = witnesses.iter().map(|witness| witness.split_ms).max().unwrap_or(0);
    let steady_ms = now_ms.saturating_sub(steady_since_ms);
    let is_overdue = |bundle: &Bundle| {
        let Some(patience_ms) = patience_ms(longest_ms, bundle.entries.len(), bundle.attempt)
        else {
            return false;
        };
        let last_contact_ms = bundle.last_contact_ms();
        let others_went_on = || {
            let by_other = |w: &Witness<'_>| w.bundle.invocation != bundle.invocation;
            witnesses.iter().any(|w| by_other(w) && w.bundle.since_ms > last_contact_ms)
        };
        bundle.state == BundleState::Leased
            && bundle.until_ms > now_ms
            && now_ms.saturating_sub(last_contact_ms) > patience_ms
            && steady_ms > patience_ms
            && others_went_on()
    };
    let bundles = scan.bundles.iter().enumerate();
    bundles.filter(|(_, b)| b.item.as_ref().is_some_and(is_overdue)).map(|(i, _)| i).collect()
}

impl Splits {
    /// Ends the leases of workers that have most likely died.
    pub(crate) async fn end_overdue(
        &self,
        (job, item): (&JobName, &JobItem),
        scan: &mut WindowScan,
        steady_since_ms: u64,
    ) -> Result<(), CallRefusal> {
        let now_ms = self.records.clock.now_ms();
        for i in overdue(scan, steady_since_ms, now_ms) {
            let bundle = &mut scan.bundles[i];
            let Some(seen) = &bundle.item else { continue };
            let command =
                splits::LapseTransition { attempt: seen.attempt, until_ms: seen.until_ms, now_ms };
            let name = ItemName::Bundle(job, item.home(bundle.index), bundle.epoch, bundle.index);
            let decide = |before: Option<&Bundle>| {
                splits::lapse(before, &command).map_err(ItemUpdateError::Declined)
            };
            let lapsed =
                self.records.store.update_versioned(&name, bundle.versioned(), decide).await;
            // On a refusal the worker is alive or the bundle has moved on.
            if let Some((after, version)) = accepted(lapsed)? {
                let invocation = &after.invocation.0;
                tracing::info!(%job, invocation, "a worker is silent while others make progress");
                (bundle.version, bundle.item) = (version, Some(after));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "silence_tests.rs"]
mod tests;
