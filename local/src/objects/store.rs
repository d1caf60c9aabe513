//! Objects in a directory: buckets, publishing, deleting.
//!
//! `ROOT/buckets/<bucket>/...` holds one file per object, `ROOT/incoming` the uploads in progress, `ROOT/lock` excludes a
//! second server. An upload is published by giving its finished file the object's name: by `link` if there must be no
//! object yet, which only one of several can do, else by `rename`. A reader keeps the file it opened. So a partial object
//! is never visible under a key, even after a kill.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::fs::{FlockOperation, flock};
use s3s::dto::ETagCondition;
use s3s::path::check_bucket_name;
use s3s::{S3Result, s3_error};

use super::bucket::{Bucket, StoredBucket};
use super::conditions::{PutCondition, holds};
use super::download::BufferPool;
use super::failure::io_failure;
use super::mounts::MountedDirectory;
use super::stats::Counters;
use super::upload::Temporary;
use crate::LocalError;

/// Locks by key hash; puts of different keys rarely contend.
const STRIPES: usize = 256;
/// Retries if a concurrent delete removes an empty directory between its creation and its use.
const PARENT_TRIES: usize = 64;

/// State of a server.
pub(super) struct Store {
    buckets: PathBuf,
    incoming: PathBuf,
    durable: bool,
    mounts: RwLock<BTreeMap<String, Arc<MountedDirectory>>>,
    /// Serialise checks and changes of one key.
    stripes: [Mutex<()>; STRIPES],
    hasher: RandomState,
    next_upload: AtomicU64,
    pub(super) pool: Arc<BufferPool>,
    pub(super) counters: Arc<Counters>,
    /// Released with the descriptor, so a killed server leaves no lock behind.
    _lock: File,
}

impl Store {
    /// Creates the directory if needed, locks it, and removes unfinished uploads of a killed server.
    ///
    /// # Errors
    /// [`LocalError::Busy`] if another server uses it, [`LocalError::State`] if it is unusable.
    pub(super) fn open(root: &Path, durable: bool) -> Result<Self, LocalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| LocalError::state(path, error)
        };
        make_directories(root).map_err(failed(root))?;
        let root = root.canonicalize().map_err(failed(root))?;
        let lock_path = root.join("lock");
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let lock = options.open(&lock_path).map_err(failed(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(LocalError::Busy { path: root }),
            Err(error) => return Err(LocalError::state(lock_path, error)),
        }
        let (buckets, incoming) = (root.join("buckets"), root.join("incoming"));
        match fs::remove_dir_all(&incoming) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(LocalError::state(incoming, error));
            }
            _ => {}
        }
        make_directories(&incoming).map_err(failed(&incoming))?;
        make_directories(&buckets).map_err(failed(&buckets))?;
        Ok(Self {
            buckets,
            incoming,
            durable,
            mounts: RwLock::default(),
            stripes: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            next_upload: AtomicU64::new(0),
            pool: Arc::default(),
            counters: Arc::default(),
            _lock: lock,
        })
    }

    /// Whether an answered put survives a power cut.
    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Mounts a directory as a bucket, replacing the one mounted under that name.
    ///
    /// # Errors
    /// [`LocalError::Config`] if the name is invalid or taken by a bucket, [`LocalError::State`] if the directory
    /// cannot be read.
    pub(super) fn mount(&self, name: &str, path: &Path) -> Result<(), LocalError> {
        if !check_bucket_name(name) {
            return Err(LocalError::Config(format!(
                "{name:?} cannot be a mount: use 3 to 63 of a-z, 0-9, '-' and '.'"
            )));
        }
        if self.buckets.join(name).exists() {
            let text = format!("{name:?} cannot be a mount: it is a bucket; choose another name");
            return Err(LocalError::Config(text));
        }
        let directory =
            MountedDirectory::open(path).map_err(|error| LocalError::state(path, error))?;
        let mut mounts = self.mounts.write().unwrap_or_else(PoisonError::into_inner);
        match mounts.get(name) {
            Some(known) if known.path() == directory.path() => known.forget_links(),
            _ => {
                mounts.insert(name.to_owned(), Arc::new(directory));
            }
        }
        Ok(())
    }

    /// Creates a bucket. Returns false if it exists.
    pub(super) fn make_bucket(&self, name: &str) -> io::Result<bool> {
        let is_mounted =
            self.mounts.read().unwrap_or_else(PoisonError::into_inner).contains_key(name);
        if is_mounted {
            return Ok(false);
        }
        match fs::create_dir(self.buckets.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All buckets in order: names and, unless mounted, the time of their last change.
    pub(super) fn bucket_names(&self) -> io::Result<Vec<(String, std::time::SystemTime)>> {
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(&self.buckets)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                names.insert(name, entry.metadata()?.modified()?);
            }
        }
        let mounts = self.mounts.read().unwrap_or_else(PoisonError::into_inner);
        for (name, mount) in mounts.iter() {
            let modified = fs::metadata(mount.path()).and_then(|metadata| metadata.modified());
            names.insert(name.clone(), modified.unwrap_or(std::time::UNIX_EPOCH));
        }
        Ok(names.into_iter().collect())
    }

    /// # Errors
    /// `NoSuchBucket`.
    pub(super) fn bucket(&self, name: &str) -> S3Result<Bucket> {
        let mounts = self.mounts.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mounted) = mounts.get(name) {
            return Ok(Bucket::Mounted(Arc::clone(mounted)));
        }
        let directory = self.buckets.join(name);
        if !directory.is_dir() {
            return Err(s3_error!(NoSuchBucket, "there is no bucket {name}"));
        }
        Ok(Bucket::Stored(StoredBucket::new(directory)))
    }

    /// A fresh path for an upload.
    pub(super) fn incoming_path(&self) -> PathBuf {
        self.incoming.join(self.next_upload.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Gives a finished upload the name of its object if the condition holds.
    ///
    /// # Errors
    /// Errors of [`PutCondition::check`], and of the disk.
    pub(super) fn publish(
        &self,
        upload: Temporary,
        bucket: &StoredBucket,
        key: &str,
        condition: &PutCondition,
    ) -> S3Result<()> {
        let failed = |error: io::Error| io_failure("store", key, &error);
        let path = bucket.path(key);
        let _guard = self.serialise(&path);
        if *condition == PutCondition::Absent {
            match with_parents(bucket, &path, || fs::hard_link(upload.path(), &path)) {
                Ok(()) => return self.settle(bucket, &path).map_err(failed),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    // A file that is no whole object was left by a power cut: replace it.
                    condition.check(bucket.info(key).map_err(failed)?.as_ref())?;
                }
                Err(error) => return Err(failed(error)),
            }
        } else if *condition != PutCondition::Always {
            condition.check(bucket.info(key).map_err(failed)?.as_ref())?;
        }
        with_parents(bucket, &path, || fs::rename(upload.path(), &path)).map_err(failed)?;
        upload.keep();
        self.settle(bucket, &path).map_err(failed)
    }

    /// Removes an object, if it exists.
    ///
    /// # Errors
    /// `PreconditionFailed` if `if_match` does not hold, and errors of the disk.
    pub(super) fn delete(
        &self,
        bucket: &StoredBucket,
        key: &str,
        if_match: Option<&ETagCondition>,
    ) -> S3Result<()> {
        let failed = |error: io::Error| io_failure("delete", key, &error);
        let path = bucket.path(key);
        let _guard = self.serialise(&path);
        if let Some(condition) = if_match {
            let info = bucket.info(key).map_err(failed)?;
            if !info.is_some_and(|info| holds(condition, &info.record.etag)) {
                return Err(s3_error!(PreconditionFailed, "the object is another one now"));
            }
        }
        match fs::remove_file(&path) {
            // A key too long for a path was never an object.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) =>
            {
                return Ok(());
            }
            removed => removed.map_err(failed)?,
        }
        // Removes empty parents, up to the first directory with other entries.
        for directory in parents(bucket, &path) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn serialise(&self, path: &Path) -> MutexGuard<'_, ()> {
        let stripe = self.hasher.hash_one(path) as usize % STRIPES;
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs the directory entry, if the store is durable.
    fn settle(&self, bucket: &StoredBucket, path: &Path) -> io::Result<()> {
        if self.durable {
            for directory in parents(bucket, path).chain([bucket.directory()]) {
                match File::open(directory).and_then(|directory| directory.sync_all()) {
                    // Its last object was deleted meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    synced => synced?,
                }
            }
        }
        Ok(())
    }
}

/// Creates directories readable by their owner only: objects may be private.
fn make_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The directories of an object, innermost first, excluding its bucket's.
fn parents<'p>(bucket: &'p StoredBucket, path: &'p Path) -> impl Iterator<Item = &'p Path> {
    path.ancestors().skip(1).take_while(|directory| *directory != bucket.directory())
}

/// Runs `action`, creating the object's missing parent directories.
fn with_parents(
    bucket: &StoredBucket,
    path: &Path,
    mut action: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    for _ in 0..PARENT_TRIES {
        match action() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            done => return done,
        }
        // The bucket's own directory is never created here, or a put could restore a deleted bucket.
        let missing: Vec<&Path> = parents(bucket, path).collect();
        for directory in missing.into_iter().rev() {
            match fs::create_dir(directory) {
                Ok(()) => {}
                // A concurrent delete removed the parent: start over.
                Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::Error::other("its directory is always removed again"))
}
