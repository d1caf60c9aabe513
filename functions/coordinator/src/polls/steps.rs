//! The decisions of a poll, as pure functions of the items read, the request and the time.

use crate::{
    items::{JobItem, ScaleState},
    ready::Prefix,
    snapshot::JobSnapshot,
    store::invalid,
};
use gristmill_model::JobName;
use gristmill_model::splits::{Ack, JobProgress, Place, frontier::Frontier, job::JobState};
use gristmill_model::wire::{JobView, Poll, Polled, Refusal, RefusalKind};

/// Longest time between two looks at the window while a trainer polls.
const LOOK_EVERY_MS: u64 = 1_000;
/// The same after a change, when few workers are at work.
const LOOK_SOON_MS: u64 = 100;

/// Whether a poll reads the whole window; the larger the window, the rarer.
pub fn is_look_due(snapshot: &JobSnapshot, poll: &Poll, has_moved: bool, now_ms: u64) -> bool {
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
    let is_asked = poll.report.is_some() && item.spec.autoscale;
    // Only a look settles the caching of an epoch, and the job may end with that epoch.
    let unsettled = item.caching.as_ref().and_then(|caching| caching.view.unsettled);
    let is_passed = unsettled.is_some_and(|epoch| snapshot.progress.durable.epoch >= epoch);
    age_ms >= every_ms || has_changed && age_ms >= soon_ms || is_asked || is_passed
}

/// The steps that follow an acknowledgement and a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The trainer has all epochs: move the horizon to the end, so that no older checkpoint is restored.
    pub horizon: bool,
    /// Epochs that the trainer has durably passed must be sealed and closed.
    pub close: bool,
    /// Objects behind the durable cursor must be deleted. False if the trainer asks for splits that it has
    /// already passed: it resumes, and must not wait for thousands of deletions.
    pub collect: bool,
}

impl Due {
    pub fn of(JobSnapshot { item, progress, .. }: &JobSnapshot, from: Place) -> Self {
        let close = item.state == JobState::Running;
        let has_all = progress.durable.epoch >= item.spec.epochs;
        Self { horizon: close && has_all, close, collect: close && from >= progress.delivered }
    }
}

/// Splits that a new run of the trainer claims to have received beyond the last run's cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unseen {
    pub from: Place,
    /// Number of splits from there on.
    pub most: usize,
    /// The first position after them, counted through all epochs.
    pub to: u64,
}

/// Checks a new run of the trainer. Refuses a checkpoint beyond everything this job ever made: it comes
/// from another run, and batches that this run never received would be missing. Returns the splits that
/// must be committed for the run to be admitted; none if it begins at or before the last run's cursor.
pub fn beginning(
    job: &JobName,
    item: &JobItem,
    progress: &JobProgress,
    ack: &Ack,
) -> Result<Option<Unseen>, Refusal> {
    let (Some(plan), true) = (item.plan, ack.generation > progress.generation) else {
        return Ok(None);
    };
    if item.state == JobState::Done && ack.durable.epoch < item.spec.epochs {
        return Err(Refusal {
            kind: RefusalKind::Collected,
            message: format!(
                "job {job} is done: all its batches were delivered and acknowledged; train again under \
                 another job name"
            ),
        });
    }
    let n = plan.n_splits.max(1);
    let to = ack.delivered.linear(n);
    let run = u64::from(item.spec.epochs) * u64::from(n);
    if to > run || ack.durable.epoch > item.spec.epochs {
        return Err(beyond(job, ack, progress.delivered));
    }
    // An older checkpoint moves `delivered` back, so more splits than that may have been made.
    let from = progress.delivered;
    let more = to.checked_sub(from.linear(n)).filter(|more| *more > 0);
    let most = |more| usize::try_from(more).unwrap_or(usize::MAX);
    Ok(more.map(|more| Unseen { from, most: most(more), to }))
}

/// Refuses the run if `gap`, the first uncommitted split, lies before `to`.
pub fn check_made(
    job: &JobName,
    item: &JobItem,
    ack: &Ack,
    gap: Option<u64>,
    to: u64,
) -> Result<(), Refusal> {
    let n = item.plan.map_or(1, |plan| plan.n_splits.max(1));
    match gap {
        Some(gap) if gap < to => Err(beyond(job, ack, Place::of(gap, n))),
        _ => Ok(()),
    }
}

fn beyond(job: &JobName, ack: &Ack, made: Place) -> Refusal {
    invalid(format!(
        "the trainer's checkpoint is at batch {} of epoch {}, which was never produced: job {job} \
         has produced splits up to {} of epoch {}; the checkpoint belongs to another run: start \
         without it",
        ack.durable.batch_index, ack.durable.epoch, made.position, made.epoch
    ))
}

/// The answer to a poll.
pub fn answer(
    job: JobView,
    n_files: u32,
    progress: &JobProgress,
    (scale, seen): (ScaleState, Frontier),
    ready: Prefix,
    now_ms: u64,
) -> Polled {
    let is_planned = job.plan.is_some();
    let is_claimable = ready.gap.is_some_and(|(_, bundle)| bundle.is_claimable(now_ms));
    let Frontier { active, claimable, window, window_full, ahead, indexed, trouble, .. } = seen;
    Polled {
        job,
        generation: progress.generation,
        ready: ready.entries,
        active_workers: active,
        claimable,
        window,
        window_full,
        ahead,
        head_of_line_blocked: !is_planned || is_claimable,
        indexed_files: if is_planned { n_files } else { indexed },
        scale: scale.without_policy(),
        trouble,
    }
}

#[cfg(test)]
mod tests;
