//! Errors of starting and using a stand-in.

use std::path::PathBuf;

/// Errors, by the caller's next step.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Another process holds the port: stop it or choose another.
    #[error("cannot listen on {address} for the {what}: {source}; free the port or choose another")]
    Bind {
        /// Listener that failed.
        what: &'static str,
        /// Requested address.
        address: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Another service runs on the same state directory: attach to it or stop it.
    #[error("{path}: another service is running on this state directory; stop it or use another")]
    Busy {
        /// The state directory.
        path: PathBuf,
    },
    /// The configuration is invalid: correct it.
    #[error("{0}")]
    Config(String),
    /// A file or directory of the state could not be used: check the path, its permissions and the free space.
    #[error("{path}: {reason}")]
    State {
        /// The file or directory.
        path: PathBuf,
        /// Description of the failure.
        reason: String,
    },
    /// The embedded table refused to start.
    #[error("table: {0}")]
    Table(String),
    /// The operating system refused a thread or random bytes.
    #[error("cannot start {what}: {source}")]
    System {
        /// Resource that could not be started.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
    /// No function with this name is configured.
    #[error("no function named {0:?} is configured")]
    UnknownFunction(String),
}

impl LocalError {
    pub(crate) fn state(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        let says = |words: &[&str]| words.iter().any(|words| reason.contains(words));
        // Texts of the system and of SQLite.
        let reason = if says(&["(os error 28)", "disk is full"]) {
            "the disk is full: free some space"
        } else if says(&["(os error 13)", "(os error 1)", "(os error 30)"]) {
            "permission denied: choose another directory, or change its permissions"
        } else if says(&["(os error 17)", "(os error 20)"]) {
            "not a directory: choose another"
        } else {
            &reason
        };
        Self::State { path: path.into(), reason: reason.to_owned() }
    }
}
