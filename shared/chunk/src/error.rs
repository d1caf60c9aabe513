//! Errors, by the caller's next step.

use std::borrow::Cow;

/// Errors of reading and writing chunk objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkFormatError {
    /// The bytes are not as written: fetch them again, or have the split recomputed.
    #[error("chunk object is corrupt: {0}; fetch it again or recompute the split")]
    Corrupt(Cow<'static, str>),

    /// The object has a format version that this build does not support.
    #[error(
        "chunk object has format version {version}, this build reads {supported}; use one release for workers and fetcher"
    )]
    Unsupported { version: u32, supported: u32 },

    /// The tail passed to [`Footer::parse`](crate::Footer::parse) does not reach back to the
    /// start of the footer: read the last `tail_bytes` of the object and parse again.
    #[error("the footer needs the last {tail_bytes} bytes of the object; read that many")]
    TailTooShort { tail_bytes: u64 },

    /// A valid size exceeds the caller's [`ChunkLimits`](crate::ChunkLimits).
    #[error(
        "{what} is {actual}, the limit is {limit}; use smaller batches or splits, or raise the limit"
    )]
    OverLimit { what: &'static str, actual: u64, limit: u64 },

    /// Misuse by the caller: a bad schema, row or order of calls.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
}

impl ChunkFormatError {
    pub(crate) fn corrupt(what: impl Into<Cow<'static, str>>) -> Self {
        ChunkFormatError::Corrupt(what.into())
    }

    pub fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        ChunkFormatError::Invalid(what.into())
    }

    /// `Ok` if `actual` is within `limit`.
    pub fn within(what: &'static str, actual: u64, limit: u64) -> Result<(), Self> {
        if actual > limit {
            return Err(ChunkFormatError::OverLimit { what, actual, limit });
        }
        Ok(())
    }
}
