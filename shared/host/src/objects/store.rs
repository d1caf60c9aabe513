//! The objects of the service's own bucket: putting, reading, listing, deleting.

use super::disk::{Disk, DiskFile};
use super::trailer::{PUT_ID_BYTES, Trailer, crc};
use super::{Source, failure, names, read_range};
use bytes::Bytes;
use gristmill_folder::MAX_KEY_BYTES;
use gristmill_model::stored::keys;
use gristmill_ports::{BufferPool, ObjectError, ObjectInfo, ObjectPath, PutOutcome};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Tries of a put whose folder or file others remove at the same time.
const TRIES: usize = 64;
/// Bytes compared, or summed, at once.
const PIECE_BYTES: u64 = 1 << 20;
const DRAFT: &str = ".draft";

#[derive(Debug)]
pub(super) struct Store {
    disk: Box<dyn Disk>,
    root: PathBuf,
    bucket: String,
    /// The bucket's folder. It is never removed, and its lock excludes all removals of objects.
    folder: PathBuf,
}

/// The file at an object's place.
enum Found {
    Absent,
    /// Left by a power cut.
    Broken,
    Whole(Box<dyn DiskFile>, Trailer),
}

/// A file with a name of its own until it is published; the name is removed in any case.
struct Draft<'d> {
    disk: &'d dyn Disk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        match self.disk.remove(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "a draft is left until the next start");
            }
            _ => {}
        }
    }
}

impl Store {
    pub(super) fn open(disk: Box<dyn Disk>, root: &Path, bucket: &str) -> io::Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if bucket.is_empty() || !bucket.bytes().all(|byte| is_plain(byte) || byte == b'-') {
            let text = format!("{bucket:?} cannot be a bucket: use a-z, 0-9 and '-'");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let root = std::path::absolute(root)?;
        let (folder, bucket) = (root.join(bucket), bucket.to_owned());
        let store = Self { disk, root, bucket, folder };
        let opened = store.make_folders().and_then(|()| match store.try_to_publish() {
            // An error of puts.
            Err(error) if is_full(&error) => Ok(()),
            tried => tried,
        });
        match opened {
            Ok(()) => Ok(store),
            Err(error) => {
                let text = format!("{}: {error}", store.root.display());
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    fn make_folders(&self) -> io::Result<()> {
        self.make_folder(&self.root)?;
        self.make_folder(&self.folder)?;
        self.disk.sync_folder(&self.root)?;
        match self.root.parent().map_or(Ok(()), |parent| self.disk.sync_folder(parent)) {
            // The folder of another user.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        }
    }

    /// Fails on a file system on which a put could replace an object.
    fn try_to_publish(&self) -> io::Result<()> {
        let draft = self.draft(&self.folder, b"", &Trailer::new(b"", "", 0))?;
        let published = draft_path(&*self.disk, &self.folder);
        self.disk.publish(&draft.path, &published)?;
        self.disk.remove(&published)
    }

    /// This store, if `bucket` is its own.
    pub(super) fn of(&self, bucket: &str) -> Result<&Self, ObjectError> {
        match bucket == self.bucket {
            true => Ok(self),
            false => Err(ObjectError::Rejected(format!("s3://{bucket} is not on this machine"))),
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
        let trailer = Trailer::new(body, put_id, self.disk.boot());
        self.put_file(&path.key, body, &trailer).map_err(|error| self.failed("put", path, &error))
    }

    fn put_file(&self, key: &str, body: &[u8], trailer: &Trailer) -> io::Result<PutOutcome> {
        let (path, is_synced) = (self.path(key), !keys::is_recomputed(key));
        let folder = path.parent().unwrap_or(&self.folder);
        for _ in 0..TRIES {
            let outcome = match self.look(&path)? {
                Found::Broken => {
                    self.remove_broken(key)?;
                    continue;
                }
                Found::Whole(file, found) if self.is_torn(key, &*file, &found)? => {
                    self.remove_broken(key)?;
                    continue;
                }
                Found::Whole(file, found) => match is_same(&*file, &found, body, trailer)? {
                    true => PutOutcome::Created,
                    false => PutOutcome::Exists,
                },
                Found::Absent => {
                    let draft = self.draft(folder, body, trailer)?;
                    if is_synced {
                        draft.file.sync()?;
                    }
                    match self.disk.publish(&draft.path, &path) {
                        Ok(()) => PutOutcome::Created,
                        // Another writer was first: its object decides.
                        Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            if is_synced {
                // Also an object that another writer published: it may not have come to this.
                self.sync_folders(folder)?;
            }
            return Ok(outcome);
        }
        Err(io::Error::other("others remove or replace it all the time"))
    }

    /// Writes a draft, and makes the folders that it needs.
    fn draft(&self, folder: &Path, body: &[u8], trailer: &Trailer) -> io::Result<Draft<'_>> {
        for _ in 0..TRIES {
            let path = draft_path(&*self.disk, folder);
            match self.disk.create(&path) {
                Ok(file) => {
                    let mut draft = Draft { disk: &*self.disk, path, file };
                    draft.file.write(body)?;
                    draft.file.write(&trailer.encode())?;
                    return Ok(draft);
                }
                // A delete removes empty folders.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let missing: Vec<_> = self.inner_folders(folder).collect();
                    for folder in missing.into_iter().rev() {
                        self.make_folder(folder)?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("its folder is removed all the time"))
    }

    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        match self.disk.make_folder(folder) {
            // Not found: its parent was removed again.
            Err(e) if e.kind() == ErrorKind::NotFound && folder != self.root => Ok(()),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(names::object_path(key))
    }

    /// The folders from `folder` up to the bucket's, which is left out.
    fn inner_folders<'p>(&'p self, folder: &'p Path) -> impl Iterator<Item = &'p Path> {
        folder.ancestors().take_while(|folder| *folder != self.folder)
    }

    fn sync_folders(&self, folder: &Path) -> io::Result<()> {
        for folder in self.inner_folders(folder).chain([&*self.folder]) {
            match self.disk.sync_folder(folder) {
                // The object was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
        Ok(())
    }

    fn look(&self, path: &Path) -> io::Result<Found> {
        let file = match self.disk.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Absent),
            // A link is no object.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return Ok(Found::Broken);
            }
            Err(error) => return Err(error),
        };
        Ok(match Trailer::read(&*file)? {
            Some(trailer) => Found::Whole(file, trailer),
            None => Found::Broken,
        })
    }

    /// Whether a power cut may have spoiled the body of a file with a trailer.
    fn is_in_doubt(&self, key: &str, trailer: &Trailer) -> bool {
        keys::is_recomputed(key) && (trailer.boot == 0 || trailer.boot != self.disk.boot())
    }

    fn is_torn(&self, key: &str, file: &dyn DiskFile, trailer: &Trailer) -> io::Result<bool> {
        if !self.is_in_doubt(key, trailer) {
            return Ok(false);
        }
        let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        pieces(file, trailer.body_bytes, |_, piece| {
            sum.update(piece);
            true
        })?;
        Ok(sum.finalize() as u32 != trailer.body_crc)
    }

    /// Removes what a power cut left at an object's place. Looks again under the lock: another writer may have
    /// replaced it.
    fn remove_broken(&self, key: &str) -> io::Result<()> {
        let _lock = self.disk.lock_folder(&self.folder)?;
        let path = self.path(key);
        match self.look(&path)? {
            Found::Absent => Ok(()),
            Found::Whole(file, trailer) if !self.is_torn(key, &*file, &trailer)? => Ok(()),
            Found::Broken | Found::Whole(..) => self.disk.remove(&path),
        }
    }

    pub(super) fn read(
        &self,
        source: Source<'_>,
        buffers: &BufferPool,
    ) -> Result<Bytes, ObjectError> {
        let path = source.path;
        let failed = |error: io::Error| self.failed("read", path, &error);
        let absent = || ObjectError::NotFound(path.clone());
        if path.key.len() > MAX_KEY_BYTES {
            return Err(absent());
        }
        let Found::Whole(file, trailer) = self.look(&self.path(&path.key)).map_err(failed)? else {
            return Err(absent());
        };
        if source.etag.is_some_and(|etag| etag != trailer.etag()) {
            return Err(ObjectError::Changed(path.clone()));
        }
        let range = source.within(trailer.body_bytes)?;
        let is_all = range == (0..trailer.body_bytes);
        let bytes = read_range(buffers, range, |buffer, at| file.read_at(buffer, at));
        let bytes = bytes.map_err(failed)?;
        match is_all && self.is_in_doubt(&path.key, &trailer) && crc(&bytes) != trailer.body_crc {
            true => Err(absent()),
            false => Ok(bytes),
        }
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let folder = self.folder.join(names::prefix_directory(prefix));
        let mut found = Vec::new();
        let listed = self.walk(&folder, &mut |path| {
            let relative = path.strip_prefix(&self.folder).ok().and_then(Path::to_str);
            let Some(key) = relative.and_then(names::parse_path) else { return Ok(()) };
            if key.starts_with(prefix)
                && let Found::Whole(_, trailer) = self.look(path)?
            {
                let (size, etag) = (trailer.body_bytes, trailer.etag());
                found.push(ObjectInfo { key, size, etag });
            }
            Ok(())
        });
        listed.map_err(|error| self.failed("list", &folder.display(), &error))?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    pub(super) fn delete(&self, keys: &[String]) -> Result<(), ObjectError> {
        let lock = self.disk.lock_folder(&self.folder);
        let _lock = lock.map_err(|error| self.failed("lock", &self.folder.display(), &error))?;
        for key in keys.iter().filter(|key| key.len() <= MAX_KEY_BYTES) {
            let path = self.path(key);
            let removed = match self.disk.remove(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => self.remove_empty_folders(&path),
            };
            removed.map_err(|error| self.failed("delete", &path.display(), &error))?;
        }
        Ok(())
    }

    /// Removes the folders that lead to `path`, up to the first that is not empty.
    fn remove_empty_folders(&self, path: &Path) -> io::Result<()> {
        for folder in self.inner_folders(path).skip(1) {
            match self.disk.remove_folder(folder) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn sweep(&self) -> io::Result<()> {
        self.walk(&self.folder, &mut |path| {
            if sweep_draft(&*self.disk, path)? {
                self.remove_empty_folders(path)?;
            }
            Ok(())
        })
    }

    pub(super) fn bytes_in_use(&self) -> io::Result<u64> {
        const BLOCK_BYTES: u64 = 512;
        let mut bytes = 0;
        self.walk(&self.root, &mut |path| match fs::symlink_metadata(path) {
            Ok(metadata) => {
                bytes += metadata.blocks() * BLOCK_BYTES;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })?;
        Ok(bytes)
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
                match is_folder {
                    true => folders.push(folder.join(name)),
                    false => visit(&folder.join(name))?,
                }
            }
        }
        Ok(())
    }

    fn failed(&self, doing: &str, what: &dyn std::fmt::Display, error: &io::Error) -> ObjectError {
        let root = self.root.display();
        match (is_full(error), self.disk.free_bytes(&self.root)) {
            (true, Ok(free)) => {
                ObjectError::Unavailable(format!("no space left below {root} ({free} bytes free)"))
            }
            (true, Err(_)) => ObjectError::Unavailable(format!("no space left below {root}")),
            (false, _) => failure(error, &format_args!("{doing} {what} below {root}")),
        }
    }
}

/// A path for a new draft.
pub(super) fn draft_path(disk: &dyn Disk, folder: &Path) -> PathBuf {
    folder.join(format!("{:016x}{DRAFT}", disk.fresh_number()))
}

/// Removes a draft if its writer no longer runs. False for any other file.
pub(super) fn sweep_draft(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    if !path.to_str().is_some_and(|path| path.ends_with(DRAFT)) {
        return Ok(false);
    }
    let swept = disk.open(path).and_then(|file| match file.lock_if_free()? {
        true => disk.remove(path).map(|()| true),
        false => Ok(false),
    });
    match swept {
        // Its writer ended meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        swept => swept,
    }
}

fn is_full(error: &io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Whether a file is by this very put, or by one of the same body.
fn is_same(
    file: &dyn DiskFile,
    found: &Trailer,
    body: &[u8],
    trailer: &Trailer,
) -> io::Result<bool> {
    if found.put_id == trailer.put_id {
        return Ok(true);
    }
    if found.etag() != trailer.etag() {
        return Ok(false);
    }
    pieces(file, found.body_bytes, |at, piece| body[at as usize..].starts_with(piece))
}

/// Reads the first `bytes` of a file in pieces while `visit` returns true. Returns whether it always did.
fn pieces(
    file: &dyn DiskFile,
    bytes: u64,
    mut visit: impl FnMut(u64, &[u8]) -> bool,
) -> io::Result<bool> {
    let mut buffer = vec![0; bytes.min(PIECE_BYTES) as usize];
    for at in (0..bytes).step_by(PIECE_BYTES as usize) {
        let piece = &mut buffer[..(bytes - at).min(PIECE_BYTES) as usize];
        file.read_at(piece, at)?;
        if !visit(at, piece) {
            return Ok(false);
        }
    }
    Ok(true)
}
