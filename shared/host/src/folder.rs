//! Finds the files below a folder of this machine, following links, and reports what it leaves out.
//!
//! A key is a path relative to the folder. Links to files and folders are followed even outside the folder: its owner
//! put them there. A folder is not entered again from within itself. Everything that is not a readable file is passed
//! to the caller with the reason, so that nothing is left out silently.

use rustix::fs::{Access, access};
use std::{
    fmt,
    fs::{self, Metadata},
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Longest key, as on S3.
pub const MAX_KEY_BYTES: usize = 1024;
/// Most folder links on the way to a file: folders linked to each other have exponentially many paths.
const MAX_LINKS: usize = 4;

/// Something in a folder.
#[derive(Debug)]
pub enum FolderEntry<'a> {
    File(FolderFile<'a>),
    /// A folder, with a trailing slash. It is entered if the visitor returns true.
    Folder(&'a str),
    /// Anything else, by its printable key, with the reason.
    Other(&'a str, UnreadableReason),
}

/// A regular file.
#[derive(Debug)]
pub struct FolderFile<'a> {
    pub key: &'a str,
    pub metadata: &'a Metadata,
    /// Last link on the path, if any.
    pub link: Option<FolderLink<'a>>,
}

/// A link that was followed.
#[derive(Debug, Clone, Copy)]
pub struct FolderLink<'a> {
    pub key: &'a str,
    /// Target with all links resolved.
    pub target: &'a Path,
}

/// Reason why an entry is not a readable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnreadableReason {
    NotText,
    LongName,
    BrokenLink,
    /// A link to a folder that contains it.
    Loop,
    ManyLinks,
    /// A pipe, socket or device, in words.
    Special(&'static str),
    /// Exists but cannot be read by this process.
    Unreadable(String),
}

impl fmt::Display for UnreadableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotText => f.write_str("its name is not UTF-8: rename it"),
            Self::LongName => write!(f, "its path has more than {MAX_KEY_BYTES} bytes"),
            Self::BrokenLink => f.write_str("broken link"),
            Self::Loop => f.write_str("a link to a folder that contains it"),
            Self::ManyLinks => write!(f, "behind more than {MAX_LINKS} links to folders"),
            Self::Special(what) => f.write_str(what),
            Self::Unreadable(error) => f.write_str(error),
        }
    }
}

/// Identifies a file's content by its size and modification time.
pub fn etag(metadata: &Metadata) -> String {
    let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    format!("{:x}-{seconds:x}{nanoseconds:08x}", metadata.len())
}

/// Changes whenever a file's content may have: also if it is rewritten where it lies and its modification time is set
/// back. It is another one after a copy or a remount.
pub fn change_stamp(metadata: &Metadata) -> String {
    format!(
        "{:x}-{:x}-{}-{:x}{:08x}",
        metadata.dev(),
        metadata.ino(),
        etag(metadata),
        metadata.ctime(),
        metadata.ctime_nsec()
    )
}

/// Visits entries below `root` whose keys start with `prefix`, in no particular order. Fails if
/// `root` itself cannot be read.
pub fn walk(
    root: &Path,
    prefix: &str,
    visit: &mut dyn FnMut(FolderEntry<'_>) -> bool,
) -> io::Result<()> {
    let root = root.canonicalize()?;
    let start = &prefix[..prefix.rfind('/').map_or(0, |slash| slash + 1)];
    let place = root.join(start);
    let mut walk = Walk { root: &root, prefix, visit };
    let mut way = Way { folders: vec![root.clone()], ..Way::default() };
    // Folders within the prefix may be links too.
    for (slash, _) in start.match_indices('/') {
        let key = &start[..slash];
        match fs::symlink_metadata(root.join(key)) {
            Ok(about) if about.is_symlink() => match way.follow(&root, key) {
                Ok(next) => way = next,
                Err(why) => {
                    (walk.visit)(FolderEntry::Other(key, why));
                    return Ok(());
                }
            },
            Ok(_) => way.enter(&key[key.rfind('/').map_or(0, |slash| slash + 1)..]),
            // Nothing has such a key.
            Err(_) => return Ok(()),
        }
    }
    match place.metadata() {
        Ok(about) if about.is_dir() => walk.folder(start, &way),
        _ if start.is_empty() => Err(ErrorKind::NotADirectory.into()),
        _ => Ok(()),
    }
}

/// The path by which a folder was reached.
#[derive(Debug, Clone, Default)]
struct Way {
    /// Folders entered, with all links resolved; the current one is last.
    folders: Vec<PathBuf>,
    /// Last link followed: its key and its target.
    link: Option<(String, PathBuf)>,
    links: usize,
}

impl Way {
    fn enter(&mut self, name: &str) {
        let next = self.here().join(name);
        self.folders.push(next);
    }

    fn here(&self) -> &Path {
        self.folders.last().map_or(Path::new(""), PathBuf::as_path)
    }

    /// The path after following the link `key` to a folder.
    fn follow(&self, root: &Path, key: &str) -> Result<Self, UnreadableReason> {
        let target = root.join(key).canonicalize().map_err(|error| unreadable(&error))?;
        if self.folders.iter().any(|passed| passed.starts_with(&target)) {
            return Err(UnreadableReason::Loop);
        }
        if self.links >= MAX_LINKS {
            return Err(UnreadableReason::ManyLinks);
        }
        let mut next = self.clone();
        next.links += 1;
        next.link = Some((key.to_owned(), target.clone()));
        next.folders.push(target);
        Ok(next)
    }
}

struct Walk<'a> {
    root: &'a Path,
    prefix: &'a str,
    visit: &'a mut dyn FnMut(FolderEntry<'_>) -> bool,
}

impl Walk<'_> {
    /// Visits the folder of `key`, which is empty or ends in a slash.
    fn folder(&mut self, key: &str, way: &Way) -> io::Result<()> {
        let entries = match fs::read_dir(self.root.join(key)) {
            Ok(entries) => entries,
            Err(error) if key.is_empty() => return Err(error),
            Err(error) => return self.other(key, unreadable(&error)),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.other(key, unreadable(&error)),
            };
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                let slash = if entry.path().is_dir() { "/" } else { "" };
                self.other(
                    &format!("{key}{}{slash}", name.to_string_lossy()),
                    UnreadableReason::NotText,
                )?;
                continue;
            };
            let key = format!("{key}{name}");
            // A folder may contain the prefix without starting with it.
            if key.starts_with(self.prefix) || self.prefix.starts_with(&key) {
                self.entry(&key, name, &entry, way)?;
            }
        }
        Ok(())
    }

    fn other(&mut self, key: &str, why: UnreadableReason) -> io::Result<()> {
        if key.starts_with(self.prefix) || self.prefix.starts_with(key) {
            (self.visit)(FolderEntry::Other(key, why));
        }
        Ok(())
    }

    fn entry(&mut self, key: &str, name: &str, entry: &fs::DirEntry, way: &Way) -> io::Result<()> {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let path = self.root.join(key);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if is_link && is_broken(&error) => {
                return self.other(key, UnreadableReason::BrokenLink);
            }
            // Deleted since it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return self.other(key, unreadable(&error)),
        };
        if metadata.is_dir() {
            return self.enter(key, name, is_link, way);
        }
        if !key.starts_with(self.prefix) {
            return Ok(());
        }
        if !metadata.is_file() {
            return self.other(key, UnreadableReason::Special(special(&metadata)));
        }
        if key.len() > MAX_KEY_BYTES {
            return self.other(key, UnreadableReason::LongName);
        }
        if let Err(error) = access(&path, Access::READ_OK) {
            return self.other(key, unreadable(&error.into()));
        }
        let target = if is_link { Some(path.canonicalize()?) } else { None };
        let link = match &target {
            Some(target) => Some(FolderLink { key, target }),
            None => way.link.as_ref().map(|(key, target)| FolderLink { key, target }),
        };
        (self.visit)(FolderEntry::File(FolderFile { key, metadata: &metadata, link }));
        Ok(())
    }

    fn enter(&mut self, key: &str, name: &str, is_link: bool, way: &Way) -> io::Result<()> {
        let within = format!("{key}/");
        if !(within.starts_with(self.prefix) || self.prefix.starts_with(&within)) {
            return Ok(());
        }
        if !(self.visit)(FolderEntry::Folder(&within)) {
            return Ok(());
        }
        let next = if is_link {
            match way.follow(self.root, key) {
                Ok(next) => next,
                Err(why) => return self.other(key, why),
            }
        } else {
            let mut next = way.clone();
            next.enter(name);
            next
        };
        self.folder(&within, &next)
    }
}

fn is_broken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

fn unreadable(error: &io::Error) -> UnreadableReason {
    UnreadableReason::Unreadable(match error.kind() {
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    })
}

fn special(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

#[cfg(test)]
mod tests;
