//! The file operations of the store, as traits, so that tests can lose, tear and refuse any of them.

use rustix::{
    fs::{CWD, Mode, OFlags, RenameFlags, renameat_with},
    io::Errno,
};
use std::{
    fmt::Debug,
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

/// Folders and files. No operation follows a link in the last component of a path.
pub(super) trait Disk: Debug + Send + Sync {
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes the folder's entries survive a power cut.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Waits until no other process or thread holds the folder's lock.
    fn lock_folder(&self, path: &Path) -> io::Result<Box<dyn Send>>;
    /// Names of entries, and whether they are folders.
    fn entries(&self, path: &Path) -> io::Result<Vec<(String, bool)>>;
    /// Creates a file, locked until it is closed. `NotFound` if the folder is gone, or a sweep removed the file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, if that is free. The old name may stay.
    fn publish(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
}

pub(super) trait DiskFile: Send {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn bytes(&self) -> io::Result<u64>;
    /// Fills `buffer` from offset `at`.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;
    /// Locks the file. False if its writer still runs.
    fn lock_if_free(&self) -> io::Result<bool>;
}

#[derive(Debug)]
pub(super) struct HostDisk;

impl Disk for HostDisk {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock_folder(&self, path: &Path) -> io::Result<Box<dyn Send>> {
        let folder = File::open(path)?;
        folder.lock()?;
        Ok(Box::new(FolderLock(folder)))
    }

    fn entries(&self, path: &Path) -> io::Result<Vec<(String, bool)>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            // A name that is not UTF-8 is no object's.
            if let Ok(name) = entry.file_name().into_string() {
                entries.push((name, entry.file_type()?.is_dir()));
            }
        }
        Ok(entries)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        // A sweep may have found the file before it was locked.
        if file.lock_if_free()? && file.metadata()?.nlink() > 0 {
            Ok(Box::new(file))
        } else {
            Err(ErrorKind::NotFound.into())
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        // Opening a pipe must not wait.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        Ok(Box::new(File::options().read(true).custom_flags(flags).open(path)?))
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        const LACKS: [Errno; 4] = [Errno::PERM, Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL];
        match fs::hard_link(from, to) {
            Err(error) if is_any(&error, &LACKS) => {}
            done => return done,
        }
        renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(|error| {
            let text = "its file system has neither links nor exclusive renames; choose another";
            if LACKS.contains(&error) {
                io::Error::new(ErrorKind::Unsupported, text)
            } else {
                error.into()
            }
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Unlocks by name: a child process may have inherited the descriptor.
struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a folder stays locked until its descriptor is closed");
        }
    }
}

impl DiskFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }

    fn lock_if_free(&self) -> io::Result<bool> {
        match self.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Whether the system reported one of these errors.
pub(super) fn is_any(error: &io::Error, errors: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errors.contains(&errno))
}

/// Opening a pipe must not wait.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens `key` below the folder `root`, following links that stay below it. None if there is no
/// such file. Fails with `CrossesDevices` if it leads out of the folder, `PermissionDenied` if it
/// may not be read.
pub(super) fn open_beneath(folder: &File, root: &Path, key: &str) -> io::Result<Option<File>> {
    let opened = by_kernel(folder, key.as_ref(), true);
    if_present(opened.unwrap_or_else(|| resolve(&root.join(key), Some(root))))
}

/// Opens the absolute `path`, following no links. None if there is no such file. Fails with
/// `PermissionDenied` if it may not be read.
pub(super) fn open_exactly(path: &Path) -> io::Result<Option<File>> {
    if_present(by_kernel(CWD, path, false).unwrap_or_else(|| resolve(path, None)))
}

/// None if the kernel lacks the call.
#[cfg(target_os = "linux")]
fn by_kernel(
    folder: impl rustix::fd::AsFd,
    path: &Path,
    follows_links: bool,
) -> Option<io::Result<File>> {
    use rustix::fs::{ResolveFlags, openat2};

    let resolve = if follows_links {
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS
    } else {
        ResolveFlags::NO_SYMLINKS
    };
    loop {
        return match openat2(&folder, path, READ, Mode::empty(), resolve) {
            // Concurrent renames.
            Err(Errno::AGAIN) => continue,
            // Older containers refuse a call that they do not know.
            Err(Errno::NOSYS | Errno::PERM) => None,
            opened => Some(opened.map(File::from).map_err(io::Error::from)),
        };
    }
}

#[cfg(not(target_os = "linux"))]
fn by_kernel<T>(_: T, _: &Path, _: bool) -> Option<io::Result<File>> {
    None
}

/// Opens `path` if it leads below `root`, or without one, if no link is on the way.
fn resolve(path: &Path, root: Option<&Path>) -> io::Result<File> {
    let found = path.canonicalize()?;
    match root {
        Some(root) if !found.starts_with(root) => Err(ErrorKind::CrossesDevices.into()),
        None if found != path => Err(ErrorKind::NotFound.into()),
        _ => Ok(File::from(rustix::fs::open(&found, READ | OFlags::NOFOLLOW, Mode::empty())?)),
    }
}

fn if_present(opened: io::Result<File>) -> io::Result<Option<File>> {
    // The last two: a socket, or a device without a driver.
    const ABSENT: [Errno; 6] =
        [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::NAMETOOLONG, Errno::NXIO, Errno::NODEV];
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if is_any(&error, &ABSENT) => Ok(None),
        opened => opened.map(Some),
    }
}

#[cfg(test)]
mod beneath_tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_is_opened() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let root = base.join("in");
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::write(root.join("d/f"), "x").unwrap();
        std::fs::write(base.join("secret"), "x").unwrap();
        let links = ["d/out ../../secret", "d/near f", "up ..", "same d", "loop loop"];
        for (link, target) in links.iter().filter_map(|link| link.split_once(' ')) {
            symlink(target, root.join(link)).unwrap();
        }
        let folder = File::open(&root).unwrap();
        let found = |opened: io::Result<Option<File>>| match opened {
            Ok(Some(_)) => "there",
            Ok(None) => "absent",
            Err(error) if error.kind() == ErrorKind::CrossesDevices => "outside",
            Err(error) => panic!("{error}"),
        };
        for (expected, keys) in [
            ("there", "d/f d/near same/f"),
            ("outside", "d/out up/secret ../secret"),
            ("absent", "missing d/f/g loop"),
        ] {
            for key in keys.split(' ') {
                assert_eq!(found(open_beneath(&folder, &root, key)), expected, "{key}");
                let resolved = resolve(&root.join(key), Some(&root));
                assert_eq!(found(if_present(resolved)), expected, "{key}, resolved here");
            }
        }
        for (key, expected) in [("d/f", "there"), ("d/near", "absent"), ("same/f", "absent")] {
            let path = root.join(key);
            assert_eq!(found(open_exactly(&path)), expected, "{key}");
            assert_eq!(found(if_present(resolve(&path, None))), expected, "{key}, resolved here");
        }
    }
}
