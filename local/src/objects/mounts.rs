//! A directory of the user's offered as a bucket: read only, and nothing outside it.
//!
//! Keys are paths relative to the directory. Entity tags come from size and modification time, so a reader that asks
//! for the tag it knows learns of a changed file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType};

use super::beneath::{Purpose, Root};
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

    fn etag(self) -> String {
        format!("{:x}-{:x}{:08x}", self.file_bytes, self.modified.0, self.modified.1)
    }
}

/// A mounted directory.
#[derive(Debug)]
pub(super) struct MountedDirectory {
    path: PathBuf,
    directory: File,
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
        Ok(Self { path, directory })
    }

    /// Where it is, all symbolic links resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of `key`, what is known of it and how it looks; nothing when there is no such file.
    ///
    /// # Errors
    /// `PermissionDenied` when the path leads out of the directory or may not be read.
    pub(super) fn open_file(&self, key: &str) -> io::Result<Option<(File, Info, Stamp)>> {
        let Some(file) = self.open_key(key, Purpose::Data)? else { return Ok(None) };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let stamp = Stamp::of(&metadata);
        Ok(Some((file, info(&metadata, stamp)?, stamp)))
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
        info(&metadata, Stamp::of(&metadata)).map(Some)
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
        if is_path(key) { self.root().open(key, purpose) } else { Ok(None) }
    }
}

/// Whether a key can name a file: no empty, `.` or `..` component, and nothing the system would cut off.
fn is_path(key: &str) -> bool {
    !key.contains('\0') && key.split('/').all(|component| !matches!(component, "" | "." | ".."))
}

fn info(metadata: &Metadata, stamp: Stamp) -> io::Result<Info> {
    let record = Record { object_bytes: metadata.len(), etag: stamp.etag(), ..Record::default() };
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
