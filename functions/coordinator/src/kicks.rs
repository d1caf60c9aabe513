//! Kicks of the scaler: sent when there is more work than the outstanding workers will take.

use crate::{
    CoordinatorSettings,
    items::JobItem,
    scan::{self, WindowScan},
    spending::budget_facts,
    trouble,
};
use bytes::Bytes;
use gristmill_model::splits::{JobProgress, window::window_splits};
use gristmill_model::wire::{PollCall, ScaleState, ScalerEvent, protocol};
use gristmill_model::{JobName, Namespace};
use gristmill_ports::Invoker;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// Shortest time between two kicks of one job, unless the scaler's item has changed since.
const APART_MS: u64 = 1_000;

/// The latest kick of each job by this process.
#[derive(Debug, Default)]
struct LatestKicks(Mutex<BTreeMap<JobName, Kick>>);

#[derive(Debug)]
struct Kick {
    at_ms: u64,
    /// The scaler's item before the kick.
    scale: ScaleState,
    /// Error, if the scaler could not be invoked.
    error: Option<String>,
}

impl LatestKicks {
    /// The result of the latest kick, if it is so recent that another one must wait.
    fn recent(&self, job: &JobName, scale: &ScaleState, now_ms: u64) -> Option<Option<String>> {
        let latest = self.0.lock();
        let kick = latest.get(job)?;
        let recent = now_ms.abs_diff(kick.at_ms) < APART_MS && kick.scale == *scale;
        recent.then(|| kick.error.clone())
    }

    fn note(&self, job: &JobName, scale: &ScaleState, now_ms: u64, error: Option<String>) {
        let mut latest = self.0.lock();
        latest.retain(|_, kick| now_ms.abs_diff(kick.at_ms) < APART_MS);
        latest.insert(job.clone(), Kick { at_ms: now_ms, scale: scale.clone(), error });
    }
}

/// A worker that was invoked this long ago and has no current or recent lease is presumed gone: its event
/// or its Leave call was lost. Until then, its event may wait for an environment: it expires after 60 s, and Lambda adds
/// a hundred environments a second. A worker replaced by mistake leaves as surplus.
const SILENT_MS: u64 = 70_000;

/// An event about a job of which only its record and progress are known. An ended job wants no workers.
pub(crate) fn scaler_event(
    ns: &Namespace,
    job: &JobName,
    item: &JobItem,
    progress: &JobProgress,
    at_ms: u64,
) -> ScalerEvent {
    let epoch = progress.horizon().slowest.epoch;
    ScalerEvent {
        v: item.protocol,
        ns: ns.clone(),
        job: job.clone(),
        claimable: 0,
        silent: Vec::new(),
        wanted: if item.state.is_ended() { 0 } else { item.spec.most_workers() },
        autoscale: item.spec.autoscale,
        policy: item.spec.policy.clone(),
        budget_workers: item.spec.budget_workers,
        budget: budget_facts(item, progress),
        max_local: item.spec.decides_placement().then_some(progress.local_workers),
        batches_left: batches_left(item, progress),
        training: None,
        mode: item.caching.as_ref().map_or(0, |caching| caching.mode_number(epoch)),
        is_passing: item.caching.as_ref().is_some_and(|caching| caching.is_passing(epoch)),
        pipeline: Some(item.spec.pipeline_fingerprint()),
        epoch,
        batches: 0,
        progress: 0,
        at_ms,
    }
}

/// Batches of the whole run that the trainer has not taken in, as planned.
fn batches_left(item: &JobItem, progress: &JobProgress) -> u64 {
    item.plan.map_or(0, |plan| {
        let splits = item.run().saturating_sub(progress.delivered.linear(plan.n_splits));
        splits.saturating_mul(plan.split_batches().into())
    })
}

/// Outstanding workers without a current or recent lease, [`SILENT_MS`] after they were invoked.
pub(crate) fn silent_workers(scale: &ScaleState, scan: &WindowScan, now_ms: u64) -> Vec<u32> {
    let recent = scan.workers_with_recent_lease(now_ms);
    let silent = |&(worker, sent_ms): &(u32, u64)| {
        now_ms.saturating_sub(sent_ms) > SILENT_MS && !recent.contains(&worker)
    };
    scale.outstanding.iter().filter(silent).map(|(worker, _)| worker).collect()
}

/// Number of remote workers that a job should have while there is work.
pub(crate) fn target(item: &JobItem, scale: &ScaleState) -> u32 {
    // Before the first decision, the scaler chooses the initial number.
    let most = item.spec.most_workers();
    let is_decided = scale.target > 0 || scale.local.is_some() && item.spec.decides_placement();
    if item.spec.autoscale && is_decided { scale.target.min(most) } else { most }
}

/// Window for the target number of workers, in splits ahead of the trainer, as claims apply it.
pub(crate) fn window(item: &JobItem, progress: &JobProgress, scale: &ScaleState) -> u32 {
    let Some(plan) = item.plan else { return 0 };
    let fixed = item.spec.local_share.map(|_| item.spec.settings.local_workers);
    let local = fixed.or(scale.local.filter(|_| item.spec.decides_placement()));
    let workers = target(item, scale).saturating_add(local.unwrap_or(progress.local_workers));
    let splits = window_splits(workers, plan.max_bundle_splits);
    let window = scan::window(item, progress, splits).map_or(0, |window| window.splits());
    u32::try_from(window).unwrap_or(u32::MAX)
}

/// `event` with what it says of a job that has more work than the outstanding workers will take; none if they are enough.
pub(crate) fn lacks_workers(
    event: ScalerEvent,
    item: &JobItem,
    scale: &ScaleState,
    scan: &WindowScan,
) -> Option<ScalerEvent> {
    let now_ms = event.at_ms;
    let silent = silent_workers(scale, scan, now_ms);
    let living = scale.outstanding.len().saturating_sub(silent.len() as u32);
    let (claimable, progress) = (scan.claimable(now_ms), scan.progress(item));
    let needs_workers = !item.state.is_ended()
        && !trouble::resting(&scale.failed_workers, progress, now_ms)
        && claimable > 0
        && living < scale.attainable(target(item, scale), now_ms)
        && (scan.is_head_of_line_blocked(now_ms) || scan.needs_workers(living > 0));
    needs_workers.then_some(ScalerEvent { claimable, silent, progress, ..event })
}

/// The kick that a poll causes: the trainer's report if the policy may decide, otherwise a lack of workers.
pub(crate) fn kick_due(
    ns: &Namespace,
    poll: &PollCall,
    item: &JobItem,
    scale: &ScaleState,
    scan: &WindowScan,
    trainers: &JobProgress,
    now_ms: u64,
) -> Option<ScalerEvent> {
    let progress = scan.progress(item);
    let epoch = trainers.horizon().slowest.epoch;
    let held = item.caching.as_ref().is_some_and(|caching| caching.holds_scaling(epoch));
    let decides = item.spec.autoscale
        && !held
        && !scan.has_nothing_left(now_ms)
        && !item.state.is_ended()
        && !trouble::resting(&scale.failed_workers, progress, now_ms);
    let event = scaler_event(ns, &poll.job, item, trainers, now_ms);
    let Some(training) = poll.training.filter(|_| decides) else {
        let event = ScalerEvent { batches: poll.metrics.batches, ..event };
        return lacks_workers(event, item, scale, scan);
    };
    let claimable = scan.claimable(now_ms);
    let silent = if claimable == 0 { Vec::new() } else { silent_workers(scale, scan, now_ms) };
    let (batches, training) = (training.batches, Some(training));
    Some(ScalerEvent { claimable, silent, batches, progress, training, ..event })
}

#[derive(Clone)]
pub(crate) struct ScalerKicks {
    invoker: Arc<dyn Invoker>,
    settings: Arc<CoordinatorSettings>,
    latest: Arc<LatestKicks>,
}

impl ScalerKicks {
    /// No kick has been sent yet.
    pub fn new(invoker: Arc<dyn Invoker>, settings: Arc<CoordinatorSettings>) -> Self {
        Self { invoker, settings, latest: Arc::default() }
    }

    /// Sends the scaler an event; `scale` is the scaler's item. Best effort: the next poll repeats it. Returns the
    /// error if the scaler cannot be invoked.
    pub(crate) async fn kick(&self, scale: &ScaleState, event: ScalerEvent) -> Option<String> {
        if event.wanted == 0 {
            return None;
        }
        let (job, now_ms) = (&event.job.clone(), event.at_ms);
        if let Some(answer) = self.latest.recent(job, scale, now_ms) {
            return answer;
        }
        // A job of a stack that was replaced by the one before may have a newer version.
        let event = ScalerEvent { v: self.settings.spoken.nearest(event.v), ..event };
        let payload = match protocol::write(&event, event.v) {
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
        self.latest.note(job, scale, now_ms, error.clone());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::running_job, scan::WorkableRange};
    use gristmill_model::RunToken;
    use gristmill_model::splits::{
        Cursor,
        ranks::{RunRanks, TailPolicy},
        run::TrainingRun,
    };
    use std::num::NonZeroU32;

    #[test]
    fn kicks_and_claims_have_one_window_for_any_number_of_ranks() {
        let (item, scale) = (running_job(), ScaleState::default());
        let windows = |ranks: u32| {
            let count = NonZeroU32::new(ranks).unwrap();
            let ranks = RunRanks::new(count, Cursor::default(), TailPolicy::Drop);
            let run = Some(TrainingRun { token: RunToken::from_name("run"), ranks, epochs: None });
            let progress = JobProgress { run, ..JobProgress::default() };
            let kicks = window(&item, &progress, &scale);
            (kicks, WorkableRange::new(&item, &progress, kicks).end)
        };
        assert_eq!(windows(1), (36, 36), "three bundles for each of two workers, and for one more");
        assert_eq!(windows(2), (36, 36), "four steps are eight splits");
        assert_eq!(windows(16), (72, 72), "two bundles, and four steps of 16 splits");
        assert_eq!(window(&item, &JobProgress::default(), &scale), 36);
        let indexing = crate::fixtures::indexing_job();
        assert_eq!(window(&indexing, &JobProgress::default(), &scale), 0);
    }

    #[test]
    fn no_remote_worker_is_wanted_if_local_ones_suffice() {
        let mut item = running_job();
        (item.spec.workers, item.spec.autoscale, item.spec.auto_placement) = (16, true, true);
        let progress = JobProgress { local_workers: 32, ..JobProgress::default() };
        let windows = |scale: &ScaleState| window(&item, &progress, scale);
        let undecided = ScaleState::default();
        assert_eq!(target(&item, &undecided), 16, "the scaler has not begun");
        let local = ScaleState { local: Some(3), ..undecided.clone() };
        assert_eq!(target(&item, &local), 0);
        let remote = ScaleState { target: 3, local: Some(0), ..undecided };
        assert_eq!(target(&item, &remote), 3);
        assert_eq!(windows(&local), windows(&remote), "workers are workers");
        let event = scaler_event(&"a".parse().unwrap(), &"j".parse().unwrap(), &item, &progress, 0);
        let plan = item.plan.unwrap();
        let batches = item.run() * u64::from(plan.split_batches());
        assert_eq!((event.max_local, event.batches_left), (Some(32), batches));
        item.spec.auto_placement = false;
        assert_eq!(scaler_event(&event.ns, &event.job, &item, &progress, 0).max_local, None);
    }

    #[test]
    fn a_job_is_kicked_once_a_second_unless_the_scaler_has_done_something() {
        let kicks = LatestKicks::default();
        let (job, other) = ("a".parse::<JobName>().unwrap(), "b".parse::<JobName>().unwrap());
        let idle = ScaleState::default();
        assert_eq!(kicks.recent(&job, &idle, 5_000), None);
        kicks.note(&job, &idle, 5_000, Some("no room".into()));
        assert_eq!(kicks.recent(&job, &idle, 5_999), Some(Some("no room".into())));
        assert_eq!(kicks.recent(&other, &idle, 5_100), None);
        assert_eq!(kicks.recent(&job, &idle, 6_000), None);
        let ran = ScaleState { target: 1, ..idle };
        assert_eq!(kicks.recent(&job, &ran, 5_100), None);
        kicks.note(&other, &ran, 9_000, None);
        assert_eq!(kicks.0.lock().len(), 1, "those that are over are forgotten");
    }
}
