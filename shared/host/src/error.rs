//! Errors of this crate, by what the caller does next.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

/// Why a part of a service on this machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The user must choose or change something; the text says what.
    #[error("{0}")]
    Unusable(String),
    /// Another process serves this directory.
    #[error("another service runs on {}: use it, or name another --state-dir", .0.display())]
    Busy(PathBuf),
    #[error(
        "the disk under {} is full ({}): free some space, then start again",
        .0.display(),
        crate::free_space(.0)
    )]
    Full(PathBuf),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl HostError {
    /// Names `path` in an error of the system.
    pub fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full(path.to_owned()),
            _ => Self::Io { path: path.to_owned(), error },
        }
    }

    pub(crate) fn unusable(path: &Path, why: impl std::fmt::Display) -> Self {
        Self::Unusable(format!("{}: {why}", path.display()))
    }
}
