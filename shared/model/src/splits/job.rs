//! The states of a job: indexing, running, then done, failed or stopped. Only a stopped job is never continued.

use crate::splits::bundle::line_of;
use crate::splits::{TransitionOutcome, TransitionRefusal};
use serde::{Deserialize, Serialize};

/// Longest error that a job keeps, in bytes.
const MAX_JOB_ERROR_BYTES: usize = 800;

/// State of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum JobState {
    /// Its dataset is being indexed; there are no splits yet.
    Indexing,
    Running,
    /// Every epoch is closed.
    Done,
    /// The user stopped it.
    Stopped,
    Failed {
        error: String,
        /// Whether a record was bad: then what precedes it in its split is fine.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        at_record: bool,
    },
}

/// Event of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JobEvent {
    /// The index is complete.
    Indexed,
    /// The last epoch was closed.
    Finished,
    /// A bundle died, or the skip cap was passed.
    Failed { error: String, at_record: bool },
    /// The user stopped the job.
    Stopped,
    /// Somebody joined a job that had failed, or that was done and has more epochs now.
    Resumed { is_indexed: bool },
}

impl JobState {
    /// Whether the job is not worked on: it has ended, one way or another.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Done | Self::Stopped | Self::Failed { .. })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Indexing => "indexing",
            Self::Running => "running",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed { .. } => "failed",
        }
    }
}

/// Moves a job on. The first ending stays until somebody resumes the job: a job that failed does not become stopped,
/// and the first error is the one reported. Refuses with [`TransitionRefusal::Ended`] when the job
/// has ended otherwise; [`TransitionRefusal::Invalid`] for the end of a job that is still indexing.
pub fn apply(
    before: &JobState,
    event: &JobEvent,
) -> Result<TransitionOutcome<JobState>, TransitionRefusal> {
    let after = match (before, event) {
        (JobState::Running | JobState::Done, JobEvent::Indexed)
        | (JobState::Done, JobEvent::Finished)
        | (JobState::Stopped, JobEvent::Stopped)
        | (JobState::Failed { .. }, JobEvent::Failed { .. }) => {
            return Ok(TransitionOutcome::AlreadyApplied(before.clone()));
        }
        (JobState::Indexing, JobEvent::Indexed) => JobState::Running,
        (JobState::Indexing, JobEvent::Finished) => {
            return Err(TransitionRefusal::Invalid {
                what: "a job that is indexing cannot be finished",
            });
        }
        (JobState::Running, JobEvent::Finished) => JobState::Done,
        (JobState::Indexing | JobState::Running, JobEvent::Stopped) => JobState::Stopped,
        (JobState::Indexing | JobState::Running, JobEvent::Failed { error, at_record }) => {
            let error = line_of(error, MAX_JOB_ERROR_BYTES);
            JobState::Failed { error, at_record: *at_record }
        }
        (JobState::Failed { .. }, JobEvent::Resumed { is_indexed: false }) => JobState::Indexing,
        (JobState::Failed { .. } | JobState::Done, JobEvent::Resumed { .. }) => JobState::Running,
        (ended, _) => return Err(TransitionRefusal::Ended { state: ended.name() }),
    };
    Ok(TransitionOutcome::Write(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ending_stays() {
        let failed = JobEvent::Failed { error: "first".to_owned(), at_record: false };
        let state = apply(&JobState::Running, &failed).unwrap().into_item();
        let later = JobEvent::Failed { error: "second".to_owned(), at_record: false };
        assert_eq!(
            apply(&state, &later).unwrap(),
            TransitionOutcome::AlreadyApplied(state.clone())
        );
        assert!(matches!(apply(&state, &JobEvent::Stopped), Err(TransitionRefusal::Ended { .. })));
        assert!(matches!(apply(&state, &JobEvent::Indexed), Err(TransitionRefusal::Ended { .. })));
        assert!(state.is_ended());
    }

    #[test]
    fn a_job_that_failed_or_is_done_is_resumed_and_a_stopped_one_is_not() {
        let failed = JobState::Failed { error: "e".to_owned(), at_record: false };
        let resumed =
            |state: &JobState, is_indexed| apply(state, &JobEvent::Resumed { is_indexed });
        let running = TransitionOutcome::Write(JobState::Running);
        assert_eq!(resumed(&failed, true).unwrap(), running);
        assert_eq!(resumed(&failed, false).unwrap(), TransitionOutcome::Write(JobState::Indexing));
        assert_eq!(resumed(&JobState::Done, true).unwrap(), running);
        assert!(resumed(&JobState::Stopped, true).is_err());
    }

    #[test]
    fn a_job_runs_only_once_indexed() {
        assert!(apply(&JobState::Indexing, &JobEvent::Finished).is_err());
        let running = apply(&JobState::Indexing, &JobEvent::Indexed).unwrap().into_item();
        assert_eq!(running, JobState::Running);
        assert_eq!(
            apply(&running, &JobEvent::Finished).unwrap(),
            TransitionOutcome::Write(JobState::Done)
        );
    }
}
