//! The objects of the service's own bucket: putting, reading, listing, deleting.

use super::{
    Source,
    disk::{Disk, DiskFile, is_any},
    failure, key_paths, read_range,
};
use crate::{folder::MAX_KEY_BYTES, places::free_space};
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_ports::{BufferPool, ObjectError, ObjectInfo, ObjectPath, PutOutcome};
use rustix::io::Errno;
use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Tries of a put whose folder or file others remove at the same time.
const TRIES: usize = 64;
const DRAFT: &str = "draft";

#[derive(Debug)]
pub(super) struct BucketStore {
    disk: Box<dyn Disk>,
    root: PathBuf,
    bucket: String,
    /// The bucket's folder. It is never removed, and its lock excludes all removals of objects.
    folder: PathBuf,
    /// Identifies this start of the machine; 0 if it is unknown.
    boot: u64,
    next_draft: AtomicU64,
}

/// The file at an object's place.
enum Found {
    Absent,
    /// Left by a power cut.
    Broken,
    Whole(Box<dyn DiskFile>, ObjectTrailer),
}

/// A file with a name of its own until it is published; the name is removed in any case.
struct Draft<'d> {
    disk: &'d dyn Disk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Err(error) = unless_gone(self.disk.remove(&self.path)) {
            tracing::warn!(path = %self.path.display(), %error, "a draft is left until the next start");
        }
    }
}

impl BucketStore {
    /// Opens the bucket's folder, and creates it. Drafts are numbered from `first_draft`, a number of this store's own.
    pub(super) fn open(
        disk: Box<dyn Disk>,
        root: &Path,
        bucket: &str,
        boot: u64,
        first_draft: u64,
    ) -> io::Result<Self> {
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        if bucket.is_empty() || bucket.starts_with('.') || !bucket.bytes().all(is_plain) {
            let text = format!("{bucket:?} cannot be a bucket: use a-z, 0-9, '-' and '.'");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let root = std::path::absolute(root)?;
        let (folder, bucket) = (root.join(bucket), bucket.to_owned());
        let store = Self { disk, root, bucket, folder, boot, next_draft: first_draft.into() };
        let opened = store.make_folders().and_then(|()| match store.try_to_publish() {
            // An error of puts.
            Err(error) if is_full(&error) => Ok(()),
            tried => tried,
        });
        let place = store.root.display();
        opened.map_err(|error| io::Error::new(error.kind(), format!("{place}: {error}")))?;
        Ok(store)
    }

    fn make_folders(&self) -> io::Result<()> {
        for folder in [&self.root, &self.folder] {
            unless(ErrorKind::AlreadyExists, self.disk.make_folder(folder))?;
            let outer = folder.parent().unwrap_or(folder);
            // The state may lie in a folder of another user.
            unless(ErrorKind::PermissionDenied, self.disk.sync_folder(outer))?;
        }
        Ok(())
    }

    /// Fails on a file system on which a put could replace an object.
    fn try_to_publish(&self) -> io::Result<()> {
        let draft = self.draft(&self.folder, b"", b"")?;
        let published = self.draft_path(&self.folder);
        self.disk.publish(&draft.path, &published)?;
        self.disk.remove(&published)
    }

    pub(super) fn for_bucket(&self, bucket: &str) -> Result<&Self, ObjectError> {
        if bucket == self.bucket {
            Ok(self)
        } else {
            Err(ObjectError::Rejected(format!("s3://{bucket} is not on this machine")))
        }
    }

    pub(super) fn put(
        &self,
        path: &ObjectPath,
        body: &[u8],
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        if path.key.len() > MAX_KEY_BYTES || put_id.len() > PUT_ID_BYTES {
            let text = "its key or the put's id has more than 1024 bytes";
            return Err(ObjectError::Rejected(format!("{path}: {text}")));
        }
        let trailer = ObjectTrailer::new(body, put_id, self.boot);
        let put = (0..TRIES).find_map(|_| self.try_put(&path.key, body, &trailer).transpose());
        let lost = || Err(io::Error::other("others remove it all the time"));
        put.unwrap_or_else(lost).map_err(|error| self.failed("put", path, &error))
    }

    /// None if others changed what was found.
    fn try_put(
        &self,
        key: &str,
        body: &[u8],
        trailer: &ObjectTrailer,
    ) -> io::Result<Option<PutOutcome>> {
        let (path, is_synced) = (self.path(key), !keys::is_recomputed(key));
        let folder = path.parent().unwrap_or(&self.folder);
        let outcome = match self.look_closely(key)? {
            Found::Broken => return self.remove_broken(key).map(|()| None),
            Found::Whole(file, found) => {
                let is_same = found.put_id == trailer.put_id
                    || found.etag() == trailer.etag() && read_body(&*file, &found)? == body;
                if is_same { PutOutcome::Created } else { PutOutcome::Exists }
            }
            Found::Absent => {
                let draft = self.draft(folder, body, &trailer.encode(key))?;
                if is_synced {
                    draft.file.sync()?;
                }
                match self.disk.publish(&draft.path, &path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
                    published => published.map(|()| PutOutcome::Created)?,
                }
            }
        };
        if is_synced {
            // Also an object that another writer published, who may not have come to this.
            for folder in self.inner_folders(folder).chain([&*self.folder]) {
                unless_gone(self.disk.sync_folder(folder))?;
            }
        }
        Ok(Some(outcome))
    }

    /// Writes a draft, and makes the folders that it needs.
    fn draft(&self, folder: &Path, body: &[u8], end: &[u8]) -> io::Result<Draft<'_>> {
        for _ in 0..TRIES {
            let path = self.draft_path(folder);
            match self.disk.create(&path) {
                // A delete removes empty folders.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let missing: Vec<_> = self.inner_folders(folder).collect();
                    for folder in missing.into_iter().rev() {
                        // Its parent may be gone again.
                        let made = unless_gone(self.disk.make_folder(folder));
                        unless(ErrorKind::AlreadyExists, made)?;
                    }
                }
                created => {
                    let mut draft = Draft { disk: &*self.disk, path, file: created? };
                    draft.file.write(body)?;
                    draft.file.write(end)?;
                    return Ok(draft);
                }
            }
        }
        Err(io::Error::other("its folder is removed all the time"))
    }

    fn draft_path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:016x}.{DRAFT}", self.next_draft.fetch_add(1, Relaxed)))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(key_paths::object_path(key))
    }

    /// The folders from `folder` up to the bucket's, which is left out.
    fn inner_folders<'p>(&'p self, folder: &'p Path) -> impl Iterator<Item = &'p Path> {
        folder.ancestors().take_while(|folder| *folder != self.folder)
    }

    fn look(&self, key: &str) -> io::Result<Found> {
        let file = match self.disk.open(&self.path(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Absent),
            // A link is no object.
            Err(error) if is_any(&error, &[Errno::LOOP]) => return Ok(Found::Broken),
            opened => opened?,
        };
        let trailer = ObjectTrailer::read(&*file, key)?;
        Ok(trailer.map_or(Found::Broken, |trailer| Found::Whole(file, trailer)))
    }

    /// As [`Self::look`], and compares the checksum of a body in doubt.
    fn look_closely(&self, key: &str) -> io::Result<Found> {
        match self.look(key)? {
            Found::Whole(file, trailer)
                if self.is_in_doubt(key, &trailer)
                    && crc(&read_body(&*file, &trailer)?) != trailer.body_crc =>
            {
                Ok(Found::Broken)
            }
            found => Ok(found),
        }
    }

    /// Whether the body of a file with a trailer is compared with its checksum: always but for a chunk, which has
    /// checksums of its own, and which only a power cut may have spoiled.
    fn is_in_doubt(&self, key: &str, trailer: &ObjectTrailer) -> bool {
        !keys::is_recomputed(key) || trailer.boot == 0 || trailer.boot != self.boot
    }

    /// The error if the bucket's folder is gone, as when a disk is not mounted: then no object counts as absent.
    fn missing(&self) -> Option<io::Error> {
        let found = self.disk.entries(&self.folder);
        found.err().map(|error| io::Error::other(format!("{}: {error}", self.folder.display())))
    }

    /// Removes what a power cut left at an object's place, unless another writer has replaced it meanwhile.
    fn remove_broken(&self, key: &str) -> io::Result<()> {
        let _lock = self.disk.lock_folder(&self.folder)?;
        match self.look_closely(key)? {
            Found::Broken => self.disk.remove(&self.path(key)),
            Found::Absent | Found::Whole(..) => Ok(()),
        }
    }

    pub(super) fn read(&self, source: Source<'_>, pool: &BufferPool) -> Result<Bytes, ObjectError> {
        let path = source.path;
        let failed = |error: io::Error| self.failed("read", path, &error);
        let absent = || ObjectError::NotFound(path.clone());
        if path.key.len() > MAX_KEY_BYTES {
            return Err(absent());
        }
        let Found::Whole(file, trailer) = self.look(&path.key).map_err(failed)? else {
            return Err(self.missing().map_or_else(absent, failed));
        };
        if source.etag.is_some_and(|etag| etag != trailer.etag()) {
            return Err(ObjectError::Changed(path.clone()));
        }
        let range = source.within(trailer.body_bytes)?;
        let is_all = range == (0..trailer.body_bytes);
        let bytes = read_range(pool, range, |buffer, at| file.read_at(buffer, at));
        let bytes = bytes.map_err(failed)?;
        if is_all && self.is_in_doubt(&path.key, &trailer) && crc(&bytes) != trailer.body_crc {
            Err(absent())
        } else {
            Ok(bytes)
        }
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let mut found = Vec::new();
        let listed =
            self.walk(&self.folder.join(key_paths::prefix_directory(prefix)), &mut |path| {
                let relative = path.strip_prefix(&self.folder).ok().and_then(Path::to_str);
                let key =
                    relative.and_then(key_paths::parse_path).filter(|key| key.starts_with(prefix));
                if let Some(key) = key
                    && let Found::Whole(_, trailer) = self.look(&key)?
                {
                    let (size, etag) = (trailer.body_bytes, trailer.etag());
                    found.push(ObjectInfo { key, size, etag });
                }
                Ok(())
            });
        listed.map_err(|error| self.failed("list", &prefix, &error))?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    pub(super) fn delete(&self, keys: &[String]) -> Result<(), ObjectError> {
        for path in keys.iter().filter(|key| key.len() <= MAX_KEY_BYTES).map(|key| self.path(key)) {
            // Locked for one file at a time: a process may be paused anywhere.
            let locked = self.disk.lock_folder(&self.folder);
            let removed = locked.and_then(|_lock| unless_gone(self.disk.remove(&path)));
            removed
                .and_then(|()| self.remove_empty_folders(&path))
                .map_err(|error| self.failed("delete", &path.display(), &error))?;
        }
        Ok(())
    }

    /// Removes the folders that lead to `path`, up to the first that is not empty.
    fn remove_empty_folders(&self, path: &Path) -> io::Result<()> {
        for folder in self.inner_folders(path).skip(1) {
            match self.disk.remove_folder(folder) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
                removed => unless_gone(removed)?,
            }
        }
        Ok(())
    }

    /// Removes drafts whose writers no longer run.
    pub(super) fn sweep(&self) -> io::Result<()> {
        self.walk(&self.folder, &mut |path| {
            if path.extension().is_none_or(|extension| extension != DRAFT) {
                return Ok(());
            }
            unless_gone(self.disk.open(path).and_then(|file| {
                if file.lock_if_free()? {
                    self.disk.remove(path).and_then(|()| self.remove_empty_folders(path))
                } else {
                    Ok(())
                }
            }))
        })
    }

    /// Visits all files below `folder`. Folders that vanish meanwhile are empty.
    fn walk(
        &self,
        folder: &Path,
        visit: &mut dyn FnMut(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match self.disk.entries(&folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for (name, is_folder) in entries {
                if is_folder { folders.push(folder.join(name)) } else { visit(&folder.join(name))? }
            }
        }
        Ok(())
    }

    fn failed(&self, doing: &str, what: &dyn std::fmt::Display, error: &io::Error) -> ObjectError {
        let root = self.root.display();
        if !is_full(error) {
            return failure(error, &format_args!("{doing} {what} below {root}"));
        }
        let free = free_space(&self.root);
        ObjectError::Unavailable(format!("no space left below {root} ({free})"))
    }
}

fn is_full(error: &io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn unless(expected: ErrorKind, done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == expected => Ok(()),
        done => done,
    }
}

/// Accepts that another process removed the file or folder.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    unless(ErrorKind::NotFound, done)
}

fn read_body(file: &dyn DiskFile, trailer: &ObjectTrailer) -> io::Result<Vec<u8>> {
    let mut body = vec![0; usize::try_from(trailer.body_bytes).map_err(io::Error::other)?];
    file.read_at(&mut body, 0)?;
    Ok(body)
}

const MAGIC: [u8; 8] = *b"gmobj\0\x03\n";
/// Bytes after the put id.
const FIXED_BYTES: usize = 36;
pub(super) const PUT_ID_BYTES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectTrailer {
    pub body_bytes: u64,
    pub boot: u64,
    pub body_crc: u32,
    pub put_id: String,
}

impl ObjectTrailer {
    pub(super) fn new(body: &[u8], put_id: &str, boot: u64) -> Self {
        let (body_bytes, put_id) = (body.len() as u64, put_id.to_owned());
        Self { body_bytes, boot, body_crc: crc(body), put_id }
    }

    pub(super) fn etag(&self) -> String {
        format!("{:x}-{:08x}", self.body_bytes, self.body_crc)
    }

    pub(super) fn encode(&self, key: &str) -> Vec<u8> {
        let mut out = self.put_id.as_bytes().to_vec();
        out.extend(self.body_bytes.to_le_bytes());
        out.extend(self.boot.to_le_bytes());
        out.extend(self.body_crc.to_le_bytes());
        out.extend((self.put_id.len() as u32).to_le_bytes());
        out.extend(crc_under(key, &out).to_le_bytes());
        out.extend(MAGIC);
        out
    }

    /// The trailer of the whole file of the object `key`; none for any other.
    pub(super) fn read(file: &dyn DiskFile, key: &str) -> io::Result<Option<Self>> {
        let file_bytes = file.bytes()?;
        let end_bytes = file_bytes.min((PUT_ID_BYTES + FIXED_BYTES) as u64);
        let mut end = vec![0; end_bytes as usize];
        file.read_at(&mut end, file_bytes - end_bytes)?;
        Ok(Self::decode(&end, file_bytes, key))
    }

    fn decode(end: &[u8], file_bytes: u64, key: &str) -> Option<Self> {
        let (id, fixed) = end.split_at_checked(end.len().checked_sub(FIXED_BYTES)?)?;
        let number = |at: usize| fixed.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it));
        let long = |at: usize| fixed.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it));
        let id = id.get(id.len().checked_sub(number(20)? as usize)?..)?;
        let summed = end.get(end.len() - FIXED_BYTES - id.len()..end.len() - 12)?;
        let body_bytes = long(0)?;
        let is_whole = fixed.ends_with(&MAGIC)
            && number(24)? == crc_under(key, summed)
            && body_bytes.checked_add((id.len() + FIXED_BYTES) as u64)? == file_bytes;
        let put_id = String::from_utf8(id.to_vec()).ok()?;
        is_whole.then_some(Self { body_bytes, boot: long(8)?, body_crc: number(16)?, put_id })
    }
}

/// CRC-32C.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of `key` and `bytes`.
fn crc_under(key: &str, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key.as_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod trailer_tests {
    use super::*;

    #[test]
    fn only_a_whole_file_has_a_trailer() {
        for id in ["", "put", &"x".repeat(PUT_ID_BYTES)] {
            let trailer = ObjectTrailer::new(&[7; 5000], id, 3);
            let mut file = vec![7; 5000];
            file.extend(trailer.encode("key"));
            let decode_under = |key: &str, file: &[u8]| {
                let end = file.len().saturating_sub(PUT_ID_BYTES + FIXED_BYTES);
                ObjectTrailer::decode(&file[end..], file.len() as u64, key)
            };
            let decode = |file: &[u8]| decode_under("key", file);
            assert_eq!(decode(&file), Some(trailer));
            assert_eq!(decode_under("other", &file), None, "another key");
            for cut in 0..file.len() {
                assert_eq!(decode(&file[..cut]), None, "cut at {cut}");
            }
            for at in 5000..file.len() {
                let mut damaged = file.clone();
                damaged[at] ^= 1;
                assert_eq!(decode(&damaged), None, "damaged at {at}");
            }
            file.insert(0, 7);
            assert_eq!(decode(&file), None, "another length");
        }
    }
}
