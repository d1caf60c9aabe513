//! A reader's poll, which reports progress and returns ready splits, and the read-only `status`.
//!
//! One poll at a time leads: it does the job's shared work. Those of the other readers of a run follow: they read the
//! splits that are ready, and change nothing but the report of their own ranks.
//!
//! A poll reads a [`JobSnapshot`], the pure functions of [`steps`] decide, and the handler acts.

use crate::{
    CallHandler, Consumers,
    bundles::ScannedBundle,
    items::{JobItem, SweepProgress},
    kicks::window,
    readers::ReaderRole,
    snapshot::{JobSnapshot, PollItems},
    store::invalid,
    trouble::trouble,
};
use futures::future::try_join;
use gristmill_model::{
    JobName,
    splits::{
        CommittedSplit, Horizon, JobProgress, LackingSplits, ProgressAck, SplitPlace,
        job::JobState, window::WindowHints,
    },
    wire::{
        CallRefusal, EpochPlan, JobStatus, PollCall, PollReply, ReaderStanding, ReadySplit,
        RefusalKind, ScaleState, StatusCall,
    },
};

/// Most bundles of splits in the answer to a poll that follows.
const FOLLOWED_BUNDLES: usize = 96;

impl CallHandler<PollCall> for Consumers {
    async fn handle(&self, poll: &PollCall) -> Result<PollReply, CallRefusal> {
        let (job, from) = (&poll.job, poll.from);
        let one_of_several = (!poll.is_alone()).then_some(poll.ranks.first);
        let (mut snapshot, mut items) =
            self.records.poll_snapshot(job, Some(from), one_of_several).await?;
        check_job(job, &snapshot.item, poll.registered_ms)?;
        let before = snapshot.progress.delivered;
        let ReaderRole { reader, leads } = self.take_part(poll, &mut snapshot, &mut items).await?;
        if goes_back(&snapshot, items.swept.item.as_ref()) {
            self.jobs.reopen(job, &snapshot.progress).await?;
            (snapshot, items) = self.records.poll_snapshot(job, Some(from), one_of_several).await?;
        }
        let PollItems { scale, swept, first, .. } = items;
        if !leads {
            let splits = snapshot.item.plan.map_or(0, |plan| plan.max_bundle_splits as usize);
            let most = FOLLOWED_BUNDLES * splits;
            let ready = self.ready(job, &snapshot.item, from, first, most).await?;
            let now_ms = self.records.clock.now_ms();
            return Ok(answer(job, snapshot, scale, None, ready, reader, now_ms));
        }
        let has_moved = snapshot.progress.delivered != before;
        let mut seen = None;
        if is_look_due(&snapshot, poll, has_moved, self.records.clock.now_ms()) {
            seen = Some(self.look(poll, &mut snapshot, &scale).await?);
        }
        let due = DueSteps::from_snapshot(&snapshot, from);
        if due.horizon {
            // If the trainer has gone back meanwhile, the job stays open.
            snapshot.progress = self.move_horizon(job).await?;
        }
        if due.close {
            let JobSnapshot { item, progress, .. } = &snapshot;
            snapshot.item = self.jobs.close_epochs(job, item.clone(), progress).await?;
        }
        let JobSnapshot { item, progress, .. } = &snapshot;
        let collected = async {
            if due.collect { self.collect(job, item, *progress, swept).await } else { Ok(()) }
        };
        let ready = self.ready(job, item, from, first, MOST_READY);
        let ((), ready) = try_join(collected, ready).await?;
        Ok(answer(job, snapshot, scale, seen, ready, reader, self.records.clock.now_ms()))
    }
}

impl CallHandler<StatusCall> for Consumers {
    /// Returns the job's progress without changing anything.
    async fn handle(&self, StatusCall { job }: &StatusCall) -> Result<JobStatus, CallRefusal> {
        let (JobSnapshot { item, progress, .. }, PollItems { scale, .. }) =
            self.records.poll_snapshot(job, None, None).await?;
        let scan = self.records.scan(job, &item, &progress, progress.horizon().slowest).await?;
        let scale = self.splits.without_departed(job, scale, &scan).await?;
        let window = window(&item, &progress, &scale);
        let scan = scan.within(window);
        let now_ms = self.records.clock.now_ms();
        let planned = item.plan.is_some();
        Ok(JobStatus {
            job: item.view(job),
            delivered: progress.delivered,
            durable: progress.durable,
            heartbeat_ms: progress.heartbeat_ms,
            window,
            ready: if planned { scan.ahead.ready as u32 } else { 0 },
            claimable: if item.state.is_ended() { 0 } else { scan.claimable(now_ms) },
            active_workers: scan.active_workers(now_ms),
            indexed_files: if planned { item.n_files } else { scan.done() },
            trouble: trouble(&self.records.settings, &item, &scale, &scan),
            scale: scale.without_policy(),
            profile: self.records.profile(job).await?,
            run: self.run_status(job, &item, &progress).await?,
        })
    }
}

impl Consumers {
    /// The splits before `known`, which a trainer knows of, that the table lacks: a local service may have lost its last
    /// writes. To be asked for each run of a trainer, once by each process of the coordinator.
    pub(crate) async fn lacking(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
        known: SplitPlace,
    ) -> Result<Option<LackingSplits>, CallRefusal> {
        let Some(plan) = item.plan else {
            // The plan is lost too, so nothing can be looked up yet.
            let from = progress.horizon().slowest;
            return Ok((from < known).then_some(LackingSplits { from, to: known }));
        };
        let Some(UnseenSplits { from, most, to }) = unseen(plan, progress, known) else {
            return Ok(None);
        };
        let gap = self.committed(job, item, from, Vec::new(), most).await?.gap;
        let Some((gap, _)) = gap.filter(|(gap, _)| *gap < to) else { return Ok(None) };
        let from = SplitPlace::from_linear(gap, plan.n_splits);
        tracing::warn!(
            %job,
            "the trainer knows of the splits before {} of epoch {}, and the table has lost some from {} of epoch {} \
             on: they are made again",
            known.position,
            known.epoch,
            from.position,
            from.epoch
        );
        Ok(Some(LackingSplits { from, to: known }))
    }
}

/// Longest time between two looks at the window while a trainer polls.
const LOOK_EVERY_MS: u64 = 1_000;
/// The same after a change, when few workers are at work.
const LOOK_SOON_MS: u64 = 100;

/// Whether a poll reads the whole window; the larger the window, the rarer.
pub fn is_look_due(snapshot: &JobSnapshot, poll: &PollCall, has_moved: bool, now_ms: u64) -> bool {
    let Some(seen) = &snapshot.hints.item else { return true };
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
    /// The steps that a poll must take before its answer.
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
    scale: ScaleState,
    seen: Option<WindowHints>,
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

/// Most entries in one answer: less than a megabyte of JSON.
const MOST_READY: usize = 4_000;
/// Bundles per read; each read is larger than the one before.
const PAGES: [usize; 3] = [12, 88, 400];

/// Committed splits from a place up to the first gap.
#[derive(Debug, Default)]
pub(crate) struct CommittedPrefix {
    pub entries: Vec<ReadySplit>,
    /// The first split that is not committed, counted through all epochs, and its bundle, if the prefix ends there.
    pub gap: Option<(u64, ScannedBundle)>,
}

impl CommittedPrefix {
    /// Appends splits of `bundles` from position `from` on, counted through all epochs, up to `most` entries.
    fn extend(&mut self, bundles: Vec<ScannedBundle>, from: u64, most: usize) {
        for bundle in bundles {
            let positions = bundle.positions.clone().zip(bundle.span());
            for (i, (position, linear)) in (0u8..).zip(positions) {
                if linear < from {
                    continue;
                }
                if self.entries.len() >= most {
                    return;
                }
                let item = bundle.item.as_ref();
                let Some((item, entry)) = item.and_then(|item| Some((item, item.entry(i)?))) else {
                    self.gap = Some((linear, bundle));
                    return;
                };
                let CommittedSplit { attempt, nonce, outcome } = *entry;
                let place = SplitPlace { epoch: bundle.epoch, position };
                // Each committed split has an equal share of the bundle's times.
                let times = item.times.share_of(item.entries.iter().flatten().count() as u32);
                let index = bundle.index;
                self.entries.push(ReadySplit {
                    place,
                    bundle: index,
                    attempt,
                    nonce,
                    outcome,
                    times,
                });
            }
        }
    }
}

impl Consumers {
    /// Committed splits from `from` up to the first gap, at most `most`; the trainer asks for the
    /// rest with its next poll. `first` holds the first of these bundles, if they were already read. Leaves
    /// out splits that `item` cannot locate: bundles are read after it, and may belong to a later version of the job.
    async fn ready(
        &self,
        job: &JobName,
        item: &JobItem,
        from: SplitPlace,
        first: Vec<ScannedBundle>,
        most: usize,
    ) -> Result<CommittedPrefix, CallRefusal> {
        let mut prefix = self.committed(job, item, from, first, most).await?;
        prefix.entries.retain(|entry| item.locates(entry.place.epoch));
        Ok(prefix)
    }

    /// Like [`ready`](Self::ready), including those that `item` cannot locate.
    async fn committed(
        &self,
        job: &JobName,
        item: &JobItem,
        from: SplitPlace,
        first: Vec<ScannedBundle>,
        most: usize,
    ) -> Result<CommittedPrefix, CallRefusal> {
        let mut prefix = CommittedPrefix::default();
        let Some(plan) = item.plan else { return Ok(prefix) };
        let from = from.linear(plan.n_splits);
        let mut rest = item.ranges(from..from.saturating_add(most as u64));
        let (ranges, behind) = rest.clone().divided(first.len());
        if ranges.is_of(first.iter().map(|bundle| (bundle.epoch, bundle.index))) {
            prefix.extend(first, from, most);
            rest = behind;
        }
        if prefix.gap.is_some() {
            return Ok(prefix);
        }
        let pages = PAGES.into_iter().chain(std::iter::repeat(PAGES[PAGES.len() - 1]));
        for page in pages {
            let (ranges, behind) = rest.divided(page);
            if ranges.is_empty() {
                break;
            }
            prefix.extend(self.records.read_bundles(job, item, &ranges).await?, from, most);
            if prefix.gap.is_some() || prefix.entries.len() >= most {
                break;
            }
            rest = behind;
        }
        Ok(prefix)
    }
}

#[cfg(test)]
mod steps_tests;

#[cfg(test)]
#[path = "ready_tests.rs"]
mod ready_tests;
