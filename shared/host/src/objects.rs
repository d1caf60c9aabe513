//! Objects as files that any number of processes of one user read and write at the same time.
//!
//! Layout, below the folder that the store is opened with (`STATE/objects`):
//!
//! ```text
//! BUCKET/t+/ns+/jobs+/.../00000003.1.01.gmc=      one file per object: its key by `names.rs`, its end by `trailer.rs`
//! BUCKET/t+/ns+/jobs+/.../0123456789abcdef.draft  an object that is being written, locked by its writer
//! ```
//!
//! and beside it (`STATE/folders`) one link per folder of the user, see `folders.rs`. Folders have mode 0700, files
//! 0600.
//!
//! A put writes a draft and publishes it by a link that fails if the key has a file. So a key has at most one
//! writer, and no file is seen before it is whole. A power cut may still leave a file that is not: without its
//! trailer it is absent, and the next put removes it under the lock of the bucket's folder, which every delete
//! holds too. A delete removes folders that become empty, and a put into one makes it again; a delete may be undone
//! by a power cut.
//!
//! Every object but a chunk is on the disk, with the folders that lead to it, before its put is answered. A chunk
//! that is lost is computed again. One that was written before the machine's last start, and every object but a chunk,
//! is compared with its checksum when it is read whole, and is absent if it differs; a reader of parts relies on the
//! checksums within a chunk.

mod disk;
mod folders;
mod key_paths;
mod store;

pub use folders::FolderRegistry;

use async_trait::async_trait;
use bytes::Bytes;
use disk::HostDisk;
use gristmill_model::stored::keys;
use gristmill_ports::{
    BufferPool, ChangeStamp, MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath, ObjectStore,
    PutOutcome,
};
use std::{
    hash::{BuildHasher, RandomState},
    io,
    ops::Range,
    path::Path,
    sync::Arc,
};
use store::BucketStore;

/// The objects of one bucket, and the files of the user's folders as objects that are only read.
#[derive(Debug, Clone)]
pub struct FileObjects {
    store: Arc<BucketStore>,
    folders: Option<FolderRegistry>,
    buffers: BufferPool,
}

impl FileObjects {
    /// Opens the objects of `bucket` below `root`, and creates both folders if needed. The folder
    /// around `root` exists. Fails if they cannot be used, or their file system can neither link
    /// nor rename exclusively.
    pub fn open(root: &Path, bucket: &str) -> io::Result<Self> {
        let store =
            Arc::new(BucketStore::open(Box::new(HostDisk), root, bucket, boot(), random())?);
        Ok(Self { store, folders: None, buffers: BufferPool::default() })
    }

    /// Reads folders of the user too.
    #[must_use]
    pub fn with_folders(self, folders: FolderRegistry) -> Self {
        Self { folders: Some(folders), ..self }
    }

    /// Removes the drafts of writers that no longer run. Reads all folders: once at the start of a
    /// service. Fails if a folder cannot be read or a draft not removed.
    pub fn sweep(&self) -> io::Result<()> {
        self.store.sweep()
    }

    async fn read(
        &self,
        path: &ObjectPath,
        range: Option<Range<u64>>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        let (this, path, etag) = (self.clone(), path.clone(), etag.map(str::to_owned));
        blocking(move || {
            let source = Source { path: &path, range, etag: etag.as_deref() };
            if keys::is_mount(&path.bucket) {
                this.folder(&path.bucket)?.read(source, &this.buffers)
            } else {
                this.store.for_bucket(&path.bucket)?.read(source, &this.buffers)
            }
        })
        .await
    }

    fn folder(&self, bucket: &str) -> Result<Arc<folders::SourceFolder>, ObjectError> {
        let found = self.folders.as_ref().map_or(Ok(None), |folders| folders.find(bucket));
        let found = found.map_err(|error| failure(&error, &format_args!("folder {bucket}")))?;
        let unknown =
            || format!("{bucket} is no folder known on this machine: start the job again");
        // A client that runs makes it known again.
        found.ok_or_else(|| ObjectError::Unavailable(unknown()))
    }
}

#[async_trait]
impl ObjectStore for FileObjects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        let (store, path, put_id) = (Arc::clone(&self.store), path.clone(), put_id.to_owned());
        blocking(move || store.for_bucket(&path.bucket)?.put(&path, &body, &put_id)).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.read(path, None, None).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.read(path, Some(range), etag).await
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        if !keys::is_mount(&path.bucket) {
            return Ok(None);
        }
        let (this, path) = (self.clone(), path.clone());
        blocking(move || this.folder(&path.bucket)?.change_stamp(&path).map(Some)).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let (this, bucket, prefix) = (self.clone(), bucket.to_owned(), prefix.to_owned());
        blocking(move || {
            if keys::is_mount(&bucket) {
                this.folder(&bucket)?.list(&prefix)
            } else {
                this.store.for_bucket(&bucket)?.list(&prefix)
            }
        })
        .await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        let (store, bucket, keys) = (Arc::clone(&self.store), bucket.to_owned(), keys.to_vec());
        blocking(move || store.for_bucket(&bucket)?.delete(&keys)).await
    }
}

/// A number that no other store of this machine has.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Identifies this start of the machine; 0 if it is unknown.
fn boot() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Runs file operations, which may wait for a disk, beside the asynchronous tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
) -> Result<T, ObjectError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ObjectError::Unavailable(format!("file operations: {error}"))))
}

struct Source<'a> {
    path: &'a ObjectPath,
    /// None: the whole object.
    range: Option<Range<u64>>,
    etag: Option<&'a str>,
}

impl Source<'_> {
    /// The range within an object of `size` bytes.
    fn within(&self, size: u64) -> Result<Range<u64>, ObjectError> {
        let (path, range) = (self.path, self.range.clone().unwrap_or(0..size));
        let rejected = |what: String| Err(ObjectError::Rejected(format!("{path}: {what}")));
        match range.end.checked_sub(range.start) {
            Some(_) if range.end > size => rejected(format!("ends before byte {}", range.end)),
            Some(bytes) if bytes <= MAX_GET_BYTES => Ok(range),
            _ => rejected(format!("{range:?} is not a range of at most {MAX_GET_BYTES} bytes")),
        }
    }
}

fn read_range(
    pool: &BufferPool,
    range: Range<u64>,
    read_at: impl FnOnce(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<Bytes> {
    let bytes = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut buffer = pool.take_filled(bytes);
    read_at(&mut buffer, range.start)?;
    Ok(pool.lend(buffer))
}

/// The error of an operation on `what`, by the caller's next step.
fn failure(error: &io::Error, what: &dyn std::fmt::Display) -> ObjectError {
    use io::ErrorKind::{
        InvalidFilename, InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported,
    };
    let text = format!("{what}: {error}");
    match error.kind() {
        PermissionDenied | ReadOnlyFilesystem => ObjectError::Denied(text),
        InvalidFilename | InvalidInput | Unsupported => ObjectError::Rejected(text),
        _ => ObjectError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests;
