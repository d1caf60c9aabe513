//! What can go wrong, by what the caller does next.

use gristmill_chunk::FormatError;
use gristmill_model::SkippedRecord;

/// Errors of indexing a source and running a split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The caller asked to stop: hand the split back.
    #[error("the split was cancelled before it was done")]
    Cancelled,

    /// A record cannot be read or processed and the job's policy is to fail: fail the job.
    #[error("{} ({}): {}", .0.key, .0.op, .0.reason)]
    Record(SkippedRecord),

    /// The source file, its index or the bytes read of it are not what they should be: fail the
    /// job, naming the file.
    #[error("{0}")]
    Source(String),

    /// The pipeline cannot be run by this build: refuse the job.
    #[error("{0}")]
    Pipeline(String),

    /// A split cannot be put into the cache, or what was read of it is not what was put there: run
    /// it without.
    #[error("{point}: {reason}")]
    Cache { point: String, reason: String },

    /// The result does not fit a chunk object: refuse the job, or make its splits smaller.
    #[error(transparent)]
    Output(#[from] FormatError),
}
