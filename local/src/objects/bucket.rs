//! Buckets: stored by the server, or a mounted directory.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use s3s::{S3Result, s3_error};

use super::mounts::{MountedDirectory, Stamp};
use super::names::{self, Kind};
use super::record::{Info, Record};

/// A bucket that exists.
#[derive(Debug, Clone)]
pub(super) enum Bucket {
    /// Stored and written by the server.
    Stored(StoredBucket),
    /// A mounted directory of the user.
    Mounted(Arc<MountedDirectory>),
}

/// An object opened for reading; its data are the first `info.record.object_bytes` of the file.
#[derive(Debug)]
pub(super) struct Opened {
    pub file: File,
    pub info: Info,
    /// Stamp of a file that others may change.
    pub stamp: Option<Stamp>,
}

impl Bucket {
    pub(super) fn open(&self, key: &str) -> io::Result<Option<Opened>> {
        match self {
            Self::Stored(bucket) => bucket.open(key),
            Self::Mounted(mounted) => {
                let opened = mounted.open_file(key)?;
                Ok(opened.map(|(file, info, stamp)| Opened { file, info, stamp: Some(stamp) }))
            }
        }
    }

    pub(super) fn info(&self, key: &str) -> io::Result<Option<Info>> {
        match self {
            Self::Stored(bucket) => bucket.info(key),
            Self::Mounted(mounted) => mounted.info(key),
        }
    }

    /// # Errors
    /// `MethodNotAllowed` if the bucket is mounted.
    pub(super) fn writable(&self) -> S3Result<&StoredBucket> {
        match self {
            Self::Stored(bucket) => Ok(bucket),
            Self::Mounted(mounted) => Err(s3_error!(
                MethodNotAllowed,
                "the bucket is {}, mounted read only",
                mounted.path().display()
            )),
        }
    }

    /// Visits the entries of a directory of the bucket: (name, its part of the key, kind).
    ///
    /// # Errors
    /// If the directory exists and cannot be read.
    pub(super) fn scan(
        &self,
        directory: &str,
        visit: &mut dyn FnMut(&str, &[u8], Kind),
    ) -> io::Result<()> {
        match self {
            Self::Stored(bucket) => bucket.scan(directory, visit),
            Self::Mounted(mounted) => mounted.scan(directory, &mut |name, is_directory| {
                let kind = if is_directory { Kind::Directory } else { Kind::Object };
                visit(name, name.as_bytes(), kind);
            }),
        }
    }

    /// The deepest directory that contains every key with `prefix`, and the number of prefix bytes it covers.
    pub(super) fn prefix_directory(&self, prefix: &str) -> (String, usize) {
        match self {
            Self::Stored(_) => names::prefix_directory(prefix),
            Self::Mounted(_) => {
                let used = prefix.rfind('/').map_or(0, |slash| slash + 1);
                (prefix[..used].to_owned(), used)
            }
        }
    }
}

/// A bucket stored by the server.
#[derive(Debug, Clone)]
pub(super) struct StoredBucket {
    directory: PathBuf,
}

impl StoredBucket {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self, key: &str) -> PathBuf {
        self.directory.join(names::object_path(key))
    }

    pub(super) fn open(&self, key: &str) -> io::Result<Option<Opened>> {
        let file = match File::open(self.path(key)) {
            Ok(file) => file,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(Record::read(&file)?.map(|info| Opened { file, info, stamp: None }))
    }

    pub(super) fn info(&self, key: &str) -> io::Result<Option<Info>> {
        Ok(self.open(key)?.map(|opened| opened.info))
    }

    fn scan(&self, directory: &str, visit: &mut dyn FnMut(&str, &[u8], Kind)) -> io::Result<()> {
        let entries = match std::fs::read_dir(self.directory.join(directory)) {
            Ok(entries) => entries,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some((part, kind)) = names::parse(name) {
                visit(name, &part, kind);
            }
        }
        Ok(())
    }
}
