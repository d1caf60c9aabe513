//! A reader's poll, which reports progress and returns ready splits, and the read-only `status`.
//!
//! One poll at a time leads: it does the job's shared work. Those of the other readers of a run follow: they read the
//! splits that are ready, and change nothing but the report of their own ranks.
//!
//! A poll reads a [`JobSnapshot`], the pure functions of [`steps`] decide, and the handler acts.

pub(crate) mod steps;

use self::steps::{DueSteps, UnseenSplits};
use crate::{
    CallHandler, Consumers,
    bundles::ScannedBundle,
    items::JobItem,
    kicks::window,
    readers::ReaderRole,
    ready::CommittedPrefix,
    snapshot::{JobSnapshot, PollItems},
    trouble::trouble,
};
use futures::future::try_join;
use gristmill_model::JobName;
use gristmill_model::splits::{JobProgress, LackingSplits, SplitPlace};
use gristmill_model::wire::{CallRefusal, JobStatus, PollCall, PollReply, StatusCall};

/// Most bundles of splits in the answer to a poll that follows.
const FOLLOWED_BUNDLES: usize = 96;

impl CallHandler<PollCall> for Consumers {
    async fn handle(&self, poll: &PollCall) -> Result<PollReply, CallRefusal> {
        let (job, from) = (&poll.job, poll.from);
        let one_of_several = (!poll.is_alone()).then_some(poll.ranks.first);
        let (mut snapshot, mut items) =
            self.records.poll_snapshot(job, Some(from), one_of_several).await?;
        steps::check_job(job, &snapshot.item, poll.registered_ms)?;
        let before = snapshot.progress.delivered;
        let ReaderRole { reader, leads } = self.take_part(poll, &mut snapshot, &mut items).await?;
        if steps::goes_back(&snapshot, items.swept.item.as_ref()) {
            self.jobs.reopen(job, &snapshot.progress).await?;
            (snapshot, items) = self.records.poll_snapshot(job, Some(from), one_of_several).await?;
        }
        let PollItems { scale, swept, first, .. } = items;
        if !leads {
            let ready = self.followed((job, &snapshot.item), from, first).await?;
            return Ok(steps::answer(
                job,
                snapshot,
                (scale, None),
                ready,
                reader,
                self.records.clock.now_ms(),
            ));
        }
        let has_moved = snapshot.progress.delivered != before;
        let mut seen = None;
        if steps::is_look_due(&snapshot, poll, has_moved, self.records.clock.now_ms()) {
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
            if due.collect { self.collect(job, item, (*progress, swept)).await } else { Ok(()) }
        };
        let ((), ready) = try_join(collected, self.ready((job, item), from, first)).await?;
        Ok(steps::answer(job, snapshot, (scale, seen), ready, reader, self.records.clock.now_ms()))
    }
}

impl CallHandler<StatusCall> for Consumers {
    /// Returns the job's progress without changing anything.
    async fn handle(&self, StatusCall { job }: &StatusCall) -> Result<JobStatus, CallRefusal> {
        let (JobSnapshot { item, progress, .. }, PollItems { scale, .. }) =
            self.records.poll_snapshot(job, None, None).await?;
        let scan = self.records.scan(job, &item, &progress, progress.horizon().slowest).await?;
        let scale = self.splits.settled(job, scale, &scan).await?;
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
        let Some(UnseenSplits { from, most, to }) = steps::unseen(plan, progress, known) else {
            return Ok(None);
        };
        let gap = self.committed((job, item), from, Vec::new(), most).await?.gap;
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

    /// The splits that are ready for a reader that follows.
    async fn followed(
        &self,
        (job, item): (&JobName, &JobItem),
        from: SplitPlace,
        first: Vec<ScannedBundle>,
    ) -> Result<CommittedPrefix, CallRefusal> {
        let splits = item.plan.map_or(0, |plan| plan.max_bundle_splits as usize);
        let mut ready = self.committed((job, item), from, first, FOLLOWED_BUNDLES * splits).await?;
        ready.entries.retain(|entry| item.locates(entry.place.epoch));
        Ok(ready)
    }
}
