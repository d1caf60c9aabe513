//! The trainer's report: acknowledged, answered with what is ready, and turned into a kick of the
//! scaler when work waits for workers.

use crate::{
    Coordinator,
    coordinator::refuse,
    items::{ItemName, JobItem},
    scan::Scan,
    store::{decode, invalid},
    trouble,
};
use bytes::Bytes;
use gristmill_protocol::{
    Ack, JobStatus, Poll, Polled, Refusal, RefusalKind, Reply, ScaleState, ScalerEvent,
    TrainingReport, VERSION,
};
use gristmill_splits::{
    self as splits, Consumer, Cursor, Place,
    job::{JobEvent, JobState},
};
use gristmill_types::{Epoch, JobName, Visitation};

/// A worker that was invoked this long ago and has no lease, nor had one lately, is gone: its event was
/// lost, or the word that it left. Above a cold start; one too many leaves as surplus.
const SILENT_MS: u64 = 20_000;

/// What the scaler is told of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Positions that may be claimed.
    pub claimable: u32,
    /// Workers on the books that nothing has been heard of.
    pub silent: Vec<u32>,
    /// Batches delivered so far.
    pub batches: u64,
    /// The epoch that is delivered.
    pub epoch: Epoch,
    /// Splits committed so far.
    pub progress: u64,
}

/// Workers on the books that nothing has been heard of for too long.
fn silent_workers(scale: &ScaleState, scan: &Scan, now_ms: u64) -> Vec<u32> {
    let heard = scan.workers_heard(now_ms);
    let silent = |&&(worker, sent_ms): &&(u32, u64)| {
        now_ms.saturating_sub(sent_ms) > SILENT_MS && !heard.contains(&worker)
    };
    scale.outstanding.iter().filter(silent).map(|(worker, _)| *worker).collect()
}

/// How many workers a job is to have while there is work.
pub(crate) fn wanted(item: &JobItem, scale: &ScaleState) -> u32 {
    match item.spec.autoscale {
        false => item.spec.workers,
        // Before anything is decided the scaler knows how many to begin with.
        true if scale.target == 0 => item.spec.workers,
        true => scale.target.min(item.spec.workers),
    }
}

/// Whether work waits that those on the books cannot be expected to take.
fn needs_workers(
    item: &JobItem,
    scale: &ScaleState,
    scan: &Scan,
    silent: &[u32],
    now_ms: u64,
) -> bool {
    if trouble::resting(&scale.barren, scan.progress(item), now_ms) {
        return false;
    }
    let living = scale.outstanding.len().saturating_sub(silent.len()) as u32;
    scan.claimable(now_ms) > 0
        && living < wanted(item, scale)
        && (scan.head_waits(now_ms) || scan.wants_workers(living > 0))
}

impl Coordinator {
    /// Answers a trainer's poll.
    pub(crate) async fn poll(&self, poll: &Poll) -> Result<Reply, Refusal> {
        let job = &poll.job;
        let (mut item, mut consumer, scale) = self.load(job).await?;
        if let Some(ack) = &poll.ack {
            self.check_beginning(job, &item, &consumer, ack).await?;
            consumer = self.acknowledge(job, item.spec.visitation, ack).await?;
        }
        let skips = self.skips(job, &item).await?;
        let counted =
            skips.as_ref().map(|read| read.item.as_ref().map_or(Place::default(), |s| s.before));
        let asked = Place { epoch: poll.from.0, position: poll.from.1 };
        let stretch = (counted.map_or(asked, |counted| asked.min(counted)), asked);
        let mut scan = self.scan(job, &item, &consumer, stretch).await?;
        let indexed_files = if item.plan.is_none() { scan.done() } else { item.n_files };
        if item.state == JobState::Indexing && indexed_files == item.n_files {
            item = self.finish_indexing(job, &item, &scan).await?;
            scan = self.scan(job, &item, &consumer, stretch).await?;
        }
        // Whoever gave the bundle up may have died before it could end the job.
        if let Some(error) = scan.given_up().filter(|_| !item.state.is_ended()) {
            self.end_job(job, &JobEvent::Failed { error }).await?;
        }
        if item.caching.as_ref().is_some_and(|caching| caching.view.unsettled.is_some()) {
            let settled = self.settle_caching(job, item.clone(), &scan).await?;
            if settled != item {
                scan = self.scan(job, &settled, &consumer, stretch).await?;
            }
            item = settled;
        }
        if item.state == JobState::Running {
            if consumer.durable.epoch >= item.spec.epochs {
                // A trainer that has gone back meanwhile keeps the job open; from now on none can.
                consumer = self.move_horizon(job).await?;
            }
            item = self.close_epochs(job, item, &consumer).await?;
            self.collect(job, &item, consumer).await?;
        }
        if let Some(read) = skips.filter(|_| item.state == JobState::Running)
            && let Some(error) = self.count_skipped(job, &item, (&scan, &consumer), read).await?
        {
            self.end_job(job, &JobEvent::Failed { error }).await?;
            item = self.job(job).await?;
        }
        if self.release_late_claims(job, &scan, &scale.dead).await? {
            scan = self.scan(job, &item, &consumer, stretch).await?;
        }
        let now_ms = self.clock.now_ms();
        let (claimable, active) = (scan.claimable(now_ms), scan.active_workers(now_ms));
        let epoch = consumer.delivered.epoch;
        let held = item.caching.as_ref().is_some_and(|caching| caching.holds_scaling(epoch));
        let heeds = item.spec.autoscale && !held && !item.state.is_ended();
        let progress = scan.progress(&item);
        let heeds = heeds && !trouble::resting(&scale.barren, progress, now_ms);
        let not_kicked = match poll.report.filter(|_| heeds) {
            Some(report) => {
                let batches = report.batches;
                let silent = match claimable {
                    0 => Vec::new(),
                    _ => silent_workers(&scale, &scan, now_ms),
                };
                let seen = Seen { claimable, silent, batches, epoch, progress };
                self.kick(job, &item, (&scale, seen), Some(report)).await
            }
            None => {
                let at = (poll.metrics.batches, epoch);
                self.kick_if_needed(job, &item, &scale, &scan, at).await
            }
        };
        let trouble = self.trouble(&item, &scale, &scan).or(not_kicked);
        if let Some(error) = trouble::given_up(&self.settings.patience, &scale.barren, progress)
            && !item.state.is_ended()
        {
            self.end_job(job, &JobEvent::Failed { error }).await?;
            item = self.job(job).await?;
        }
        Ok(Reply::Polled(Polled {
            job: item.view(job),
            generation: consumer.generation,
            ready: if item.plan.is_some() { scan.ready(poll.from) } else { Vec::new() },
            active_workers: active,
            claimable,
            window_full: scan.window_full(now_ms, claimable),
            ahead: scan.positions_ahead(),
            head_waits: item.plan.is_none() || scan.head_waits(now_ms),
            indexed_files,
            scale,
            trouble,
        }))
    }

    /// Where a job stands, read and nothing else.
    pub(crate) async fn status(&self, job: &JobName) -> Result<Reply, Refusal> {
        let (item, consumer, scale) = self.load(job).await?;
        let delivered = (consumer.delivered.epoch, consumer.delivered.position);
        let scan =
            self.scan(job, &item, &consumer, (consumer.delivered, consumer.delivered)).await?;
        let now_ms = self.clock.now_ms();
        let planned = item.plan.is_some();
        Ok(Reply::Status(JobStatus {
            job: item.view(job),
            delivered,
            durable: (consumer.durable.epoch, consumer.durable.g),
            heartbeat_ms: consumer.heartbeat_ms,
            ready: if planned { scan.ready(delivered).len() as u32 } else { 0 },
            claimable: if item.state.is_ended() { 0 } else { scan.claimable(now_ms) },
            active_workers: scan.active_workers(now_ms),
            indexed_files: if planned { item.n_files } else { scan.done() },
            trouble: self.trouble(&item, &scale, &scan),
            scale,
            profile: self.profile(job).await?,
        }))
    }

    pub(crate) async fn load(
        &self,
        job: &JobName,
    ) -> Result<(JobItem, Consumer, ScaleState), Refusal> {
        let names = [ItemName::Job(job), ItemName::Consumer(job), ItemName::Scale(job)];
        let items = self.store.read_raw(&names).await?;
        let [job_item, consumer, scale] = items.as_slice() else {
            return Err(invalid("the table answered another number of items than asked for"));
        };
        let item = decode::<JobItem>(&names[0], job_item.as_ref())?.item;
        let item = item.ok_or_else(|| crate::coordinator::no_job(job))?;
        let consumer = decode::<Consumer>(&names[1], consumer.as_ref())?.item;
        let scale = decode::<ScaleState>(&names[2], scale.as_ref())?.item;
        Ok((item, consumer.unwrap_or_default(), scale.unwrap_or_default()))
    }

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
        let mut place = consumer.delivered;
        if to <= place.linear(n) {
            return Ok(());
        }
        // The window follows `delivered`, which an older checkpoint sets back: more may have been made.
        let scan = self.scan(job, item, consumer, (end, end)).await?;
        let caching = item.caching.as_ref().map(|caching| &caching.view);
        let made = scan.ready((place.epoch, place.position));
        let mut made = made.iter().map(|entry| (entry.epoch, entry.position)).peekable();
        while place.linear(n) < to {
            let at = (place.epoch, place.position);
            let is_cached = caching.is_some_and(|c| c.delivered_shelf(place.epoch).is_some());
            let next_epoch = Place { epoch: place.epoch + 1, position: 0 };
            place = match is_cached {
                true => next_epoch,
                false if made.next_if_eq(&at).is_none() => return Err(beyond(place)),
                false if place.position + 1 == n => next_epoch,
                false => Place { position: place.position + 1, ..place },
            };
        }
        Ok(())
    }

    async fn acknowledge(
        &self,
        job: &JobName,
        visitation: Visitation,
        ack: &Ack,
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
        let acked = self.store.update(&ItemName::Consumer(job), decide).await?;
        acked.map_err(|refusal| refuse(&refusal))
    }

    /// Asks the scaler to look at a job that lacks workers. Says why it cannot.
    pub(crate) async fn kick_if_needed(
        &self,
        job: &JobName,
        item: &JobItem,
        scale: &ScaleState,
        scan: &Scan,
        (batches, epoch): (u64, Epoch),
    ) -> Option<String> {
        let now_ms = self.clock.now_ms();
        let silent = silent_workers(scale, scan, now_ms);
        if item.state.is_ended() || !needs_workers(item, scale, scan, &silent, now_ms) {
            return None;
        }
        let (claimable, progress) = (scan.claimable(now_ms), scan.progress(item));
        let seen = Seen { claimable, silent, batches, epoch, progress };
        self.kick(job, item, (scale, seen), None).await
    }

    /// Asks the scaler to look at a job whose item of the scaler is `scale`. Best effort: the next report asks
    /// again. Says why it cannot.
    pub(crate) async fn kick(
        &self,
        job: &JobName,
        item: &JobItem,
        (scale, seen): (&ScaleState, Seen),
        report: Option<TrainingReport>,
    ) -> Option<String> {
        if item.spec.workers == 0 || item.state.is_ended() {
            return None;
        }
        let now_ms = self.clock.now_ms();
        if let Some(answer) = self.kicks.recent(job, scale, now_ms) {
            return answer;
        }
        let event = ScalerEvent {
            v: VERSION,
            ns: self.settings.ns.clone(),
            job: job.clone(),
            claimable: seen.claimable,
            silent: seen.silent,
            wanted: item.spec.workers,
            autoscale: item.spec.autoscale,
            budget_workers: item.spec.budget_workers,
            report,
            mode: item.caching.as_ref().map_or(0, |caching| caching.mode_number(seen.epoch)),
            batches: seen.batches,
            progress: seen.progress,
            at_ms: now_ms,
        };
        let payload = match serde_json::to_vec(&event) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => return Some(format!("cannot encode a scaler event: {error}")),
        };
        let error = match self.invoker.invoke(&self.settings.scaler_function, payload).await {
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%job, %error, "cannot kick the scaler");
                Some(format!("no workers are started: {error}; it is tried again every second"))
            }
        };
        self.kicks.note(job, scale, now_ms, error.clone());
        error
    }
}
