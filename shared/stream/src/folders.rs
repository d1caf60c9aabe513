//! Folders of this machine: a service offers them as buckets, and users know them by their paths.

use std::path::PathBuf;

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
