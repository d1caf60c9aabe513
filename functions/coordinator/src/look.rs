//! A look at the whole window of a job: updates the job's state, and leaves hints for the calls that do not
//! read the window.
//!
//! The pure functions of [`steps`] decide from what is read; the methods here read, and carry out decisions.

use crate::{
    Consumers, CoordinatorSettings, caching,
    items::{ItemName, JobItem, SkipCounts},
    kicks::{kick_due, target, window},
    scan::{WindowScan, WorkableRange},
    snapshot::JobSnapshot,
    spending,
    store::VersionedItem,
    trouble,
};
use gristmill_model::{
    JobName,
    splits::{
        self, JobProgress, SplitPlace,
        job::JobState,
        ranges::EpochBundle,
        window::{MOST_RETURNED, WindowHints},
    },
    wire::{CallRefusal, PollCall, ScaleState, ScalerEvent},
};
use std::collections::BTreeMap;

impl Consumers {
    /// Reads the window, updates the job's state, kicks the scaler if needed, and writes the hints.
    pub(crate) async fn look(
        &self,
        poll: &PollCall,
        snapshot: &mut JobSnapshot,
        scale: &ScaleState,
    ) -> Result<WindowHints, CallRefusal> {
        let job = &poll.job;
        let JobSnapshot { item, progress, hints: stored } = snapshot;
        let scan = self.read_and_advance(job, item, progress).await?;
        if let (Some(plan), Some(_)) = (item.plan, progress.lacking) {
            // Epochs that are delivered from a cache have no splits to make.
            let end = WorkableRange::new(item, progress, 0).end;
            let made = SplitPlace::from_linear(scan.gap().unwrap_or(end), plan.n_splits);
            let decide =
                |before: Option<&JobProgress>| Ok::<_, CallRefusal>(splits::made(before, made));
            *progress = self.records.store.update(&ItemName::Progress(job), decide).await?;
        }
        let steady_since_ms = steady_since(stored.item.as_ref(), self.records.clock.now_ms());
        let scan = self.free_leases(job, item, progress, scan, scale, steady_since_ms).await?;
        let scan = scan.within(window(item, progress, scale));
        let scale = &self.splits.without_departed(job, scale.clone(), &scan).await?;
        let now_ms = self.records.clock.now_ms();
        let view = WindowInputs { item, progress, scale, scan: &scan, steady_since_ms, now_ms };
        let WindowDecision { kick, failure, mut hints } =
            decide(&self.records.settings, poll, &view);
        if let Some(event) = kick {
            let not_kicked = self.kicks.kick(scale, event).await;
            hints.trouble = hints.trouble.or(not_kicked);
        }
        if let Some(error) = failure {
            *item = self.records.fail_job(job, item, error).await?;
        }
        let read = stored.item.clone();
        let decide = |before: Option<&WindowHints>| hints.clone().looked(read.as_ref(), before);
        let name = ItemName::WindowHints(job);
        let hints = self.records.store.update_hint(&name, stored.clone(), decide).await;
        self.records.memory.keep_look(job, &hints, now_ms);
        Ok(hints)
    }

    /// Reads the window and carries out the [`JobChange`]s that it shows to be due. Returns the window as it is
    /// after them.
    async fn read_and_advance(
        &self,
        job: &JobName,
        item: &mut JobItem,
        progress: &JobProgress,
    ) -> Result<WindowScan, CallRefusal> {
        let skips = self.skips(job, item).await?;
        let from = scan_from(progress, skips.as_ref());
        let mut scan = self.records.scan(job, item, progress, from).await?;
        while let Some(step) = next(item, &scan) {
            match step {
                JobChange::FinishIndexing => {
                    *item = self.jobs.finish_indexing(job, item, &scan).await?;
                    scan = self.records.scan(job, item, progress, from).await?;
                }
                JobChange::Fail { error } => {
                    *item = self.records.fail_job(job, item, error).await?;
                }
                JobChange::SettleCaching => {
                    let settled = self.jobs.settle_caching(job, item.clone(), &scan).await?;
                    if settled != *item {
                        scan = self.records.scan(job, &settled, progress, from).await?;
                        *item = settled;
                    }
                    // The next look continues from what this one has read since.
                    break;
                }
            }
        }
        if let Some(read) = skips.filter(|_| item.state == JobState::Running)
            && let Some(error) = self.count_skipped(job, item, &scan, progress, read).await?
        {
            *item = self.records.fail_job(job, item, error).await?;
        }
        Ok(scan)
    }

    /// Frees the leases of workers that are reported dead or have most likely died. Returns the window as it
    /// is then.
    async fn free_leases(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
        mut scan: WindowScan,
        scale: &ScaleState,
        steady_since_ms: u64,
    ) -> Result<WindowScan, CallRefusal> {
        if self.splits.release_late_claims(job, item, &scan, &scale.dead).await? {
            scan = self.records.scan(job, item, progress, progress.horizon().slowest).await?;
        }
        self.splits.end_silent(job, item, &mut scan, steady_since_ms).await?;
        Ok(scan)
    }
}

/// Looks further apart than this are not regular: between them, workers' calls may not have been answered.
const LOOKS_APART_MS: u64 = 3_000;

/// A change of the job that its window shows to be due.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JobChange {
    /// Every file is indexed.
    FinishIndexing,
    /// A bundle was given up. The call that gave it up may have died before it ended the job.
    Fail { error: String },
    /// The caching mode of the next epoch can be settled.
    SettleCaching,
}

fn next(item: &JobItem, scan: &WindowScan) -> Option<JobChange> {
    if item.state == JobState::Indexing && scan.done() == item.n_files {
        return Some(JobChange::FinishIndexing);
    }
    if let Some(error) = scan.given_up().filter(|_| !item.state.is_ended()) {
        return Some(JobChange::Fail { error });
    }
    caching::settlement(item, scan).map(|_| JobChange::SettleCaching)
}

/// The first place to read: that of the next split to make, or the end of the stored count of skips if that is earlier.
fn scan_from(progress: &JobProgress, skips: Option<&VersionedItem<SkipCounts>>) -> SplitPlace {
    let counted = skips.map(|read| read.item.as_ref().map_or(SplitPlace::default(), |s| s.before));
    counted.map_or(progress.horizon().slowest, |counted| progress.horizon().slowest.min(counted))
}

/// Time since which looks have been regular.
fn steady_since(last: Option<&WindowHints>, now_ms: u64) -> u64 {
    let last = last.filter(|last| now_ms.abs_diff(last.at_ms) < LOOKS_APART_MS);
    last.map_or(now_ms, |last| last.steady_since_ms)
}

/// Everything that a look has read, after the changes of the job and of leases.
#[derive(Debug, Clone, Copy)]
struct WindowInputs<'a> {
    pub item: &'a JobItem,
    pub progress: &'a JobProgress,
    /// The scaler's state, without the workers that have left.
    pub scale: &'a ScaleState,
    /// The window, limited to the number of workers that the job should have.
    pub scan: &'a WindowScan,
    pub steady_since_ms: u64,
    pub now_ms: u64,
}

#[derive(Debug)]
struct WindowDecision {
    /// The kick of the scaler, if one is due.
    pub kick: Option<ScalerEvent>,
    /// The error with which the job fails, if its workers have failed for long enough.
    pub failure: Option<String>,
    /// Hints for the calls until the next look.
    pub hints: WindowHints,
}

fn decide(
    settings: &CoordinatorSettings,
    poll: &PollCall,
    view: &WindowInputs<'_>,
) -> WindowDecision {
    let WindowInputs { item, progress, scale, scan, now_ms, .. } = *view;
    let kick = kick_due(&settings.ns, poll, item, scale, scan, progress, now_ms);
    let failure =
        trouble::given_up(&settings.failure_limits, &scale.failed_workers, scan.progress(item))
            .filter(|_| !item.state.is_ended())
            .or_else(|| spending::spent(item, progress, scale, scan, now_ms));
    // The error of a job that fails now has all that its trouble would say.
    let trouble = match failure {
        Some(_) => None,
        None => trouble::trouble(settings, item, scale, scan),
    };
    WindowDecision { kick, failure, hints: WindowHints { trouble, ..hints(view) } }
}

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
mod steps_tests;
