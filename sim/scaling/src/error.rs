//! Errors of scenario files.

/// One line: place, problem and remedy.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("{path}:{line}: {message}")]
    Invalid { path: String, line: usize, message: String },
    #[error("{path}: cannot be read: {source}")]
    Unreadable { path: String, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Unwritable { path: String, source: std::io::Error },
    #[error("{0}")]
    Usage(String),
}
