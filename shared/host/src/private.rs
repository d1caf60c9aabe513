//! Directories and files that no other user of the machine can have made or can change.
//!
//! A directory is trusted if every step of the way to it belongs to this user or to root, and nobody else may exchange
//! what lies in it. In a folder that all may write to, such as `/tmp`, the sticky bit grants that. Links on the way are
//! followed if their owner is trusted; the last component is never a link.

use crate::HostError;
use rustix::process::geteuid;
use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Links on the way to a directory, as the kernel allows.
const MAX_LINKS: usize = 40;
const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// The directory `dir` without links on the way. Creates what is missing of it, for its owner
/// alone. Fails with [`HostError::Unusable`] if another user could have made it, or could exchange
/// it.
pub fn private_dir(dir: &Path) -> Result<PathBuf, HostError> {
    let dir = std::path::absolute(dir).map_err(HostError::at(dir))?;
    let (mut at, mut ahead, mut links) = (PathBuf::from("/"), steps(&dir), 0);
    let root = fs::symlink_metadata("/").map_err(HostError::at(&at))?;
    let mut about = root.clone();
    while let Some(step) = ahead.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&step);
        about = found_or_made(&next)?;
        if !is_trusted(about.uid(), root.uid()) {
            return Err(HostError::unusable(
                &next,
                "it belongs to another user: name another directory",
            ));
        }
        if about.is_symlink() {
            links += 1;
            if ahead.is_empty() || links > MAX_LINKS {
                return Err(HostError::unusable(
                    &next,
                    "it is a link: name the directory that it leads to",
                ));
            }
            let target = fs::read_link(&next).map_err(HostError::at(&next))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            ahead.extend(steps(&target));
            continue;
        }
        if !about.is_dir() {
            return Err(HostError::unusable(&next, "it is not a directory"));
        }
        if is_writable_by_others(&about) && about.mode() & STICKY == 0 {
            return Err(HostError::unusable(
                &next,
                "other users may write to it: take that right away (chmod go-w), or name another directory",
            ));
        }
        at = next;
    }
    if about.uid() == geteuid().as_raw() && !is_writable_by_others(&about) {
        Ok(at)
    } else {
        Err(HostError::unusable(&at, "it is not yours alone: name another directory"))
    }
}

/// The components of a path, last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut names: Vec<_> = names.collect();
    names.reverse();
    names
}

fn found_or_made(path: &Path) -> Result<Metadata, HostError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(HostError::at(path)(error));
                }
                _ => {}
            }
            fs::symlink_metadata(path).map_err(HostError::at(path))
        }
        found => found.map_err(HostError::at(path)),
    }
}

/// In a user namespace, root may be seen as another user: the owner of `/` counts as root.
fn is_trusted(owner: u32, root: u32) -> bool {
    [geteuid().as_raw(), 0, root].contains(&owner)
}

/// A group of the same number as its user is that user's own, as many systems set up.
fn is_writable_by_others(about: &Metadata) -> bool {
    let shared_group = about.gid() != 0 && about.gid() != about.uid();
    about.mode() & WRITABLE_BY_ALL != 0 || about.mode() & WRITABLE_BY_GROUP != 0 && shared_group
}

pub(crate) fn close_to_others(dir: &Path) -> Result<(), HostError> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(HostError::at(dir))
}

/// Opens a file that belongs to this user; a link or another kind of file is refused. `options` say
/// how. Fails with `PermissionDenied` for a file of another user.
pub fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Opening a pipe must not block.
    let flags = libc_flags();
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if about.is_file() && about.uid() == geteuid().as_raw() {
        Ok(file)
    } else {
        Err(io::Error::new(ErrorKind::PermissionDenied, "it is not a file of yours"))
    }
}

fn libc_flags() -> i32 {
    use rustix::fs::OFlags;
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32
}

/// The content of a private file, of at most `most_bytes`. Fails as [`open_private`], and with
/// `InvalidData` if it is longer.
pub fn read_private(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_private(path, File::options().read(true))?;
    let mut content = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most_bytes {
        Err(io::Error::new(ErrorKind::InvalidData, "it is too long"))
    } else {
        Ok(content)
    }
}

/// Replaces a file by one with `content` that only its owner can read, whole or not at all.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let draft = path.with_extension(format!("draft-{}-{number}", std::process::id()));
    // A file that a killed process of the same number left.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = open_private(&draft, File::options().write(true).create_new(true))
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn missing_directories_are_made_for_their_owner_alone() {
        let base = tempfile::tempdir().unwrap();
        let dir = private_dir(&base.path().join("a/../a/b")).unwrap();
        assert!(dir.ends_with("a/b"), "{dir:?}");
        assert_eq!(fs::metadata(dir).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_link_is_followed_on_the_way_and_refused_at_the_end() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("real/state")).unwrap();
        symlink(base.join("real"), base.join("link")).unwrap();
        symlink("real/state", base.join("last")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        assert_eq!(private_dir(&base.join("link/state")).unwrap(), base.join("real/state"));
        assert!(private_dir(&base.join("last")).unwrap_err().to_string().contains("link"));
        assert!(private_dir(&base.join("loop/x")).is_err());
        fs::write(base.join("file"), "x").unwrap();
        assert!(private_dir(&base.join("file/x")).unwrap_err().to_string().contains("directory"));
    }

    #[test]
    fn directory_that_others_may_write_to_is_refused_unless_sticky() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        for (mode, below, itself) in [
            (0o777, false, false),
            (0o1777, true, false),
            (0o755, true, true),
            (0o757, false, false),
        ] {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(private_dir(&open.join("state")).is_ok(), below, "{mode:o}");
            assert_eq!(private_dir(&open).is_ok(), itself, "{mode:o}");
        }
    }

    #[test]
    fn private_files_are_no_links_and_are_replaced_whole() {
        let base = tempfile::tempdir().unwrap();
        let (file, link) = (base.path().join("f"), base.path().join("l"));
        write_private(&file, b"one").unwrap();
        symlink(&file, &link).unwrap();
        assert!(read_private(&link, 10).is_err());
        assert!(
            open_private(&link, File::options().write(true).create(true).truncate(true)).is_err()
        );
        assert_eq!(read_private(&file, 3).unwrap(), b"one");
        assert!(read_private(&file, 2).is_err());
        write_private(&link, b"two").unwrap();
        assert_eq!(read_private(&file, 3).unwrap(), b"one", "the link was replaced, not followed");
        assert_eq!(fs::metadata(&link).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2, "no draft stays");
    }
}
