//! The decisions of a poll, as pure functions of the items read, the request and the time.

use crate::{
    items::{JobItem, SweepProgress},
    ready::CommittedPrefix,
    snapshot::JobSnapshot,
    store::invalid,
};
use gristmill_model::JobName;
use gristmill_model::splits::{
    Horizon, JobProgress, ProgressAck, SplitPlace, frontier::WindowHints, job::JobState,
};
use gristmill_model::wire::{
    CallRefusal, EpochPlan, PollCall, PollReply, ReaderStanding, RefusalKind, ScaleState,
};

/// Longest time between two looks at the window while a trainer polls.
const LOOK_EVERY_MS: u64 = 1_000;
/// The same after a change, when few workers are at work.
const LOOK_SOON_MS: u64 = 100;

/// Whether a poll reads the whole window; the larger the window, the rarer.
pub fn is_look_due(snapshot: &JobSnapshot, poll: &PollCall, has_moved: bool, now_ms: u64) -> bool {
    let Some(seen) = &snapshot.frontier.item else { return true };
    let item = &snapshot.item;
    // The window of several ranks may be wider than planned.
    let bundles = item.plan.map_or(item.n_files / 8, |plan| {
        plan.window_splits.max(seen.window) / plan.max_bundle_splits.max(1)
    });
    let bundles = u64::from(bundles);
    // While indexing, the trainer waits for its end, and many workers change a lot. An index has no window:
    // a look reads all of it, which is much if it has many files.
    let (least_ms, most_ms) = match item.plan {
        Some(_) if snapshot.has_few_workers() => (LOOK_SOON_MS, LOOK_EVERY_MS),
        Some(_) => (0, LOOK_EVERY_MS),
        None => (0, LOOK_EVERY_MS.max(bundles / 4)),
    };
    let every_ms = bundles.clamp(least_ms, most_ms);
    let soon_ms = bundles.min(LOOK_SOON_MS);
    let age_ms = now_ms.abs_diff(seen.at_ms);
    let has_changed = seen.is_due || seen.window_full && has_moved;
    let is_asked = poll.training.is_some() && item.spec.autoscale;
    // Only a look settles the caching of an epoch, and the job may end with that epoch.
    let unsettled = item.caching.as_ref().and_then(|caching| caching.view.unsettled);
    let is_passed =
        unsettled.is_some_and(|epoch| snapshot.progress.horizon().durable.epoch >= epoch);
    age_ms >= every_ms || has_changed && age_ms >= soon_ms || is_asked || is_passed
}

/// The steps that follow an acknowledgement and a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueSteps {
    /// The trainer has all epochs: everything may be deleted.
    pub horizon: bool,
    /// Epochs that the trainer has durably passed must be sealed and closed.
    pub close: bool,
    /// Objects behind the durable cursor must be deleted. False if the trainer asks for splits that it has
    /// already passed: it resumes, and must not wait for thousands of deletions.
    pub collect: bool,
}

impl DueSteps {
    pub fn from_snapshot(
        JobSnapshot { item, progress, .. }: &JobSnapshot,
        from: SplitPlace,
    ) -> Self {
        let close = item.state == JobState::Running;
        let Horizon { fastest, durable, .. } = progress.horizon();
        let has_all = durable.epoch >= item.spec.epochs;
        Self { horizon: close && has_all, close, collect: close && from >= fastest }
    }
}

/// Splits beyond the job's head that a trainer knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnseenSplits {
    pub from: SplitPlace,
    /// Number of splits from there on.
    pub most: usize,
    /// The first position after them, counted through all epochs.
    pub to: u64,
}

/// Refuses a trainer of an earlier job of the name.
pub fn check_job(job: &JobName, item: &JobItem, registered_ms: u64) -> Result<(), CallRefusal> {
    if registered_ms == 0 || registered_ms == item.registered_ms {
        return Ok(());
    }
    // Not a fence of the run, of which a trainer may have to ask twice.
    Err(CallRefusal {
        kind: RefusalKind::NotFound,
        message: format!("job {job} was forgotten and started again: start this trainer again"),
    })
}

/// Checks the place of a new run of the trainer. Refuses one beyond the job's plan.
pub fn check_place(job: &JobName, item: &JobItem, ack: &ProgressAck) -> Result<(), CallRefusal> {
    let Some(plan) = item.plan else { return Ok(()) };
    let (epochs, n) = (item.spec.epochs, plan.n_splits.max(1));
    if ack.delivered.linear(n) > u64::from(epochs) * u64::from(n) || ack.durable.epoch > epochs {
        return Err(invalid(format!(
            "the trainer's checkpoint is at {}, which is beyond job {job}: it has {epochs} epochs of {n} splits; the \
             checkpoint belongs to another job: start without it",
            ack.durable
        )));
    }
    Ok(())
}

/// The splits from the job's head up to `known`; none if that is at or before it.
pub fn unseen(plan: EpochPlan, progress: &JobProgress, known: SplitPlace) -> Option<UnseenSplits> {
    let n = plan.n_splits.max(1);
    let to = known.linear(n);
    // An older checkpoint moves `delivered` back, so more splits than that may have been made.
    let from = progress.horizon().slowest;
    let more = to.checked_sub(from.linear(n)).filter(|more| *more > 0)?;
    Some(UnseenSplits { from, most: usize::try_from(more).unwrap_or(usize::MAX), to })
}

/// Whether a trainer has begun a run before the end of a job that was done, or in an epoch whose bundles are deleted.
pub fn goes_back(snapshot: &JobSnapshot, swept: Option<&SweepProgress>) -> bool {
    let JobSnapshot { item, progress, .. } = snapshot;
    let durable = progress.horizon().durable.epoch;
    match item.state {
        JobState::Done => durable < item.spec.epochs,
        JobState::Running => swept.is_some_and(|swept| durable < swept.pruned),
        _ => false,
    }
}

/// The answer to a poll. `seen` is what its look has found, if there was one.
pub fn answer(
    job: &JobName,
    snapshot: JobSnapshot,
    (scale, seen): (ScaleState, Option<WindowHints>),
    ready: CommittedPrefix,
    reader: ReaderStanding,
    now_ms: u64,
) -> PollReply {
    let seen = seen.unwrap_or_else(|| snapshot.hints());
    let JobSnapshot { item, progress, .. } = snapshot;
    let is_planned = item.plan.is_some();
    let is_claimable = ready.gap.is_some_and(|(_, bundle)| bundle.is_claimable(now_ms));
    let WindowHints { remote_workers, local_workers, claimable, indexed, trouble, .. } = seen;
    let WindowHints { window, window_full, ahead, .. } = seen;
    PollReply {
        job: item.view(job),
        generation: progress.generation,
        delivered: progress.delivered,
        ready: ready.entries,
        remote_workers,
        local_workers,
        claimable,
        window,
        window_full,
        ahead,
        head_of_line_blocked: !is_planned || is_claimable,
        indexed_files: if is_planned { item.n_files } else { indexed },
        scale: scale.without_policy(),
        trouble,
        reader,
    }
}

#[cfg(test)]
mod tests;
