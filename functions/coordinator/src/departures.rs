//! Workers that end: frees their bundles, and updates the scaler's state and the hints for claims.

use crate::{
    CallHandler, Splits,
    items::{ItemName, JobItem},
    scan::WindowScan,
    snapshot::JobSnapshot,
    store::{decode, unless_declined},
};
use gristmill_model::{
    InvocationId, JobName,
    splits::{
        self, Bundle, BundleState, deaths::silence_limit_ms, ranges::EpochBundle,
        window::WindowHints,
    },
    wire::{
        AppliedReply, CallRefusal, DepartedWorkers, LEFT_SHARD, LeaveCall, ReleaseCall, ScaleState,
    },
};
use std::collections::BTreeMap;

/// Dead invocations kept in the scaler's state: more than can have a claim in flight at one time.
const MAX_DEAD: usize = 8;

/// The leases that dead invocations lost.
#[derive(Debug, Default)]
struct Freed {
    invocations: Vec<InvocationId>,
    /// Bundles that are claimable at once. A bundle on trial waits for the next look, which allows one
    /// trial at a time.
    bundles: Vec<EpochBundle>,
}

impl CallHandler<ReleaseCall> for Splits {
    /// Frees the bundles of a dead invocation, and removes its worker from the scaler's state. An event that expired
    /// never held a bundle: only its departure is noted.
    async fn handle(&self, release: &ReleaseCall) -> Result<AppliedReply, CallRefusal> {
        let ReleaseCall { job, invocation, worker, blameless, expired, error } = release;
        if *expired {
            if let Some(worker) = worker {
                self.note_left(job, *worker, DepartedWorkers::with_expired).await?;
            }
            return Ok(AppliedReply {});
        }
        let JobSnapshot { item, progress, .. } = self.records.snapshot(job).await?;
        let scan = self.records.scan(job, &item, &progress, progress.horizon().slowest).await?;
        let dead = std::slice::from_ref(invocation);
        let freed = self.release_held(job, &item, &scan, dead, *blameless).await?;
        if !freed.invocations.is_empty() {
            self.note_freed(job, &freed.bundles).await?;
        }
        let leases = freed.invocations.len();
        tracing::info!(%job, invocation = %invocation.0, leases, "a dead worker was reported");
        if let Some(worker) = worker {
            let ended = (!blameless).then_some((scan.progress(&item), error.as_str()));
            self.remove_worker(job, *worker, Some(invocation), ended).await?;
        }
        Ok(AppliedReply {})
    }
}

impl CallHandler<LeaveCall> for Splits {
    async fn handle(&self, leave: &LeaveCall) -> Result<AppliedReply, CallRefusal> {
        let LeaveCall { job, worker, error, said } = leave;
        // First: a worker that is known to have left without a word has spent all it could.
        self.settle(job, *worker, *said).await?;
        let Some(error) = error else {
            self.note_left(job, *worker, DepartedWorkers::with).await?;
            return Ok(AppliedReply {});
        };
        let progress = self.records.snapshot(job).await?.hints().progress;
        self.remove_worker(job, *worker, None, Some((progress, error))).await?;
        Ok(AppliedReply {})
    }
}

impl Splits {
    /// Frees the bundles in `scan` that the `dead` invocations have leased.
    async fn release_held(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &WindowScan,
        dead: &[InvocationId],
        blameless: bool,
    ) -> Result<Freed, CallRefusal> {
        let mut freed = Freed::default();
        for bundle in &scan.bundles {
            let held = |b: &&Bundle| b.state == BundleState::Leased && dead.contains(&b.invocation);
            let Some(lease) = bundle.item.as_ref().filter(held) else { continue };
            let (invocation, attempt) = (&lease.invocation, Some(lease.attempt));
            let command = splits::ReleaseTransition { invocation, attempt, blameless };
            let name = item.bundle(job, bundle.epoch, bundle.index);
            let decide = |before: Option<&Bundle>| splits::release(before, &command);
            // On a refusal the bundle has moved on, so there is nothing to free.
            let released = self.records.store.update_from(&name, bundle.versioned(), decide).await;
            if unless_declined(released)?.is_some() {
                freed.invocations.push(invocation.clone());
                if !bundle.is_on_trial() {
                    freed.bundles.push((bundle.epoch, bundle.index));
                }
            }
        }
        Ok(freed)
    }

    /// Frees leases whose claim arrived after the worker was reported dead; returns whether there were any.
    /// A worker has at most one claim in flight, so each invocation is freed once: if the platform runs a
    /// duplicated event under the same name, that worker loses only one lease.
    pub(crate) async fn release_late_claims(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &WindowScan,
        dead: &[InvocationId],
    ) -> Result<bool, CallRefusal> {
        let released = self.release_held(job, item, scan, dead, false).await?.invocations;
        if released.is_empty() {
            return Ok(false);
        }
        let forget = |scale: &mut ScaleState| scale.dead.retain(|dead| !released.contains(dead));
        self.records.store.change_or_create(&ItemName::Scale(job), forget).await?;
        Ok(true)
    }

    /// Records that a worker has left in an item of its own, because thousands may leave within one second.
    async fn note_left(
        &self,
        job: &JobName,
        worker: u32,
        add: fn(DepartedWorkers, u32) -> DepartedWorkers,
    ) -> Result<(), CallRefusal> {
        let name = ItemName::Left(job, worker / LEFT_SHARD);
        let note = |left: &mut DepartedWorkers| *left = add(*left, worker);
        self.records.store.change_or_create(&name, note).await.map(|_| ())
    }

    /// The scaler's state without the workers that have left since it was written. A worker with a lease in
    /// `scan` has not left.
    pub(crate) async fn without_departed(
        &self,
        job: &JobName,
        mut scale: ScaleState,
        scan: &WindowScan,
    ) -> Result<ScaleState, CallRefusal> {
        let at_work = scan.workers_at_work(self.records.clock.now_ms());
        let shards = scale.outstanding.shards(|number| !at_work.contains(&number));
        let names: Vec<_> = shards.iter().map(|shard| ItemName::Left(job, *shard)).collect();
        let items = self.records.store.read_all_raw(&names).await?;
        let mut left = BTreeMap::new();
        for ((shard, name), item) in shards.into_iter().zip(&names).zip(items) {
            let bits = decode::<DepartedWorkers>(name, item.as_ref())?.item;
            left.extend(bits.map(|bits| (shard, bits)));
        }
        scale.outstanding.settle(&left);
        Ok(scale)
    }

    /// Adds freed bundles to the hints for later claims, and makes the next poll look again.
    pub(crate) async fn note_freed(
        &self,
        job: &JobName,
        bundles: &[EpochBundle],
    ) -> Result<(), CallRefusal> {
        let decide = |before: Option<&WindowHints>| {
            Ok::<_, CallRefusal>(WindowHints::freed(before, bundles))
        };
        self.records.store.update(&ItemName::WindowHints(job), decide).await?;
        Ok(())
    }

    /// Removes a worker that ended from the scaler's state, but remembers a dead invocation for a while.
    /// `ended` is the job's progress at that time, with the worker's error.
    async fn remove_worker(
        &self,
        job: &JobName,
        worker: u32,
        dead: Option<&InvocationId>,
        ended: Option<(u64, &str)>,
    ) -> Result<(), CallRefusal> {
        let now_ms = self.records.clock.now_ms();
        let remove = |scale: &mut ScaleState| {
            let is_news = dead.is_none_or(|dead| !scale.dead.contains(dead));
            if let Some((progress, error)) = ended.filter(|_| is_news) {
                scale.failed_workers.note(1, progress, now_ms, error);
            }
            scale.outstanding.retain(|number, _| number != worker);
            if let Some(ledger) = &mut scale.spending {
                ledger.lose(worker);
            }
            if let Some(dead) = dead.filter(|dead| !scale.dead.contains(dead)) {
                scale.dead.push(dead.clone());
                let excess = scale.dead.len().saturating_sub(MAX_DEAD);
                scale.dead.drain(..excess);
            }
        };
        self.records.store.change_or_create(&ItemName::Scale(job), remove).await.map(|_| ())
    }
}

/// Indices of bundles in `scan` whose workers have most likely died. Looks at the window have been regular
/// since `steady_since_ms`; before that, workers may have been silent because their calls were not answered.
pub(crate) fn silent_bundles(scan: &WindowScan, steady_since_ms: u64, now_ms: u64) -> Vec<usize> {
    // Bundles with commits are evidence of how long splits take.
    let committed = |bundle: &Bundle| bundle.entries.iter().flatten().count() as u64;
    let witnesses: Vec<_> = scan.items().filter(|bundle| committed(bundle) > 0).collect();
    let split_ms = |bundle: &&Bundle| bundle.times.total_ms() / committed(bundle);
    let longest_ms = witnesses.iter().map(split_ms).max().unwrap_or(0);
    let steady_ms = now_ms.saturating_sub(steady_since_ms);
    let is_silent = |bundle: &Bundle| {
        let limit_ms = silence_limit_ms(longest_ms, bundle.entries.len(), bundle.attempt);
        let Some(silence_limit_ms) = limit_ms else { return false };
        let last_contact_ms = bundle.last_contact_ms();
        let others_went_on = || {
            let is_other = |other: &Bundle| other.invocation != bundle.invocation;
            witnesses.iter().any(|other| is_other(other) && other.since_ms > last_contact_ms)
        };
        bundle.state == BundleState::Leased
            // A lease whose time is over can be claimed by others as it is.
            && bundle.until_ms > now_ms
            && now_ms.saturating_sub(last_contact_ms) > silence_limit_ms
            && steady_ms > silence_limit_ms
            && others_went_on()
    };
    let bundles = scan.bundles.iter().enumerate();
    bundles.filter(|(_, b)| b.item.as_ref().is_some_and(is_silent)).map(|(i, _)| i).collect()
}

impl Splits {
    /// Ends the leases of workers that have most likely died.
    pub(crate) async fn end_silent(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &mut WindowScan,
        steady_since_ms: u64,
    ) -> Result<(), CallRefusal> {
        let now_ms = self.records.clock.now_ms();
        for i in silent_bundles(scan, steady_since_ms, now_ms) {
            let bundle = &mut scan.bundles[i];
            let Some(seen) = &bundle.item else { continue };
            let command =
                splits::LapseTransition { attempt: seen.attempt, until_ms: seen.until_ms, now_ms };
            let name = item.bundle(job, bundle.epoch, bundle.index);
            let decide = |before: Option<&Bundle>| splits::lapse(before, &command);
            let lapsed =
                self.records.store.update_versioned(&name, bundle.versioned(), decide).await;
            // On a refusal the worker is alive or the bundle has moved on.
            if let Some((after, version)) = unless_declined(lapsed)? {
                let invocation = &after.invocation.0;
                tracing::info!(%job, invocation, "a worker is silent while others make progress");
                (bundle.version, bundle.item) = (version, Some(after));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "silence_tests.rs"]
mod silence_tests;
