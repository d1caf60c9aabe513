//! What can go wrong for a trainer, by what it does next.

use gristmill_ports::CallError;

#[derive(Debug, Clone, thiserror::Error)]
pub enum FetchError {
    /// The job has failed, for the reason given: fix it and start a new one.
    #[error("the job failed: {0}")]
    JobFailed(String),
    #[error("the job was stopped")]
    JobStopped,
    /// Another trainer has taken over this job's stream.
    #[error("another trainer reads this job now: {0}; start it again if there is no other")]
    Fenced(String),
    /// The service has not answered, or not with what was asked for, for as long as we were willing to wait.
    #[error("no answer from the service for {waited_s} s: {error}")]
    Unreachable { waited_s: u64, error: String },
    /// The service said no.
    #[error("{0}")]
    Refused(String),
    /// The trainer cannot begin where it asks to: its checkpoint is too old, or not of this run of the job.
    #[error("{0}")]
    Misplaced(String),
    /// An object is missing or its bytes are not what was committed.
    #[error("{0}")]
    BadObject(String),
}

impl From<CallError> for FetchError {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::Refused(refusal) => match refusal.kind {
                gristmill_protocol::RefusalKind::Fenced => Self::Fenced(refusal.message.clone()),
                _ => Self::Refused(refusal.message.clone()),
            },
            CallError::Unavailable(_) | CallError::Rejected(_) => Self::Refused(error.to_string()),
        }
    }
}
