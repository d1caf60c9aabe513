//! Liveness: a job with work and room for it has workers, and its trainer receives batches.

use crate::{FaultKind, ProcessKind, SimProcess, cloud::SimCloud, trainer::DeliveryLog};
use gristmill_model::wire::{JobState, JobStatus, StatusCall};
use std::{sync::Arc, time::Duration};

/// Longest time without enough workers, or without batches, after the faults have ended: a worker whose event was lost
/// counts as gone after 70 s.
const BOUND: Duration = Duration::from_secs(140);
/// Factor if two jobs compete for workers: the first may keep all until it is done.
const SHARED: u32 = 5;
/// The same if a split kills its workers: it is retried many times, beside others, before it is reported.
const FINDING_OUT: Duration = Duration::from_secs(900);
/// How long a trainer waits for a service that does not know its job.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOKS: Duration = Duration::from_secs(5);

/// Observes the job, and returns when it makes no progress.
pub async fn watch(cloud: &Arc<SimCloud>, log: &DeliveryLog) {
    let sim = &cloud.sim;
    // Lease times of a wrong clock are off by the difference of two clocks.
    let bound = if cloud.store.has_poison() { FINDING_OUT } else { BOUND } + 2 * sim.plan.skew;
    let bound = bound * if cloud.is_shared { SHARED } else { 1 };
    // A trainer whose job the table has lost waits for it, and is started again.
    let lost = || if sim.count(&[FaultKind::WritesLost]) > 0 { PATIENCE } else { Duration::ZERO };
    // A job may begin long after the faults have ended: another job had its name.
    let began = sim.time.now();
    let mut short_since = None;
    loop {
        sim.time.sleep(LOOKS).await;
        let (now, settled) = (sim.time.now(), sim.settled());
        if now < settled {
            continue;
        }
        let Some(status) = status(cloud).await else { continue };
        if !matches!(status.job.state, JobState::Indexing | JobState::Running) {
            continue;
        }
        let starved = now.saturating_sub(log.fed().max(settled).max(began));
        if starved > bound + lost() {
            return sim.violated(format_args!("no batch came for {} s", starved.as_secs()));
        }
        let (wanted, workers) = (workers_wanted(cloud, &status), cloud.workers());
        if workers >= wanted {
            short_since = None;
            continue;
        }
        let since = *short_since.get_or_insert(now);
        if now - since > bound {
            let (for_s, claimable) = ((now - since).as_secs(), status.claimable);
            return sim.violated(format_args!(
                "{workers} workers of {wanted} for {for_s} s, with {claimable} splits to claim"
            ));
        }
    }
}

/// Target number of workers: 0 unless work waits and the trainer has room for it.
fn workers_wanted(cloud: &SimCloud, status: &JobStatus) -> u32 {
    let spec = &status.job.spec;
    let bundle = status.job.plan.map_or(1, |plan| plan.max_bundle_splits);
    let is_half_full = cloud.sim.plan.memory.may_be_half_full(status.ready);
    if status.job.plan.is_some() && (status.ready > status.window / 4 || is_half_full) {
        return 0;
    }
    let target = if spec.autoscale { status.scale.target } else { spec.workers };
    let account = cloud.sim.plan.concurrency.map_or(u32::MAX, |(_, others)| others - 1);
    target.min(account).min(status.claimable / bundle.max(1))
}

/// Status of the job, read by an observer.
async fn status(cloud: &Arc<SimCloud>) -> Option<JobStatus> {
    let process = SimProcess::new(&cloud.sim, ProcessKind::Observer);
    cloud.ask(&process, StatusCall { job: cloud.store.job.clone() }).await.ok()
}

/// Whether the job has ended, including its stored state.
pub async fn has_ended(cloud: &Arc<SimCloud>) -> bool {
    let ended = |state| !matches!(state, JobState::Indexing | JobState::Running);
    status(cloud).await.is_some_and(|status| ended(status.job.state))
}
