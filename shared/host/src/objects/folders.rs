//! Folders of the user as buckets that are only read. Only files in them, and targets of their links, can be read.
//!
//! `STATE/folders/NAME` is a link that names the folder of the bucket NAME; any process of the user may add one.
//! Keys are paths relative to the folder. Links out of it are resolved once, when one is first used, and a key
//! leads to the file that its link led to then; adding the folder again resolves them anew, in every process.
//! Entity tags are derived from size and modification time, so that a reader that sends the tag it knows detects a
//! changed file.

use super::disk::{Disk, HostDisk};
use super::disk::{open_beneath, open_exactly};
use super::{Source, failure, random, read_range};
use crate::folder::{FolderEntry, walk};
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_ports::{BufferPool, ChangeStamp, ObjectError, ObjectInfo, ObjectPath};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folders of the user that are known on this machine.
#[derive(Debug, Clone)]
pub struct FolderRegistry {
    place: PathBuf,
    known: Arc<Mutex<HashMap<String, Known>>>,
}

/// A folder, with the inode and the time of the link that named it.
#[derive(Debug)]
struct Known {
    stamp: [i64; 3],
    folder: Arc<SourceFolder>,
}

impl FolderRegistry {
    /// The registry in `state`, a folder that exists. Created with the first folder.
    pub fn new(state: &Path) -> Self {
        Self { place: state.join("folders"), known: Arc::default() }
    }

    /// Makes the folder `path` the bucket `name`. The last call for a name wins. Fails if the name
    /// is no folder's, `path` is no folder that can be read, or the state cannot be written.
    pub fn add(&self, name: &str, path: &Path) -> io::Result<()> {
        if !keys::is_mount(name) {
            let text = format!("{name:?} is no name of a folder");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let folder = SourceFolder::open(path)?;
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.place)?;
        let draft = self.place.join(format!("{:016x}", random()));
        symlink(&folder.path, &draft)?;
        fs::rename(&draft, self.place.join(name))?;
        HostDisk.sync_folder(&self.place)
    }

    /// All buckets and their folders, by name.
    pub fn all(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let entries = match HostDisk.entries(&self.place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.into_iter().map(|(name, _)| name).filter(|name| keys::is_mount(name));
        let mut all = names
            .map(|name| fs::read_link(self.place.join(&name)).map(|path| (name, path)))
            .collect::<io::Result<Vec<_>>>()?;
        all.sort();
        Ok(all)
    }

    /// The folder of a bucket; none if it was never added.
    pub(super) fn find(&self, name: &str) -> io::Result<Option<Arc<SourceFolder>>> {
        let place = self.place.join(name);
        let about = match fs::symlink_metadata(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            about => about?,
        };
        let stamp = [about.ino().cast_signed(), about.mtime(), about.mtime_nsec()];
        if let Some(known) = self.known.lock().get(name).filter(|known| known.stamp == stamp) {
            return Ok(Some(Arc::clone(&known.folder)));
        }
        let folder = Arc::new(SourceFolder::open(&fs::read_link(&place)?)?);
        let known = Known { stamp, folder: Arc::clone(&folder) };
        self.known.lock().insert(name.to_owned(), known);
        Ok(Some(folder))
    }
}

/// Links of a folder by key, with fully resolved targets.
type Links = BTreeMap<String, PathBuf>;

#[derive(Debug)]
pub(super) struct SourceFolder {
    /// All links resolved.
    path: PathBuf,
    folder: File,
    /// Resolved on first use.
    links: Mutex<Option<Arc<Links>>>,
}

impl SourceFolder {
    fn open(path: &Path) -> io::Result<Self> {
        let opened = path.canonicalize().and_then(|path| {
            let folder = File::open(&path)?;
            if folder.metadata()?.is_dir() {
                Ok(Self { path, folder, links: Mutex::default() })
            } else {
                Err(ErrorKind::NotADirectory.into())
            }
        });
        opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    pub(super) fn read(&self, source: Source<'_>, pool: &BufferPool) -> Result<Bytes, ObjectError> {
        let path = source.path;
        let failed = |error: io::Error| {
            failure(&error, &format_args!("read {}", self.path.join(&path.key).display()))
        };
        let absent = || ObjectError::NotFound(path.clone());
        let changed = || {
            *self.links.lock() = None;
            ObjectError::Changed(path.clone())
        };
        let file = self.open_key(&path.key).map_err(failed)?.ok_or_else(absent)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(absent());
        }
        let tag = etag(&about);
        if source.etag.is_some_and(|etag| etag != tag) {
            return Err(changed());
        }
        let range = source.within(about.len())?;
        let bytes = match read_range(pool, range, |buffer, at| file.read_exact_at(buffer, at)) {
            // It became shorter.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(changed()),
            bytes => bytes.map_err(failed)?,
        };
        if etag(&file.metadata().map_err(failed)?) == tag { Ok(bytes) } else { Err(changed()) }
    }

    pub(super) fn change_stamp(&self, path: &ObjectPath) -> Result<ChangeStamp, ObjectError> {
        let failed = |error: io::Error| {
            failure(&error, &format_args!("read {}", self.path.join(&path.key).display()))
        };
        let file = self.open_key(&path.key).map_err(failed)?;
        let file = file.ok_or_else(|| ObjectError::NotFound(path.clone()))?;
        let about = file.metadata().map_err(failed)?;
        Ok(ChangeStamp(crate::folder::change_stamp(&about)))
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let mut found = Vec::new();
        let listed = walk(&self.path, prefix, &mut |entry| {
            if let FolderEntry::File(file) = entry {
                let (size, etag) = (file.metadata.len(), etag(file.metadata));
                found.push(ObjectInfo { key: file.key.to_owned(), size, etag });
            }
            true
        });
        listed.map_err(|error| failure(&error, &format_args!("list {}", self.path.display())))?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn open_key(&self, key: &str) -> io::Result<Option<File>> {
        // No empty, `.` or `..` component, and no NUL byte.
        if key.contains('\0') || key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Ok(None);
        }
        match open_beneath(&self.folder, &self.path, key) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => self.open_linked(key),
            opened => opened,
        }
    }

    /// Opens the target of a link as it was resolved.
    fn open_linked(&self, key: &str) -> io::Result<Option<File>> {
        let links = self.links()?;
        // The last link on the way: its target contains no other followed links.
        let ends = key.rmatch_indices('/').map(|(slash, _)| slash);
        for end in std::iter::once(key.len()).chain(ends) {
            if let Some(target) = links.get(&key[..end]) {
                let rest = key[end..].trim_start_matches('/');
                let path = if rest.is_empty() { target.clone() } else { target.join(rest) };
                return open_exactly(&path);
            }
        }
        let text = "it leads out of the folder by a link made after the job began";
        Err(io::Error::new(ErrorKind::PermissionDenied, text))
    }

    fn links(&self) -> io::Result<Arc<Links>> {
        let mut known = self.links.lock();
        if let Some(links) = &*known {
            return Ok(Arc::clone(links));
        }
        let mut links = Links::new();
        walk(&self.path, "", &mut |entry| {
            if let FolderEntry::File(file) = entry
                && let Some(link) = file.link
            {
                links.entry(link.key.to_owned()).or_insert_with(|| link.target.to_owned());
            }
            true
        })?;
        Ok(Arc::clone(known.insert(Arc::new(links))))
    }
}

/// The entity tag of a file, in quotes as those of S3 are.
fn etag(about: &std::fs::Metadata) -> String {
    format!("\"{}\"", crate::folder::etag(about))
}
