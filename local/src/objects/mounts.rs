//! A directory of the user mounted as a read-only bucket. Only files in it, and targets of its links, can be read.
//!
//! Keys are paths relative to the directory. Links out of the directory are resolved once, when it is mounted, and a key
//! leads to the file that its link led to then. Links that are created or changed later take effect when the directory is
//! mounted again, which requires the service's keys. Entity tags are derived from size and modification time, so a
//! reader that sends the tag it knows detects a changed file.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_folder::{Entry, walk};
use rustix::fs::{AtFlags, Dir, FileType};

use super::beneath::{Purpose, Root, open_exactly};
use super::record::{Info, Record};

/// Size and times of a file: a different stamp means a different file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    file_bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { file_bytes: metadata.len(), modified }
    }
}

/// Links of a directory by key, with fully resolved targets.
type Links = BTreeMap<String, PathBuf>;

/// A mounted directory.
#[derive(Debug)]
pub(super) struct MountedDirectory {
    path: PathBuf,
    directory: File,
    /// Resolved on first use.
    links: Mutex<Option<Arc<Links>>>,
}

impl MountedDirectory {
    /// # Errors
    /// If `path` is not a readable directory.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let directory = File::open(&path)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { path, directory, links: Mutex::default() })
    }

    /// Discards the resolved links.
    pub(super) fn forget_links(&self) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Path with all symbolic links resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of `key`, its metadata and its stamp. `None` if there is no such file.
    ///
    /// # Errors
    /// `PermissionDenied` if the path leads out of the directory without a link of its own, or may not be read.
    pub(super) fn open_file(&self, key: &str) -> io::Result<Option<(File, Info, Stamp)>> {
        let Some(file) = self.open_key(key, Purpose::Data)? else { return Ok(None) };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let stamp = Stamp::of(&metadata);
        Ok(Some((file, info(&metadata)?, stamp)))
    }

    /// Metadata of the file of `key`, without opening it.
    ///
    /// # Errors
    /// As [`Self::open_file`].
    pub(super) fn info(&self, key: &str) -> io::Result<Option<Info>> {
        let Some(file) = self.open_key(key, Purpose::Attributes)? else { return Ok(None) };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        info(&metadata).map(Some)
    }

    /// Visits the names in a directory: (name, whether it is a directory). Links to directories are omitted, because a link
    /// to a parent would recurse forever; links to files are visited.
    ///
    /// # Errors
    /// If the directory exists and cannot be read.
    pub(super) fn scan(&self, relative: &str, visit: &mut dyn FnMut(&str, bool)) -> io::Result<()> {
        let relative = relative.trim_end_matches('/');
        let directory = match relative {
            "" => self.root().open(".", Purpose::Entries)?,
            _ => self.open_key(relative, Purpose::Entries)?,
        };
        let Some(directory) = directory else { return Ok(()) };
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                let found = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
                let Ok(found) = found else { continue };
                kind = FileType::from_raw_mode(found.st_mode);
            }
            match kind {
                FileType::Directory => visit(name, true),
                FileType::RegularFile | FileType::Symlink => visit(name, false),
                _ => {}
            }
        }
        Ok(())
    }

    fn root(&self) -> Root<'_> {
        Root { directory: &self.directory, path: &self.path }
    }

    fn open_key(&self, key: &str, purpose: Purpose) -> io::Result<Option<File>> {
        if !is_path(key) {
            return Ok(None);
        }
        match self.root().open(key, purpose) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                self.open_linked(key, purpose, &error)
            }
            opened => opened,
        }
    }

    /// Opens the target of a link as resolved at mount time.
    fn open_linked(
        &self,
        key: &str,
        purpose: Purpose,
        escapes: &io::Error,
    ) -> io::Result<Option<File>> {
        let links = self.links()?;
        // The last link on the way: its target contains no other followed links.
        let ends = key.rmatch_indices('/').map(|(slash, _)| slash);
        for end in std::iter::once(key.len()).chain(ends) {
            if let Some(target) = links.get(&key[..end]) {
                let rest = key[end..].trim_start_matches('/');
                let path = if rest.is_empty() { target.clone() } else { target.join(rest) };
                return open_exactly(&path, purpose);
            }
        }
        Err(io::Error::new(ErrorKind::PermissionDenied, escapes.to_string()))
    }

    fn links(&self) -> io::Result<Arc<Links>> {
        let mut known = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(links) = &*known {
            return Ok(Arc::clone(links));
        }
        let mut links = Links::new();
        walk(&self.path, "", &mut |entry| {
            if let Entry::File(file) = entry
                && let Some(link) = file.link
                && !links.contains_key(link.key)
            {
                links.insert(link.key.to_owned(), link.target.to_owned());
            }
            true
        })?;
        Ok(Arc::clone(known.insert(Arc::new(links))))
    }
}

/// Whether a key can name a file: no empty, `.` or `..` component, and no NUL byte.
fn is_path(key: &str) -> bool {
    !key.contains('\0') && key.split('/').all(|component| !matches!(component, "" | "." | ".."))
}

fn info(metadata: &Metadata) -> io::Result<Info> {
    let etag = gristmill_folder::etag(metadata);
    let record = Record { object_bytes: metadata.len(), etag, ..Record::default() };
    Ok(Info { record, modified: metadata.modified()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_name_files() {
        for key in ["a", "a/b", "...", "a b", ".hidden"] {
            assert!(is_path(key), "{key}");
        }
        for key in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0"] {
            assert!(!is_path(key), "{key:?}");
        }
    }
}
