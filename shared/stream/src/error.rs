//! Errors of a trainer's stream, by what the trainer does next.

use gristmill_model::splits::Cursor;
use gristmill_model::wire::RefusalKind;
use gristmill_ports::CallError;
use std::path::PathBuf;

/// Why a stream delivers no more batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The job has failed, for the reason given: fix it and start a new one.
    #[error("the job failed: {0}")]
    JobFailed(String),
    #[error("the job was stopped")]
    JobStopped,
    /// Another trainer has taken over this job's stream.
    #[error("another trainer reads this job now: {0}; start it again if there is no other")]
    Fenced(String),
    /// The service has not answered, or not correctly, within the trainer's patience.
    #[error("no answer from the service for {waited_s} s: {error}")]
    Unreachable { waited_s: u64, error: String },
    /// The service cannot be used: it has another version, or is a different kind of service.
    #[error("{0}")]
    Unusable(String),
    /// The service refused the call.
    #[error("{0}")]
    Refused(String),
    /// The trainer cannot begin at the requested place: its checkpoint is not from this run of the job.
    #[error("{0}")]
    Misplaced(String),
    /// The batches after the trainer's checkpoint are deleted: it is too old, or the job is done.
    #[error("{0}")]
    Collected(String),
    /// Another fetcher began this run at another batch.
    #[error(
        "another fetcher began this run at {from}, and this one would begin at {own}: resume all ranks from one \
         checkpoint"
    )]
    RunBegan { from: Cursor, own: Cursor },
    /// An object is missing, or its bytes differ from the committed ones.
    #[error("{0}")]
    BadObject(String),
}

impl FetchError {
    /// The same, with local paths in place of bucket names.
    pub fn in_words(mut self, folders: &FolderBuckets) -> Self {
        if let Self::JobFailed(text)
        | Self::Unreachable { error: text, .. }
        | Self::Unusable(text)
        | Self::Refused(text)
        | Self::BadObject(text) = &mut self
        {
            *text = folders.in_words(text);
        }
        self
    }

    /// Whether the error concerns only the trainer's start; it may begin elsewhere.
    pub fn is_of_place(&self) -> bool {
        matches!(self, Self::Misplaced(_) | Self::Collected(_) | Self::RunBegan { .. })
    }
}

impl From<CallError> for FetchError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) if refusal.kind == RefusalKind::Fenced => {
                Self::Fenced(refusal.message)
            }
            CallError::Refused(refusal) => Self::Refused(refusal.message),
            error => Self::Unusable(error.to_string()),
        }
    }
}

/// The buckets that are folders of this machine, and their paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FolderBuckets(Vec<(String, PathBuf)>);

impl FolderBuckets {
    /// Builds the map from `(bucket, path)` pairs.
    pub fn new(folders: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        Self(folders.into_iter().collect())
    }

    /// Replaces the names of buckets in `message` by their paths.
    pub fn in_words(&self, message: &str) -> String {
        let named = |message: String, (bucket, path): &(String, PathBuf)| {
            let path = path.to_string_lossy();
            message.replace(&format!("s3://{bucket}"), path.trim_end_matches('/'))
        };
        self.0.iter().fold(message.to_owned(), named)
    }
}
