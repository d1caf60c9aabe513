//! Checks of a run: a job with work and room for it goes on, and its trainer may end as it did.

use crate::spending::SPENT;
use crate::{
    FaultKind, FaultSimulation, ProcessKind, SimProcess, cloud::SimCloud, trainer::DeliveryLog,
};
use gristmill_model::{
    ErrorPolicy,
    wire::{JobSpec, JobState, JobStatus, StatusCall},
};
use gristmill_stream::FetchError;
use std::{sync::Arc, time::Duration};

/// Faults that end a worker, or appear to.
const DEATHS: [FaultKind; 4] =
    [FaultKind::WorkerDies, FaultKind::Frozen, FaultKind::TrainerDies, FaultKind::ServiceDown];

/// Faults that delay the report of a death.
const UNHEARD: [FaultKind; 9] = [
    FaultKind::ReportLost,
    FaultKind::CallLost,
    FaultKind::AnswerLost,
    FaultKind::CoordinatorDies,
    FaultKind::TableFails,
    FaultKind::WriteThrottled,
    FaultKind::GetFails,
    FaultKind::PutFails,
    FaultKind::ServiceDown,
];

/// Number of hindrances after which giving a job up is justified: one may cost several workers.
const GIVEN_UP_AFTER: u64 = 10;

/// Words of errors of damaged objects.
const DAMAGE: [&str; 4] =
    ["corrupt", "crc32c", "not the object that was committed", "differs from the one committed"];

/// How a trainer ended.
pub enum TrainerEnd {
    /// The job failed as its policy says.
    GivenUp,
    /// With a violation.
    Broken,
    /// Another trainer reads the job now.
    Superseded,
    Again,
}

/// Whether an error is for a damaged object, and not for what else kept it from being computed again.
fn is_damage(why: &str) -> bool {
    DAMAGE.iter().any(|words| why.contains(words)) && !why.contains("cannot be computed again")
}

/// Words of the error of a job without progress.
pub const GIVEN_UP: [&str; 2] = ["workers died or could not start within", "given up after"];

/// Whether faults may have kept a job from any progress for as long as the service tolerates.
fn is_hindered(sim: &FaultSimulation) -> bool {
    sim.count_of(FaultKind::hinders) >= GIVEN_UP_AFTER
        || sim.count(&[FaultKind::ServiceDown]) > 0
        || !sim.plan.skew.is_zero()
}

/// Whether a job may have failed with this error.
fn is_excused(sim: &FaultSimulation, spec: &JobSpec, why: &str) -> bool {
    // A split that kills its workers is recognised only if the platform's reports arrive before a wrong clock ends the
    // lease; else the job fails for it, with an error.
    let is_unheard = spec.settings.on_error == ErrorPolicy::Skip
        && why.contains("given up after")
        && (sim.count(&UNHEARD) > 0 || !sim.plan.skew.is_zero());
    // No progress for longer than the service tolerates.
    let has_stalled = GIVEN_UP.iter().any(|words| why.contains(words)) && is_hindered(sim);
    // Invariant 14: three deaths in a row on one split incriminate it, regardless of their cause.
    is_unheard || has_stalled || why.contains("killed its worker") && sim.count(&DEATHS) >= 3
}

/// Judges the end of a trainer. `entitled`: it resumed from the newest checkpoint, or was accepted with another.
pub fn judge(
    sim: &FaultSimulation,
    error: &FetchError,
    spec: &JobSpec,
    accepted: bool,
    entitled: bool,
) -> TrainerEnd {
    // Joining a failed job is refused with the job's own error.
    let joined = match error {
        FetchError::Refused(why) if why.contains("has failed (") => {
            Some(FetchError::JobFailed(why.clone()))
        }
        _ => None,
    };
    match joined.as_ref().unwrap_or(error) {
        // The job it found at its start was gone when it reported: its supervisor restarts it.
        FetchError::Fenced(_) if !accepted => TrainerEnd::Again,
        FetchError::Fenced(_) => TrainerEnd::Superseded,
        FetchError::JobFailed(why) if sim.budget.is_given() && why.contains(SPENT) => {
            sim.budget.raise();
            TrainerEnd::Again
        }
        FetchError::JobFailed(why) if is_excused(sim, spec, why) => TrainerEnd::GivenUp,
        FetchError::JobFailed(_) | FetchError::JobStopped => {
            sim.violated(format_args!("the job ended: {error}"));
            TrainerEnd::Broken
        }
        // A table that has forgotten this trainer let an older one go on. It returns with its newest checkpoint, or
        // finds the job done.
        FetchError::Collected(_) if sim.count(&[FaultKind::WritesLost]) > 0 => TrainerEnd::Again,
        // Invariant 12: older positions may be refused, never silently skipped.
        FetchError::Misplaced(refusal) | FetchError::Collected(refusal) if entitled => {
            sim.violated(format_args!("invariant 12: a trainer was refused: {refusal}"));
            TrainerEnd::Broken
        }
        // A trainer of a running job must not be refused; its registration may be lost.
        FetchError::Refused(why) if accepted && sim.count(&[FaultKind::WritesLost]) == 0 => {
            sim.violated(format_args!("a trainer that was let in ended for a refusal: {why}"));
            TrainerEnd::Broken
        }
        // A damaged object is computed again.
        FetchError::BadObject(why) if is_damage(why) => {
            sim.violated(format_args!("damage ended a trainer: {why}"));
            TrainerEnd::Broken
        }
        // Each release speaks a version of the other, so that no trainer ends for its version.
        FetchError::Unusable(why) if why.contains("protocol version") => {
            sim.violated(format_args!("a version ended a trainer: {why}"));
            TrainerEnd::Broken
        }
        FetchError::Misplaced(_)
        | FetchError::Collected(_)
        | FetchError::RunBegan { .. }
        | FetchError::Refused(_)
        | FetchError::Unreachable { .. }
        | FetchError::Unusable(_)
        | FetchError::BadObject(_) => TrainerEnd::Again,
    }
}

/// Longest time without enough workers, or without batches, after the faults have ended: a worker whose event was lost
/// counts as gone after 70 s.
const BOUND: Duration = Duration::from_secs(140);
/// Factor if two jobs compete for workers: the first may keep all until it is done.
const SHARED: u32 = 5;
/// The same if a split kills its workers: it is retried many times, beside others, before it is reported.
const FINDING_OUT: Duration = Duration::from_secs(900);
/// More under a budget: money for copies of events is free again once they cannot come. At the end of a small budget, each
/// of six workers that make the splits of a step may wait for that of the one before.
const SPENDING: Duration = Duration::from_secs(6 * 180);
/// How long a trainer waits for a service that does not know its job.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOKS: Duration = Duration::from_secs(5);

/// Observes the job, and returns when it makes no progress.
pub async fn watch(cloud: &Arc<SimCloud>, log: &DeliveryLog) {
    let sim = &cloud.sim;
    // Lease times of a wrong clock are off by the difference of two clocks.
    let bound = if cloud.store.scenario.poison { FINDING_OUT } else { BOUND } + 2 * sim.plan.skew;
    let bound = bound * if cloud.is_shared { SHARED } else { 1 };
    let bound = if sim.budget.is_given() { bound + SPENDING } else { bound };
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
    if let Some(ledger) = &status.scale.spending
        && ledger.affordable(0) == 0
    {
        return 0;
    }
    let target = if spec.autoscale { status.scale.target } else { spec.workers };
    let account = cloud.sim.plan.concurrency.map_or(u32::MAX, |(_, others)| others - 1);
    target.min(account).min(status.claimable / bundle.max(1))
}

async fn status(cloud: &Arc<SimCloud>) -> Option<JobStatus> {
    let process = SimProcess::new(&cloud.sim, ProcessKind::Observer);
    cloud.ask(&process, StatusCall { job: cloud.store.job.clone() }).await.ok()
}

/// Whether the job has ended, including its stored state.
pub async fn has_ended(cloud: &Arc<SimCloud>) -> bool {
    let ended = |state| !matches!(state, JobState::Indexing | JobState::Running);
    status(cloud).await.is_some_and(|status| ended(status.job.state))
}
