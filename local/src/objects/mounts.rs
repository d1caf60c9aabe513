//! A directory of the user's offered as a bucket: read only, and nothing outside it but what its own links lead to.
//!
//! Keys are paths relative to the directory. Links that lead out of it are followed as they were when the directory was
//! mounted: all of them are looked up once, and a key leads to the very file that its link led to then. A link made or
//! changed later counts when the directory is mounted again; no request can do that without the keys of the service.
//! Entity tags come from size and modification time, so a reader that asks
//! for the tag it knows learns of a changed file.

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

/// What a file looked like: another stamp is another file.
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

/// Links of a directory, by key, and what each leads to, all links resolved.
type Links = BTreeMap<String, PathBuf>;

/// A mounted directory.
#[derive(Debug)]
pub(super) struct MountedDirectory {
    path: PathBuf,
    directory: File,
    /// Found when first needed.
    links: Mutex<Option<Arc<Links>>>,
}

impl MountedDirectory {
    /// # Errors
    /// When `path` is not a directory that can be read.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let directory = File::open(&path)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { path, directory, links: Mutex::default() })
    }

    /// Forgets what links led to: they are looked up again.
    pub(super) fn forget_links(&self) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Where it is, all symbolic links resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of `key`, what is known of it and how it looks; nothing when there is no such file.
    ///
    /// # Errors
    /// `PermissionDenied` when the path leads out of the directory by no link of its own, or may not be read.
    pub(super) fn open_file(&self, key: &str) -> io::Result<Option<(File, Info, Stamp)>> {
        let Some(file) = self.open_key(key, Purpose::Data)? else { return Ok(None) };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let stamp = Stamp::of(&metadata);
        Ok(Some((file, info(&metadata)?, stamp)))
    }

    /// What is known of the file of `key`, without opening it.
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

    /// Visits the names in a directory: (name, whether it is a directory). Links to directories are left out, because
    /// one to a directory above would never end; a link to a file is visited, wherever it leads.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
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

    /// Opens what a link led to when links were looked up.
    fn open_linked(
        &self,
        key: &str,
        purpose: Purpose,
        escapes: &io::Error,
    ) -> io::Result<Option<File>> {
        let links = self.links()?;
        // The last link on the way: what it leads to holds no others that were followed.
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

/// Whether a key can name a file: no empty, `.` or `..` component, and nothing the system would cut off.
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
