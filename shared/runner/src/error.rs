//! Errors of work on a lease; each variant determines the worker's next step.

use gristmill_model::SkippedRecord;
use gristmill_model::wire::RefusalKind;
use gristmill_ports::{CallError, ObjectError};

/// Why a lease, or one of its splits, is given up.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// Another worker owns the bundle now: drop it and claim again.
    #[error("the lease was lost")]
    LeaseLost,
    /// The platform stops this worker soon: give the bundle back.
    #[error("out of time")]
    OutOfTime,
    /// There is no room for more results: give the rest of the bundle back, without a failure.
    #[error("no room for more results")]
    NoRoom,
    /// A temporary fault: give the bundle back, because another attempt may succeed.
    #[error("{0}")]
    Passing(String),
    /// A cached split is damaged: compute it from the source.
    #[error("{0}")]
    BadCache(String),
    /// A retry cannot help: the job fails with this message.
    #[error("{message}")]
    Fatal { message: String, record: Option<SkippedRecord> },
}

impl LeaseError {
    /// An error that fails the job.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::Fatal { message: message.into(), record: None }
    }
}

impl From<ObjectError> for LeaseError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Unavailable(_) | ObjectError::Full(_) | ObjectError::Denied(_) => {
                Self::Passing(error.to_string())
            }
            ObjectError::Changed(_) => Self::fatal(format!(
                "{error}: the job was registered for the old content; restore the file or start a new job"
            )),
            ObjectError::NotFound(_) | ObjectError::Rejected(_) => Self::fatal(error.to_string()),
        }
    }
}

impl From<CallError> for LeaseError {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::Refused(refusal) if refusal.kind == RefusalKind::LeaseLost => {
                Self::LeaseLost
            }
            // The worker cannot report the error: its lease expires, and another worker claims the bundle.
            error => Self::Passing(error.to_string()),
        }
    }
}
