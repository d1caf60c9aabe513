//! Whether the end of a trainer's life is one that it may have.

use crate::{Fault, World};
use gristmill_client::FetchError;
use gristmill_model::ErrorPolicy;
use gristmill_model::wire::JobSpec;

/// Faults that end a worker, or look as if they had.
const DEATHS: [Fault; 3] = [Fault::WorkerDies, Fault::Frozen, Fault::TrainerDies];

/// Faults that keep a death from being heard of in time.
const UNHEARD: [Fault; 8] = [
    Fault::ReportLost,
    Fault::CallLost,
    Fault::AnswerLost,
    Fault::CoordinatorDies,
    Fault::TableFails,
    Fault::WriteThrottled,
    Fault::GetFails,
    Fault::PutFails,
];

/// Faults that keep workers from beginning, from finishing anything, or from saying so.
pub(crate) const HINDRANCES: [Fault; 24] = [
    Fault::WorkerDies,
    Fault::CoordinatorDies,
    Fault::ScalerDies,
    Fault::Frozen,
    Fault::CallLost,
    Fault::AnswerLost,
    Fault::TableFails,
    Fault::WriteThrottled,
    Fault::InvokeFails,
    Fault::InvokeThrottled,
    Fault::EventDropped,
    Fault::EventRepeated,
    Fault::EventLate,
    Fault::ReportRepeated,
    Fault::VersionDeleted,
    Fault::LeaveLost,
    Fault::PutFails,
    Fault::PutUnreported,
    Fault::StoreFull,
    Fault::StoreThrottled,
    Fault::TableThrottled,
    Fault::ObjectDenied,
    Fault::Slow,
    Fault::AccountFull,
];
/// Hindrances after which it is no mistake to give a job up: one may cost several workers.
const GIVEN_UP_AFTER: u64 = 10;

/// How a trainer's life ended.
pub enum Fate {
    /// The job failed as its policy says.
    GivenUp,
    /// It ended as it must not.
    Broken,
    /// Another one reads the job now.
    Superseded,
    Again,
}

/// `entitled` is a trainer that resumed from the newest checkpoint, or was let in with another.
pub fn judge(
    world: &World,
    error: &FetchError,
    spec: &JobSpec,
    (let_in, entitled): (bool, bool),
) -> Fate {
    // Joining a job that has failed is refused with the job's own error.
    let joined = match error {
        FetchError::Refused(why) if why.contains("has failed (") => {
            Some(FetchError::JobFailed(why.clone()))
        }
        _ => None,
    };
    match joined.as_ref().unwrap_or(error) {
        // A split that really kills its workers is found out only if the platform's reports arrive, and
        // before a clock that is wrong ends the lease; else the job ends for it, loudly.
        FetchError::JobFailed(why)
            if spec.on_error == ErrorPolicy::Skip
                && why.contains("given up after")
                && (world.count(&UNHEARD) > 0 || !world.plan.skew.is_zero()) =>
        {
            Fate::GivenUp
        }
        // The job it found when it started was gone when it said so: its supervisor starts it again.
        FetchError::Fenced(_) if !let_in => Fate::Again,
        FetchError::Fenced(_) => Fate::Superseded,
        // Nobody got anything done for as long as the service is patient.
        FetchError::JobFailed(why)
            if (why.contains("workers die whatever they do") || why.contains("given up after"))
                && (world.count(&HINDRANCES) >= GIVEN_UP_AFTER || !world.plan.skew.is_zero()) =>
        {
            Fate::GivenUp
        }
        // 14. Three deaths in a row on one split look like the split's fault, whatever they were.
        FetchError::JobFailed(why)
            if why.contains("killed its worker") && world.count(&DEATHS) >= 3 =>
        {
            Fate::GivenUp
        }
        FetchError::JobFailed(_) | FetchError::JobStopped => {
            world.violated(format_args!("the job ended: {error}"));
            Fate::Broken
        }
        // 12. Older ones may be refused, never quietly skipped.
        FetchError::Misplaced(refusal) | FetchError::Collected(refusal) if entitled => {
            world.violated(format_args!("invariant 12: a trainer was refused: {refusal}"));
            Fate::Broken
        }
        // Nothing is said against a trainer that reads a job that goes on.
        FetchError::Refused(why) if let_in => {
            world.violated(format_args!("a trainer that was let in ended for a refusal: {why}"));
            Fate::Broken
        }
        FetchError::Misplaced(_)
        | FetchError::Collected(_)
        | FetchError::Unusable(_)
        | FetchError::Refused(_)
        | FetchError::Unreachable { .. }
        | FetchError::BadObject(_) => Fate::Again,
    }
}
