//! The trainer's report: acknowledged, and answered with what is ready.

use crate::{
    Coordinator, Handle,
    coordinator::refuse,
    items::{ItemName, JobItem},
    kicks::window,
    snapshot::{Beside, Snapshot},
    store::{Versioned, invalid},
};
use futures::future::try_join;
use gristmill_model::splits::{self, Consumer, Cursor, Place, frontier::Frontier, job::JobState};
use gristmill_model::wire::{Ack, JobStatus, Poll, Polled, Refusal, RefusalKind, Status};
use gristmill_model::{JobName, Visitation};

/// Longest time between two looks of a trainer that polls.
const LOOK_EVERY_MS: u64 = 1_000;
/// The same where something has changed, so that workers are wanted or free.
const LOOK_SOON_MS: u64 = 100;

/// Whether a poll looks at the whole window: rarely where that is large.
fn is_look_due(snapshot: &Snapshot, (poll, has_moved): (&Poll, bool), now_ms: u64) -> bool {
    let Some(seen) = &snapshot.frontier.item else { return true };
    let item = &snapshot.item;
    let bundles = item.plan.map_or(item.n_files / 8, |plan| plan.window_splits / plan.r.max(1));
    let bundles = u64::from(bundles);
    // What ends the index is waited for, and where many work there is much to see. An index has no window: a look
    // at that of very many files reads all of it.
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
    // Only a look settles what is cached of an epoch, and the job may be over with that epoch.
    let unsettled = item.caching.as_ref().and_then(|caching| caching.view.unsettled);
    let is_passed = unsettled.is_some_and(|epoch| snapshot.consumer.durable.epoch >= epoch);
    age_ms >= every_ms || has_changed && age_ms >= soon_ms || is_asked || is_passed
}

impl Handle<Poll> for Coordinator {
    /// Answers a trainer's poll.
    async fn handle(&self, poll: &Poll) -> Result<Polled, Refusal> {
        let job = &poll.job;
        let from = Place { epoch: poll.from.0, position: poll.from.1 };
        let (mut snapshot, beside) = self.report(job, Some(from)).await?;
        let Beside { books, consumer: read, swept, first } = beside;
        let before = snapshot.consumer.delivered;
        if let Some(ack) = &poll.ack {
            self.check_beginning(job, &snapshot.item, &snapshot.consumer, ack).await?;
            let visitation = snapshot.item.spec.visitation;
            snapshot.consumer = self.acknowledge(job, visitation, (read, ack)).await?;
        }
        let has_moved = snapshot.consumer.delivered != before;
        let seen = match is_look_due(&snapshot, (poll, has_moved), self.clock.now_ms()) {
            true => self.look(poll, &mut snapshot, &books).await?,
            false => snapshot.hints(),
        };
        let is_running = snapshot.item.state == JobState::Running;
        if is_running {
            if snapshot.consumer.durable.epoch >= snapshot.item.spec.epochs {
                // A trainer that has gone back meanwhile keeps the job open; from now on none can.
                snapshot.consumer = self.move_horizon(job).await?;
            }
            let Snapshot { item, consumer, .. } = &snapshot;
            snapshot.item = self.close_epochs(job, item.clone(), consumer).await?;
        }
        let Snapshot { item, consumer, .. } = snapshot;
        // The splits that the trainer has passed are no part of what it asks for; one that asks for them is
        // finding its place again, and is not to wait for thousands of objects to be deleted.
        let collected = async {
            match is_running && from >= consumer.delivered {
                true => self.collect(job, &item, (consumer, swept)).await,
                false => Ok(()),
            }
        };
        let ((), ready) = try_join(collected, self.ready((job, &item), from, first)).await?;
        let now_ms = self.clock.now_ms();
        let head_waits = ready.gap.is_some_and(|(_, bundle)| bundle.is_claimable(now_ms));
        let Frontier { active, claimable, window, window_full, ahead, indexed, trouble, .. } = seen;
        Ok(Polled {
            job: item.view(job),
            generation: consumer.generation,
            ready: ready.entries,
            active_workers: active,
            claimable,
            window,
            window_full,
            ahead,
            head_waits: item.plan.is_none() || head_waits,
            indexed_files: if item.plan.is_none() { indexed } else { item.n_files },
            scale: books,
            trouble,
        })
    }
}

impl Handle<Status> for Coordinator {
    /// Read-only.
    async fn handle(&self, Status { job }: &Status) -> Result<JobStatus, Refusal> {
        let (Snapshot { item, consumer, .. }, Beside { books: scale, .. }) =
            self.report(job, None).await?;
        let delivered = (consumer.delivered.epoch, consumer.delivered.position);
        let scan = self.scan(job, &item, &consumer, consumer.delivered).await?;
        let scale = self.settled(job, scale, &scan).await?;
        let window = window(&item, &scale);
        let scan = scan.within(window);
        let now_ms = self.clock.now_ms();
        let planned = item.plan.is_some();
        Ok(JobStatus {
            job: item.view(job),
            delivered,
            durable: (consumer.durable.epoch, consumer.durable.g),
            heartbeat_ms: consumer.heartbeat_ms,
            window,
            ready: if planned { scan.ahead.ready as u32 } else { 0 },
            claimable: if item.state.is_ended() { 0 } else { scan.claimable(now_ms) },
            active_workers: scan.active_workers(now_ms),
            indexed_files: if planned { item.n_files } else { scan.done() },
            trouble: self.trouble(&item, &scale, &scan),
            scale,
            profile: self.profile(job).await?,
        })
    }
}

impl Coordinator {
    /// Refuses a run of the trainer that says it had more than was ever made: its checkpoint is of another
    /// run, and batches that it never saw would be missing without a word.
    async fn check_beginning(
        &self,
        job: &JobName,
        item: &JobItem,
        consumer: &Consumer,
        ack: &Ack,
    ) -> Result<(), Refusal> {
        let (Some(plan), true) = (item.plan, ack.generation > consumer.generation) else {
            return Ok(());
        };
        if item.state == JobState::Done && ack.durable.0 < item.spec.epochs {
            return Err(Refusal {
                kind: RefusalKind::Collected,
                message: format!(
                    "job {job} is done: all its batches were delivered and acknowledged; train again under \
                     another job name"
                ),
            });
        }
        let beyond = |made: Place| {
            invalid(format!(
                "a trainer that goes on at batch {} of epoch {} has had batches that were never made: job \
                 {job} has made splits up to {} of epoch {}; its checkpoint is of another run: begin without it",
                ack.durable.1, ack.durable.0, made.position, made.epoch
            ))
        };
        let n = plan.n_splits.max(1);
        let end = Place { epoch: ack.delivered.0, position: ack.delivered.1 };
        let to = end.linear(n);
        let run = u64::from(item.spec.epochs) * u64::from(n);
        if to > run || ack.durable.0 > item.spec.epochs {
            return Err(beyond(consumer.delivered));
        }
        let delivered = consumer.delivered;
        let Some(more) = to.checked_sub(delivered.linear(n)).filter(|more| *more > 0) else {
            return Ok(());
        };
        // The window follows `delivered`, which an older checkpoint sets back: more may have been made.
        let most = usize::try_from(more).unwrap_or(usize::MAX);
        match self.committed((job, item), delivered, Vec::new(), most).await?.gap {
            Some((gap, _)) if gap < to => Err(beyond(Place::of(gap, n))),
            _ => Ok(()),
        }
    }

    async fn acknowledge(
        &self,
        job: &JobName,
        visitation: Visitation,
        (read, ack): (Versioned<Consumer>, &Ack),
    ) -> Result<Consumer, Refusal> {
        let place = |(epoch, position)| Place { epoch, position };
        let command = splits::Ack {
            generation: ack.generation,
            over: ack.over,
            delivered: place(ack.delivered),
            durable: Cursor { epoch: ack.durable.0, g: ack.durable.1 },
            durable_place: place(ack.durable_position),
            now_ms: self.clock.now_ms(),
        };
        let decide = |before: Option<&Consumer>| match visitation {
            Visitation::AtMostOnce => splits::ack_at_most_once(before, &command),
            Visitation::ExactlyOnce | Visitation::ZeroOnceOrMore => splits::ack(before, &command),
        };
        let acked = self.store.update_from(&ItemName::Consumer(job), read, decide).await?;
        acked.map_err(|refusal| refuse(&refusal))
    }
}
