//! The file operations of the store, as traits, so that tests can lose, tear and refuse any of them.

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

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

/// The disks of this machine.
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
