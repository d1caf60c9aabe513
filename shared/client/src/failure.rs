//! Failures of a program, with their exit codes.

use crate::signals::Interruption;
use gristmill_stream::{FetchError, FolderBuckets};

/// Why a request failed, by what the caller does next; each has the exit code of a program that ends with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFailure {
    /// The request cannot be met: change the flags, the pipeline, or the file it names. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A service or a file failed: correct that, then try again. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The job's stream ended early. Exit code 1.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Ctrl-C or SIGTERM. Exit code 130 or 143.
    #[error("{0}")]
    Interrupted(Interruption),
    /// The reason was already reported; only the exit code remains.
    #[error("")]
    Reported(u8),
}

impl ProgramFailure {
    /// A [`ProgramFailure::Usage`].
    pub fn usage(message: impl ToString) -> Self {
        Self::Usage(message.to_string())
    }

    /// A [`ProgramFailure::Failed`].
    pub fn failed(message: impl ToString) -> Self {
        Self::Failed(message.to_string())
    }

    /// The exit code of a program that ends with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) | Self::Fetch(_) => 1,
            Self::Interrupted(by) => by.exit_code(),
            Self::Reported(code) => *code,
        }
    }

    /// The same, with the paths of `folders` in place of the buckets they are mounted as.
    pub fn in_words(self, folders: &FolderBuckets) -> Self {
        match self {
            Self::Usage(text) => Self::Usage(folders.in_words(&text)),
            Self::Failed(text) => Self::Failed(folders.in_words(&text)),
            Self::Fetch(error) => Self::Fetch(error.in_words(folders)),
            Self::Interrupted(_) | Self::Reported(_) => self,
        }
    }

    /// The message for a terminal: one line without control characters, which names of files may hold.
    /// None if the reason was already reported.
    pub fn line(&self) -> Option<String> {
        match self {
            Self::Reported(_) => None,
            failure => Some(failure.to_string().replace(|c: char| c.is_control(), " ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_say_who_can_correct_it() {
        assert_eq!(ProgramFailure::usage("x").exit_code(), 2);
        assert_eq!(ProgramFailure::failed("x").exit_code(), 1);
        assert_eq!(ProgramFailure::from(FetchError::JobStopped).exit_code(), 1);
        assert_eq!(ProgramFailure::Interrupted(Interruption::Interrupted).exit_code(), 130);
        assert_eq!(ProgramFailure::Interrupted(Interruption::Terminated).exit_code(), 143);
        assert_eq!(ProgramFailure::Reported(7).exit_code(), 7);
    }

    #[test]
    fn a_terminal_gets_one_line() {
        assert_eq!(ProgramFailure::usage("a\nb\u{1b}[1m").line().as_deref(), Some("a b [1m"));
        assert_eq!(ProgramFailure::Reported(1).line(), None);
    }
}
