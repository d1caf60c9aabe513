//! Errors, grouped by the action that the caller takes.

use gristmill_chunk::ChunkFormatError;
use gristmill_model::SkippedRecord;

/// Errors of indexing a source and of running a split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The caller asked to stop: hand the split back.
    #[error("the split was cancelled before it was done")]
    Cancelled,

    /// A bad record under the error policy `Fail`: fail the job.
    #[error("{} ({}): {}", .0.key, .0.op, .0.reason)]
    Record(SkippedRecord),

    /// The source file, its index or its bytes are not as expected: fail the job and name the file.
    #[error("{0}")]
    Source(String),

    /// This build cannot run the pipeline: refuse the job.
    #[error("{0}")]
    Pipeline(String),

    /// A split cannot be cached, or its cache object is damaged or of another pipeline: run the
    /// split without it.
    #[error("{point}: {reason}")]
    Cache { point: String, reason: String },

    /// The result does not fit a chunk object: refuse the job, or make its splits smaller.
    #[error(transparent)]
    Output(#[from] ChunkFormatError),
}
