//! The decisions of a look, as pure functions of the job's items, its window and the time.

use crate::{
    CoordinatorSettings, caching,
    items::{JobItem, SkipCounts},
    kicks::{kick_due, target, window},
    scan::WindowScan,
    store::VersionedItem,
    trouble,
};
use gristmill_model::splits::{
    JobProgress, SplitPlace,
    course::EpochBundle,
    frontier::{MOST_RETURNED, WindowHints},
    job::JobState,
};
use gristmill_model::wire::{PollCall, ScaleState, ScalerEvent};
use std::collections::BTreeMap;

/// Looks further apart than this are not regular: between them, workers' calls may not have been answered.
const LOOKS_APART_MS: u64 = 3_000;

/// A change of the job that its window shows to be due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobChange {
    /// Every file is indexed.
    FinishIndexing,
    /// A bundle was given up. The call that gave it up may have died before it ended the job.
    Fail { error: String },
    /// The caching mode of the next epoch can be settled.
    SettleCaching,
}

/// The next change of the job that `scan` shows to be due.
pub(super) fn next(item: &JobItem, scan: &WindowScan) -> Option<JobChange> {
    if item.state == JobState::Indexing && scan.done() == item.n_files {
        return Some(JobChange::FinishIndexing);
    }
    if let Some(error) = scan.given_up().filter(|_| !item.state.is_ended()) {
        return Some(JobChange::Fail { error });
    }
    caching::settlement(item, scan).map(|_| JobChange::SettleCaching)
}

/// The first place to read: that of the next split to make, or the end of the stored count of skips if that is earlier.
pub(super) fn scan_from(
    progress: &JobProgress,
    skips: Option<&VersionedItem<SkipCounts>>,
) -> SplitPlace {
    let counted = skips.map(|read| read.item.as_ref().map_or(SplitPlace::default(), |s| s.before));
    counted.map_or(progress.horizon().slowest, |counted| progress.horizon().slowest.min(counted))
}

/// Time since which looks have been regular.
pub(super) fn steady_since(last: Option<&WindowHints>, now_ms: u64) -> u64 {
    let last = last.filter(|last| now_ms.abs_diff(last.at_ms) < LOOKS_APART_MS);
    last.map_or(now_ms, |last| last.steady_since_ms)
}

/// Everything that a look has read, after the changes of the job and of leases.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowInputs<'a> {
    pub item: &'a JobItem,
    pub progress: &'a JobProgress,
    /// The scaler's state, without the workers that have left.
    pub scale: &'a ScaleState,
    /// The window, limited to the number of workers that the job should have.
    pub scan: &'a WindowScan,
    pub steady_since_ms: u64,
    pub now_ms: u64,
}

/// The effects of a look.
#[derive(Debug)]
pub(super) struct WindowDecision {
    /// The kick of the scaler, if one is due.
    pub kick: Option<ScalerEvent>,
    /// The error with which the job fails, if its workers have failed for long enough.
    pub failure: Option<String>,
    /// Hints for the calls until the next look.
    pub hints: WindowHints,
}

/// Decides the effects of a look.
pub(super) fn decide(
    settings: &CoordinatorSettings,
    poll: &PollCall,
    view: &WindowInputs<'_>,
) -> WindowDecision {
    let WindowInputs { item, progress, scale, scan, now_ms, .. } = *view;
    let epoch = progress.horizon().slowest.epoch;
    let kick = kick_due(&settings.ns, poll, item, scale, scan, epoch, now_ms);
    let failure = trouble::given_up(&settings.patience, &scale.barren, scan.progress(item))
        .filter(|_| !item.state.is_ended());
    // The error of a job that fails now has all that its trouble would say.
    let trouble = match failure {
        Some(_) => None,
        None => trouble::trouble(settings, item, scale, scan),
    };
    WindowDecision { kick, failure, hints: WindowHints { trouble, ..hints(view) } }
}

/// The hints that a window gives.
fn hints(view: &WindowInputs<'_>) -> WindowHints {
    let WindowInputs { item, progress, scale, scan, steady_since_ms, now_ms } = *view;
    let claimable = scan.claimable(now_ms);
    let mut hints = WindowHints {
        at_ms: now_ms,
        steady_since_ms,
        delivered: scan.ahead.delivered,
        returned: returned(scan, item.partitions(), progress.lacking.is_some(), now_ms),
        claimable,
        ready_bytes: scan.ahead.ready_bytes,
        ahead: scan.positions_ahead(),
        window: window(item, progress, scale),
        window_full: scan.window_full(now_ms, claimable),
        remote_workers: scan.remote_workers(now_ms).count() as u32,
        local_workers: scan.local_workers(now_ms),
        progress: scan.progress(item),
        indexed: if item.plan.is_none() { scan.done() } else { 0 },
        ..WindowHints::default()
    };
    hints.note_workers(scan.remote_workers(now_ms), target(item, scale));
    hints
}

/// Claimable bundles that lie before the end of their partition, where a claim does not find them. With a trainer that is
/// ahead of the table, the end may lie beyond the window: it asked for later bundles.
fn returned(
    scan: &WindowScan,
    partitions: u32,
    is_behind_trainer: bool,
    now_ms: u64,
) -> Vec<EpochBundle> {
    let mut ends = BTreeMap::new();
    // A deleted bundle leaves a tombstone, which counts where a claim looks for the end.
    for bundle in scan.bundles.iter().filter(|bundle| bundle.version > 0) {
        ends.insert((bundle.epoch, bundle.index % partitions), bundle.index);
    }
    let candidates = scan.candidates(now_ms).map(|bundle| (bundle.epoch, bundle.index));
    let is_behind = |&(epoch, index): &EpochBundle| {
        is_behind_trainer || ends.get(&(epoch, index % partitions)).is_some_and(|end| index <= *end)
    };
    candidates.filter(is_behind).take(MOST_RETURNED).collect()
}

#[cfg(test)]
mod tests;
