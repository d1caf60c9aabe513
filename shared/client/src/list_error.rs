//! Why a dataset cannot be listed.

use crate::LeftOutFiles;
use gristmill_ports::{CallError, ObjectError};
use std::path::PathBuf;

/// Why a dataset cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error("{0} is not a valid pattern: {1}")]
    Pattern(String, String),
    #[error("no file matches {place}{}", because(.left_out))]
    Empty { place: String, left_out: LeftOutFiles },
    #[error("cannot read {path}: {why}")]
    Unreadable { path: String, why: String },
    #[error("{0}: {1}")]
    Image(String, String),
    #[error(
        "an image folder is one directory with a subdirectory per class: name one directory, not \
         {0}"
    )]
    Folders(usize),
    #[error(
        "{0} has no list of its files, which an image folder needs: put the images into tar files, or on S3"
    )]
    NoList(String),
    #[error("the pipeline zips datasets, and its file names their paths: leave out `--data`")]
    Zipped,
    #[error("cannot describe the images: {0}")]
    Stored(serde_json::Error),
    #[error("functions on AWS cannot read {}: copy it to S3 and name s3://bucket/prefix", .0.display())]
    OutOfReach(PathBuf),
    #[error(transparent)]
    Mount(#[from] CallError),
}

impl ListError {
    /// Whether the request is at fault, rather than a service.
    pub fn is_usage(&self) -> bool {
        !matches!(self, ListError::Objects(_) | ListError::Stored(_) | ListError::Mount(_))
    }
}

/// Why a location with files has none to read.
fn because(left_out: &LeftOutFiles) -> String {
    if left_out.is_empty() { String::new() } else { format!(": {left_out}") }
}
