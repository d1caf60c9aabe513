//! How a command ends when it does not end well: 2 for bad usage or a bad pipeline, 1 for a job that
//! failed, 130 for Ctrl-C and 143 for SIGTERM.

use gristmill_client::signals::Interruption;

/// An exit code and its one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    /// The user asked for something that cannot be.
    pub fn usage(message: impl ToString) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// What was asked for did not work.
    pub fn failed(message: impl ToString) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// The user, or who supervises the program, changed their mind.
    pub fn interrupted(by: Interruption) -> Self {
        Self { code: by.exit_code(), message: by.to_string() }
    }
}
