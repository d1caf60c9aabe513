//! Kicks of the scaler: work waits that those on the books cannot be expected to take.

use crate::{Coordinator, items::JobItem, plans::window_of, scan::Scan, trouble};
use bytes::Bytes;
use gristmill_model::wire::{ScaleState, ScalerEvent, TrainingReport, VERSION};
use gristmill_model::{Epoch, JobName};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Least time between two kicks of one job, unless the scaler did something in between.
const APART_MS: u64 = 1_000;

/// The latest kick of each job, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Kicks {
    latest: Mutex<BTreeMap<JobName, Kick>>,
}

#[derive(Debug)]
struct Kick {
    at_ms: u64,
    /// The scaler's item before it.
    scale: ScaleState,
    /// Why the scaler could not be kicked.
    error: Option<String>,
}

impl Kicks {
    /// Whether another kick has to wait: the answer to the latest then.
    pub(crate) fn recent(
        &self,
        job: &JobName,
        scale: &ScaleState,
        now_ms: u64,
    ) -> Option<Option<String>> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let kick = latest.get(job)?;
        let recent = now_ms.abs_diff(kick.at_ms) < APART_MS && kick.scale == *scale;
        recent.then(|| kick.error.clone())
    }

    pub(crate) fn note(
        &self,
        job: &JobName,
        scale: &ScaleState,
        now_ms: u64,
        error: Option<String>,
    ) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|_, kick| now_ms.abs_diff(kick.at_ms) < APART_MS);
        latest.insert(job.clone(), Kick { at_ms: now_ms, scale: scale.clone(), error });
    }
}

/// A worker that was invoked this long ago and has no lease, nor had one lately, is gone: its event was
/// lost, or the word that it left. Above a cold start; one too many leaves as surplus.
const SILENT_MS: u64 = 20_000;

/// The event that tells the scaler of a job.
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
pub(crate) fn silent_workers(scale: &ScaleState, scan: &Scan, now_ms: u64) -> Vec<u32> {
    let heard = scan.workers_heard(now_ms);
    let silent = |&(worker, sent_ms): &(u32, u64)| {
        now_ms.saturating_sub(sent_ms) > SILENT_MS && !heard.contains(&worker)
    };
    scale.outstanding.iter().filter(silent).map(|(worker, _)| worker).collect()
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

/// Positions that the workers that a job is to have now may run ahead of its trainer.
pub(crate) fn window(item: &JobItem, scale: &ScaleState) -> u32 {
    let Some(plan) = item.plan else { return 0 };
    let workers = wanted(item, scale).saturating_add(item.spec.local_workers);
    window_of(workers, plan.r).min(plan.window_splits)
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
    let living = scale.outstanding.len().saturating_sub(silent.len() as u32);
    scan.claimable(now_ms) > 0
        && living < wanted(item, scale)
        && (scan.head_waits(now_ms) || scan.wants_workers(living > 0))
}

impl Coordinator {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_kicked_once_a_second_unless_the_scaler_has_done_something() {
        let kicks = Kicks::default();
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
        assert_eq!(kicks.latest.lock().unwrap().len(), 1, "those that are over are forgotten");
    }
}
