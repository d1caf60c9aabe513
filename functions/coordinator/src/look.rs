//! A look at the whole window of a job: updates the job's state, and leaves hints for the calls that do not
//! read the window.

use crate::{
    Coordinator,
    items::{ItemName, JobItem, ScaleState},
    kicks::{kick_due, target, window},
    scan::Scan,
    snapshot::JobSnapshot,
    trouble,
};
use gristmill_model::JobName;
use gristmill_model::splits::{
    Consumer, Place,
    course::BundleAt,
    frontier::{Frontier, MOST_RETURNED},
    job::{JobEvent, JobState},
};
use gristmill_model::wire::{Poll, Refusal};
use std::collections::BTreeMap;

/// Looks further apart than this are not regular: between them, workers' calls may not have been answered.
const LOOKS_APART_MS: u64 = 3_000;

impl Coordinator {
    /// Reads the window, updates the job's state, kicks the scaler if needed, and writes the hints.
    pub(crate) async fn look(
        &self,
        poll: &Poll,
        snapshot: &mut JobSnapshot,
        scale: &ScaleState,
    ) -> Result<Frontier, Refusal> {
        let job = &poll.job;
        let JobSnapshot { item, consumer, frontier } = snapshot;
        let mut scan = self.scan_moving_on(job, item, consumer).await?;
        let window = window(item, scale);
        if self.release_late_claims((job, item), &scan, &scale.dead).await? {
            scan = self.scan(job, item, consumer, consumer.delivered).await?;
        }
        let mut scan = scan.within(window);
        let steady_since_ms = steady_since(frontier.item.as_ref(), self.clock.now_ms());
        self.end_overdue((job, item), &mut scan, steady_since_ms).await?;
        let scale = &self.settled(job, scale.clone(), &scan).await?;
        let epoch = consumer.delivered.epoch;
        let kick = kick_due(poll, item, scale, &scan, epoch, self.clock.now_ms());
        let not_kicked = match kick {
            Some(seen) => self.kick(job, item, scale, seen).await,
            None => None,
        };
        let progress = scan.progress(item);
        let given_up = trouble::given_up(&self.settings.patience, &scale.barren, progress);
        if let Some(error) = given_up.filter(|_| !item.state.is_ended()) {
            self.end_job(job, &JobEvent::Failed { error }).await?;
            *item = self.job(job).await?;
        }
        let seen = Frontier {
            trouble: trouble::trouble(&self.settings, item, scale, &scan).or(not_kicked),
            window,
            steady_since_ms,
            ..seen(item, scale, &scan, self.clock.now_ms())
        };
        let read = frontier.item.clone();
        let decide = |before: Option<&Frontier>| seen.clone().looked(read.as_ref(), before);
        let name = ItemName::Frontier(job);
        Ok(self.store.update_hint(&name, frontier.clone(), decide).await)
    }

    /// Reads the window and applies what it shows: a complete index, a bundle that was given up, a caching
    /// mode to settle, too many skipped records.
    async fn scan_moving_on(
        &self,
        job: &JobName,
        item: &mut JobItem,
        consumer: &Consumer,
    ) -> Result<Scan, Refusal> {
        let skips = self.skips(job, item).await?;
        let counted =
            skips.as_ref().map(|read| read.item.as_ref().map_or(Place::default(), |s| s.before));
        let from = counted.map_or(consumer.delivered, |counted| consumer.delivered.min(counted));
        let mut scan = self.scan(job, item, consumer, from).await?;
        if item.state == JobState::Indexing && scan.done() == item.n_files {
            *item = self.finish_indexing(job, item, &scan).await?;
            scan = self.scan(job, item, consumer, from).await?;
        }
        // The call that gave the bundle up may have died before it ended the job.
        if let Some(error) = scan.given_up().filter(|_| !item.state.is_ended()) {
            self.end_job(job, &JobEvent::Failed { error }).await?;
        }
        if item.caching.as_ref().is_some_and(|caching| caching.view.unsettled.is_some()) {
            let settled = self.settle_caching(job, item.clone(), &scan).await?;
            if settled != *item {
                scan = self.scan(job, &settled, consumer, from).await?;
            }
            *item = settled;
        }
        if let Some(read) = skips.filter(|_| item.state == JobState::Running)
            && let Some(error) = self.count_skipped(job, item, (&scan, consumer), read).await?
        {
            self.end_job(job, &JobEvent::Failed { error }).await?;
            *item = self.job(job).await?;
        }
        Ok(scan)
    }
}

/// Time since which looks have been regular.
fn steady_since(last: Option<&Frontier>, now_ms: u64) -> u64 {
    let last = last.filter(|last| now_ms.abs_diff(last.at_ms) < LOOKS_APART_MS);
    last.map_or(now_ms, |last| last.steady_since_ms)
}

/// The hints that `scan` gives.
fn seen(item: &JobItem, scale: &ScaleState, scan: &Scan, now_ms: u64) -> Frontier {
    let claimable = scan.claimable(now_ms);
    let mut seen = Frontier {
        at_ms: now_ms,
        delivered: scan.ahead.delivered,
        returned: returned(scan, item.partitions(), now_ms),
        claimable,
        ready_bytes: scan.ahead.ready_bytes,
        ahead: scan.positions_ahead(),
        window_full: scan.window_full(now_ms, claimable),
        active: scan.active_workers(now_ms),
        progress: scan.progress(item),
        indexed: if item.plan.is_none() { scan.done() } else { 0 },
        ..Frontier::default()
    };
    seen.note_workers(scan.remote_workers(now_ms), target(item, scale));
    seen
}

/// Claimable bundles that lie before the end of their partition, where a claim does not find them.
fn returned(scan: &Scan, partitions: u32, now_ms: u64) -> Vec<BundleAt> {
    let mut ends = BTreeMap::new();
    for bundle in scan.bundles.iter().filter(|bundle| bundle.item.is_some()) {
        ends.insert((bundle.epoch, bundle.index % partitions), bundle.index);
    }
    let candidates = scan.candidates(now_ms).map(|bundle| (bundle.epoch, bundle.index));
    let is_behind = |&(epoch, index): &BundleAt| {
        ends.get(&(epoch, index % partitions)).is_some_and(|end| index <= *end)
    };
    candidates.filter(is_behind).take(MOST_RETURNED).collect()
}
