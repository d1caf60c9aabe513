//! Opens paths that must stay below a directory.
//!
//! Linux guarantees this atomically (`openat2`). Without that call, the path is resolved first and compared, which
//! concurrent renames could defeat.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Purpose of opening a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Reading its bytes.
    Data,
    /// Reading its attributes.
    Attributes,
    /// Listing its entries; symbolic links on the way are refused.
    Entries,
}

/// A directory and its path.
#[derive(Debug)]
pub(super) struct Root<'r> {
    pub directory: &'r File,
    /// Path with all symbolic links resolved.
    pub path: &'r Path,
}

impl Root<'_> {
    /// Opens `relative`. `None` if there is no such file or directory.
    ///
    /// # Errors
    /// `CrossesDevices` if it leads out of the directory, `PermissionDenied` if it may not be read.
    pub(super) fn open(&self, relative: &str, purpose: Purpose) -> io::Result<Option<File>> {
        let opened = match self.open_resolved_by_kernel(relative, purpose) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.open_resolved_here(relative, purpose)
            }
            opened => opened,
        };
        if_present(opened)
    }

    #[cfg(target_os = "linux")]
    fn open_resolved_by_kernel(&self, relative: &str, purpose: Purpose) -> io::Result<File> {
        use rustix::fs::{ResolveFlags, openat2};
        use rustix::io::Errno;

        /// Retries when the kernel asks for them because of concurrent renames.
        const TRIES: usize = 16;
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if purpose == Purpose::Entries {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        for _ in 0..TRIES {
            let flags = flags(purpose);
            return match openat2(self.directory, relative, flags, Mode::empty(), resolve) {
                Ok(file) => Ok(File::from(file)),
                Err(Errno::AGAIN) => continue,
                Err(Errno::XDEV) => Err(self.escapes(relative)),
                Err(Errno::NOSYS) => Err(ErrorKind::Unsupported.into()),
                Err(error) => Err(error.into()),
            };
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    #[cfg(not(target_os = "linux"))]
    fn open_resolved_by_kernel(&self, _: &str, _: Purpose) -> io::Result<File> {
        Err(ErrorKind::Unsupported.into())
    }

    fn open_resolved_here(&self, relative: &str, purpose: Purpose) -> io::Result<File> {
        let wanted = self.path.join(relative);
        let found = wanted.canonicalize()?;
        if !found.starts_with(self.path) {
            return Err(self.escapes(relative));
        }
        if purpose == Purpose::Entries && found.components().ne(wanted.components()) {
            return Err(ErrorKind::NotFound.into());
        }
        let flags = flags(purpose) | OFlags::NOFOLLOW;
        Ok(File::from(rustix::fs::open(&found, flags, Mode::empty())?))
    }

    fn escapes(&self, relative: &str) -> io::Error {
        let text = format!("{relative}: leads out of {}", self.path.display());
        io::Error::new(ErrorKind::CrossesDevices, text)
    }
}

/// Opens the absolute `path`, refusing symbolic links on the way. `None` if there is no such file.
///
/// # Errors
/// `PermissionDenied` if it may not be read.
pub(super) fn open_exactly(path: &Path, purpose: Purpose) -> io::Result<Option<File>> {
    let opened = match exactly_by_kernel(path, purpose) {
        Err(error) if error.kind() == ErrorKind::Unsupported => exactly_here(path, purpose),
        opened => opened,
    };
    if_present(opened)
}

#[cfg(target_os = "linux")]
fn exactly_by_kernel(path: &Path, purpose: Purpose) -> io::Result<File> {
    use rustix::fs::{CWD, ResolveFlags, openat2};
    use rustix::io::Errno;

    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(CWD, path, flags(purpose), Mode::empty(), resolve) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::NOSYS) => Err(ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exactly_by_kernel(_: &Path, _: Purpose) -> io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

fn exactly_here(path: &Path, purpose: Purpose) -> io::Result<File> {
    if path.canonicalize()? != path {
        return Err(ErrorKind::NotFound.into());
    }
    let flags = flags(purpose) | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn if_present(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn flags(purpose: Purpose) -> OFlags {
    // Opening a pipe must not block.
    let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match purpose {
        Purpose::Data => read,
        #[cfg(target_os = "linux")]
        Purpose::Attributes => OFlags::PATH | OFlags::CLOEXEC,
        #[cfg(not(target_os = "linux"))]
        Purpose::Attributes => read,
        Purpose::Entries => read | OFlags::DIRECTORY,
    }
}

fn is_absent(error: &io::Error) -> bool {
    use rustix::io::Errno;
    // The last two: a socket, or a device without a driver.
    const ABSENT: [Errno; 6] =
        [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::NAMETOOLONG, Errno::NXIO, Errno::NODEV];
    error.kind() == ErrorKind::NotFound
        || Errno::from_io_error(error).is_some_and(|errno| ABSENT.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Opens by both methods, which must agree.
    fn open(root: &Root<'_>, relative: &str, purpose: Purpose) -> Result<bool, ErrorKind> {
        let here = match root.open_resolved_here(relative, purpose) {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error.kind()),
        };
        let best = root.open(relative, purpose).map(|file| file.is_some()).map_err(|e| e.kind());
        assert_eq!(best, here, "{relative}");
        best
    }

    #[test]
    fn nothing_outside_is_opened() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let path = base.join("in");
        fs::create_dir_all(path.join("d")).unwrap();
        fs::write(path.join("d/f"), "x").unwrap();
        fs::write(base.join("secret"), "x").unwrap();
        symlink("../../secret", path.join("d/out")).unwrap();
        symlink("f", path.join("d/near")).unwrap();
        symlink("..", path.join("up")).unwrap();
        symlink("d", path.join("same")).unwrap();
        symlink("loop", path.join("loop")).unwrap();
        let directory = File::open(&path).unwrap();
        let root = Root { directory: &directory, path: &path };

        for purpose in [Purpose::Data, Purpose::Attributes] {
            assert_eq!(open(&root, "d/f", purpose), Ok(true));
            assert_eq!(open(&root, "d/near", purpose), Ok(true));
            assert_eq!(open(&root, "same/f", purpose), Ok(true));
            assert_eq!(open(&root, "d/out", purpose), Err(ErrorKind::CrossesDevices));
            assert_eq!(open(&root, "up/secret", purpose), Err(ErrorKind::CrossesDevices));
            assert_eq!(open(&root, "../secret", purpose), Err(ErrorKind::CrossesDevices));
            assert_eq!(open(&root, "missing", purpose), Ok(false));
            assert_eq!(open(&root, "d/f/g", purpose), Ok(false));
            assert_eq!(open(&root, "loop", purpose), Ok(false));
        }
        for (path, there) in [("in/d/f", true), ("in/d/near", false), ("in/same/f", false)] {
            let path = base.join(path);
            assert_eq!(open_exactly(&path, Purpose::Data).unwrap().is_some(), there, "{path:?}");
            assert_eq!(exactly_here(&path, Purpose::Data).is_ok(), there, "{path:?}");
        }
        assert_eq!(open(&root, "d", Purpose::Entries), Ok(true));
        assert_eq!(open(&root, "d/f", Purpose::Entries), Ok(false));
        assert_eq!(root.open("same", Purpose::Entries).unwrap().map(|_| ()), None);
    }
}
