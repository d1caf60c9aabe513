//! The trainer's poll, which acknowledges progress and returns ready splits, and the read-only `status`.
//!
//! A poll reads a [`JobSnapshot`], the pure functions of [`steps`] decide, and the handler acts.

pub(crate) mod steps;

use self::steps::{Due, Unseen};
use crate::{
    Coordinator, Handle,
    items::{ItemName, JobItem},
    kicks::window,
    snapshot::{JobSnapshot, PollItems},
    store::{Unchanged, Versioned},
    trouble::trouble,
};
use futures::future::try_join;
use gristmill_model::splits::{self, Ack, JobProgress, LackingSplits, Outcome, Place};
use gristmill_model::wire::{JobStatus, Poll, Polled, Refusal, Status};
use gristmill_model::{JobName, Visitation};

impl Handle<Poll> for Coordinator {
    async fn handle(&self, poll: &Poll) -> Result<Polled, Refusal> {
        let (job, from) = (&poll.job, poll.from);
        let (mut snapshot, PollItems { scale, progress: read, swept, first }) =
            self.poll_snapshot(job, Some(from)).await?;
        steps::check_job(job, &snapshot.item, poll.registered_ms)?;
        let before = snapshot.progress.delivered;
        if let Some(ack) = &poll.ack {
            snapshot.progress = self.acknowledge(job, &snapshot, read, ack, from).await?;
        }
        let has_moved = snapshot.progress.delivered != before;
        let seen = match steps::is_look_due(&snapshot, poll, has_moved, self.clock.now_ms()) {
            true => self.look(poll, &mut snapshot, &scale).await?,
            false => snapshot.hints(),
        };
        let due = Due::of(&snapshot, from);
        if due.horizon {
            // If the trainer has gone back meanwhile, the job stays open; from now on it cannot.
            snapshot.progress = self.move_horizon(job).await?;
        }
        if due.close {
            let JobSnapshot { item, progress, .. } = &snapshot;
            snapshot.item = self.close_epochs(job, item.clone(), progress).await?;
        }
        let JobSnapshot { item, progress, .. } = snapshot;
        let collected = async {
            match due.collect {
                true => self.collect(job, &item, (progress, swept)).await,
                false => Ok(()),
            }
        };
        let ((), ready) = try_join(collected, self.ready((job, &item), from, first)).await?;
        let now_ms = self.clock.now_ms();
        Ok(steps::answer(item.view(job), item.n_files, &progress, (scale, seen), ready, now_ms))
    }
}

impl Handle<Status> for Coordinator {
    /// Returns the job's progress without changing anything.
    async fn handle(&self, Status { job }: &Status) -> Result<JobStatus, Refusal> {
        let (JobSnapshot { item, progress, .. }, PollItems { scale, .. }) =
            self.poll_snapshot(job, None).await?;
        let scan = self.scan(job, &item, &progress, progress.head()).await?;
        let scale = self.settled(job, scale, &scan).await?;
        let window = window(&item, &progress, &scale);
        let scan = scan.within(window);
        let now_ms = self.clock.now_ms();
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
            trouble: trouble(&self.settings, &item, &scale, &scan),
            scale: scale.without_policy(),
            profile: self.profile(job).await?,
            run: self.run_status(job, &item, &progress).await?,
        })
    }
}

impl Coordinator {
    /// The splits before `known`, which a trainer knows of, that the table lacks: a local service may have lost its last
    /// writes. To be asked for each run of a trainer, once by each process of the coordinator.
    pub(crate) async fn lacking(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
        known: Place,
    ) -> Result<Option<LackingSplits>, Refusal> {
        let Some(plan) = item.plan else {
            // The plan is lost too, so nothing can be looked up yet.
            let from = progress.head();
            return Ok((from < known).then_some(LackingSplits { from, to: known }));
        };
        let Some(Unseen { from, most, to }) = steps::unseen(plan, progress, known) else {
            return Ok(None);
        };
        let gap = self.committed((job, item), from, Vec::new(), most).await?.gap;
        let Some((gap, _)) = gap.filter(|(gap, _)| *gap < to) else { return Ok(None) };
        let from = Place::of(gap, plan.n_splits);
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

    /// Writes the progress of a trainer that asks for the splits from `from` on.
    async fn acknowledge(
        &self,
        job: &JobName,
        JobSnapshot { item, progress, .. }: &JobSnapshot,
        read: Versioned<JobProgress>,
        ack: &Ack,
        from: Place,
    ) -> Result<JobProgress, Refusal> {
        let is_new = ack.generation > progress.generation;
        if is_new {
            steps::check_place(job, item, ack)?;
        }
        let lacking = if is_new || !self.memory.knows_run(job, None, ack.generation) {
            self.lacking(job, item, progress, ack.delivered.max(from)).await?
        } else {
            None
        };
        let visitation = item.spec.settings.visitation;
        let now_ms = self.clock.now_ms();
        let decide = |read: Option<&JobProgress>| {
            let before = read.map(|read| read.with_lacking(lacking));
            let before = before.as_ref();
            let acked = match visitation {
                Visitation::AtMostOnce => splits::ack_at_most_once(before, ack, now_ms),
                Visitation::ExactlyOnce | Visitation::ZeroOnceOrMore => {
                    splits::ack(before, ack, now_ms)
                }
            };
            let acked = acked.map(|acked| match acked {
                Outcome::AlreadyApplied(after) if read != Some(&after) => Outcome::Write(after),
                acked => acked.with(|after| after.with_lacking(lacking)),
            });
            acked.map_err(Unchanged::Declined)
        };
        let progress = self.store.update_from(&ItemName::Progress(job), read, decide).await?;
        self.memory.keep_run(job, None, ack.generation);
        Ok(progress)
    }
}
