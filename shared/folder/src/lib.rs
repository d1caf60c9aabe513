//! Finds the files below a folder of this machine: follows links, and says what it does not take.
//!
//! A key is a path relative to the folder. Links to files and folders are followed wherever they lead, because
//! whoever named the folder put them there; a folder is not entered again from within itself. What is no file that
//! can be read is given to the caller with the reason, so that nothing is left out in silence.

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
/// Most links to folders on the way to a file: folders that are linked to each other have very many ways.
const MAX_LINKS: usize = 4;

/// Something in a folder.
#[derive(Debug)]
pub enum Entry<'a> {
    File(File<'a>),
    /// A folder, which is entered if the visitor says so. Its key ends in a slash.
    Folder(&'a str),
    /// Its key, as far as that can be shown, and why it is no file of the folder's.
    Other(&'a str, Why),
}

/// A regular file.
#[derive(Debug)]
pub struct File<'a> {
    pub key: &'a str,
    pub metadata: &'a Metadata,
    /// The last link on the way, if there is any.
    pub link: Option<Link<'a>>,
}

/// A link that was followed.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    pub key: &'a str,
    /// All links resolved.
    pub target: &'a Path,
}

/// Why something is no file to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    NotText,
    LongName,
    BrokenLink,
    /// A link to a folder on the way to itself.
    Loop,
    ManyLinks,
    /// A pipe, socket or device, by name.
    Special(&'static str),
    /// It is there, and this process may not read it.
    Unreadable(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotText => f.write_str("its name is not UTF-8"),
            Self::LongName => write!(f, "its path has more than {MAX_KEY_BYTES} bytes"),
            Self::BrokenLink => f.write_str("broken link"),
            Self::Loop => f.write_str("a link to a folder that it lies in"),
            Self::ManyLinks => write!(f, "behind more than {MAX_LINKS} links to folders"),
            Self::Special(what) => f.write_str(what),
            Self::Unreadable(error) => f.write_str(error),
        }
    }
}

/// Names the content of a file as its size and time of change tell it: another tag is another file.
pub fn etag(metadata: &Metadata) -> String {
    let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    format!("{:x}-{seconds:x}{nanoseconds:08x}", metadata.len())
}

/// Visits what lies below `root` and has a key that starts with `prefix`, in no particular order.
///
/// # Errors
/// If `root` itself cannot be read.
pub fn walk(root: &Path, prefix: &str, visit: &mut dyn FnMut(Entry<'_>) -> bool) -> io::Result<()> {
    let root = root.canonicalize()?;
    let start = &prefix[..prefix.rfind('/').map_or(0, |slash| slash + 1)];
    let place = root.join(start);
    let mut walk = Walk { root: &root, prefix, visit };
    let mut way = Way { folders: vec![root.clone()], ..Way::default() };
    // The folders that the prefix names may be links as well.
    for (slash, _) in start.match_indices('/') {
        let key = &start[..slash];
        match fs::symlink_metadata(root.join(key)) {
            Ok(about) if about.is_symlink() => match way.follow(&root, key) {
                Ok(next) => way = next,
                Err(why) => {
                    (walk.visit)(Entry::Other(key, why));
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

/// How a folder was reached.
#[derive(Debug, Clone, Default)]
struct Way {
    /// The folders passed, all links resolved; the last is the one at hand.
    folders: Vec<PathBuf>,
    /// The last link that was followed, as a key, and where it leads.
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

    /// The way through the link `key`, which leads to a folder.
    fn follow(&self, root: &Path, key: &str) -> Result<Self, Why> {
        let target = root.join(key).canonicalize().map_err(|error| unreadable(&error))?;
        if self.folders.iter().any(|passed| passed.starts_with(&target)) {
            return Err(Why::Loop);
        }
        if self.links >= MAX_LINKS {
            return Err(Why::ManyLinks);
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
    visit: &'a mut dyn FnMut(Entry<'_>) -> bool,
}

impl Walk<'_> {
    /// Visits what is in the folder of `key`, which is empty or ends in a slash.
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
                self.other(&format!("{key}{}", name.to_string_lossy()), Why::NotText)?;
                continue;
            };
            let key = format!("{key}{name}");
            // A folder may lead to the prefix though it does not start with it.
            if key.starts_with(self.prefix) || self.prefix.starts_with(&key) {
                self.entry(&key, name, &entry, way)?;
            }
        }
        Ok(())
    }

    fn other(&mut self, key: &str, why: Why) -> io::Result<()> {
        if key.starts_with(self.prefix) || self.prefix.starts_with(key) {
            (self.visit)(Entry::Other(key, why));
        }
        Ok(())
    }

    fn entry(&mut self, key: &str, name: &str, entry: &fs::DirEntry, way: &Way) -> io::Result<()> {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let path = self.root.join(key);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if is_link && is_broken(&error) => {
                return self.other(key, Why::BrokenLink);
            }
            // Deleted since.
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
            return self.other(key, Why::Special(special(&metadata)));
        }
        if key.len() > MAX_KEY_BYTES {
            return self.other(key, Why::LongName);
        }
        if let Err(error) = access(&path, Access::READ_OK) {
            return self.other(key, unreadable(&error.into()));
        }
        let target = match is_link {
            true => Some(path.canonicalize()?),
            false => None,
        };
        let link = match &target {
            Some(target) => Some(Link { key, target }),
            None => way.link.as_ref().map(|(key, target)| Link { key, target }),
        };
        (self.visit)(Entry::File(File { key, metadata: &metadata, link }));
        Ok(())
    }

    fn enter(&mut self, key: &str, name: &str, is_link: bool, way: &Way) -> io::Result<()> {
        let within = format!("{key}/");
        if !(within.starts_with(self.prefix) || self.prefix.starts_with(&within)) {
            return Ok(());
        }
        if !(self.visit)(Entry::Folder(&within)) {
            return Ok(());
        }
        let next = match is_link {
            true => match way.follow(self.root, key) {
                Ok(next) => next,
                Err(why) => return self.other(key, why),
            },
            false => {
                let mut next = way.clone();
                next.enter(name);
                next
            }
        };
        self.folder(&within, &next)
    }
}

fn is_broken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

fn unreadable(error: &io::Error) -> Why {
    Why::Unreadable(match error.kind() {
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
