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
use gristmill_model::splits::{self, Ack, JobProgress};
use gristmill_model::wire::{JobStatus, Poll, Polled, Refusal, Status};
use gristmill_model::{JobName, Visitation};

impl Handle<Poll> for Coordinator {
    async fn handle(&self, poll: &Poll) -> Result<Polled, Refusal> {
        let (job, from) = (&poll.job, poll.from);
        let (mut snapshot, PollItems { scale, progress: read, swept, first }) =
            self.poll_snapshot(job, Some(from)).await?;
        let before = snapshot.progress.delivered;
        if let Some(ack) = &poll.ack {
            snapshot.progress = self.acknowledge(job, &snapshot, read, ack).await?;
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
        let scan = self.scan(job, &item, &progress, progress.delivered).await?;
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
    /// Refuses a new run of the trainer that begins beyond all that was made; see [`steps::beginning`].
    pub(crate) async fn admit(
        &self,
        (job, item): (&JobName, &JobItem),
        progress: &JobProgress,
        start: &Ack,
    ) -> Result<(), Refusal> {
        if let Some(Unseen { from, most, to }) = steps::beginning(job, item, progress, start)? {
            let gap = self.committed((job, item), from, Vec::new(), most).await?.gap;
            steps::check_made(job, item, start, gap.map(|(gap, _)| gap), to)?;
        }
        Ok(())
    }

    /// Writes the trainer's progress. A new run of the trainer must be admitted first.
    async fn acknowledge(
        &self,
        job: &JobName,
        JobSnapshot { item, progress, .. }: &JobSnapshot,
        read: Versioned<JobProgress>,
        ack: &Ack,
    ) -> Result<JobProgress, Refusal> {
        self.admit((job, item), progress, ack).await?;
        let visitation = item.spec.settings.visitation;
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&JobProgress>| {
            let acked = match visitation {
                Visitation::AtMostOnce => splits::ack_at_most_once(before, ack, now_ms),
                Visitation::ExactlyOnce | Visitation::ZeroOnceOrMore => {
                    splits::ack(before, ack, now_ms)
                }
            };
            acked.map_err(Unchanged::Declined)
        };
        Ok(self.store.update_from(&ItemName::Progress(job), read, decide).await?)
    }
}
