//! Opens files that must lie below a folder, for reading.
//!
//! Linux guarantees this atomically (`openat2`). Without that call, as on macOS, the path is resolved first and compared,
//! which concurrent renames could defeat.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opening a pipe must not wait.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens `relative`, following links that stay below the folder. None if there is no such file.
///
/// # Errors
/// `CrossesDevices` if it leads out of the folder, `PermissionDenied` if it may not be read.
pub(super) fn open_beneath(folder: &File, path: &Path, relative: &str) -> io::Result<Option<File>> {
    if_present(match system::open(folder, Path::new(relative), system::Way::Beneath) {
        Err(error) if error.kind() == ErrorKind::Unsupported => resolve(path, relative),
        opened => opened,
    })
}

/// Opens the absolute `path`, following no links. None if there is no such file.
///
/// # Errors
/// `PermissionDenied` if it may not be read.
pub(super) fn open_exactly(path: &Path) -> io::Result<Option<File>> {
    if_present(match system::open(rustix::fs::CWD, path, system::Way::NoLinks) {
        Err(error) if error.kind() == ErrorKind::Unsupported => resolve_exactly(path),
        opened => opened,
    })
}

#[cfg(target_os = "linux")]
mod system {
    //! By the kernel.

    use super::READ;
    use rustix::fd::AsFd;
    use rustix::fs::{Mode, ResolveFlags, openat2};
    use rustix::io::Errno;
    use std::fs::File;
    use std::io::{self, ErrorKind};
    use std::path::Path;

    /// Retries when the kernel asks for them because of concurrent renames.
    const TRIES: usize = 16;

    #[derive(Clone, Copy)]
    pub(super) enum Way {
        Beneath,
        NoLinks,
    }

    pub(super) fn open(folder: impl AsFd, path: &Path, way: Way) -> io::Result<File> {
        let resolve = ResolveFlags::NO_MAGICLINKS
            | match way {
                Way::Beneath => ResolveFlags::BENEATH,
                Way::NoLinks => ResolveFlags::NO_SYMLINKS,
            };
        for _ in 0..TRIES {
            return match openat2(&folder, path, READ, Mode::empty(), resolve) {
                Ok(file) => Ok(File::from(file)),
                Err(Errno::AGAIN) => continue,
                // Older containers refuse a call that they do not know.
                Err(Errno::NOSYS | Errno::PERM) => Err(ErrorKind::Unsupported.into()),
                Err(error) => Err(error.into()),
            };
        }
        Err(ErrorKind::ResourceBusy.into())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    //! No such call.

    use std::fs::File;
    use std::io::{self, ErrorKind};
    use std::path::Path;

    pub(super) enum Way {
        Beneath,
        NoLinks,
    }

    pub(super) fn open<T>(_: T, _: &Path, _: Way) -> io::Result<File> {
        Err(ErrorKind::Unsupported.into())
    }
}

fn resolve(root: &Path, relative: &str) -> io::Result<File> {
    let found = root.join(relative).canonicalize()?;
    match found.starts_with(root) {
        true => Ok(File::from(rustix::fs::open(&found, READ | OFlags::NOFOLLOW, Mode::empty())?)),
        false => Err(ErrorKind::CrossesDevices.into()),
    }
}

fn resolve_exactly(path: &Path) -> io::Result<File> {
    match path.canonicalize()? == path {
        true => Ok(File::from(rustix::fs::open(path, READ | OFlags::NOFOLLOW, Mode::empty())?)),
        false => Err(ErrorKind::NotFound.into()),
    }
}

fn if_present(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
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

    #[test]
    fn nothing_outside_is_opened() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let path = base.join("in");
        fs::create_dir_all(path.join("d")).unwrap();
        fs::write(path.join("d/f"), "x").unwrap();
        fs::write(base.join("secret"), "x").unwrap();
        for (target, link) in [
            ("../../secret", "d/out"),
            ("f", "d/near"),
            ("..", "up"),
            ("d", "same"),
            ("loop", "loop"),
        ] {
            symlink(target, path.join(link)).unwrap();
        }
        let folder = File::open(&path).unwrap();
        let found = |opened: io::Result<Option<File>>| match opened {
            Ok(file) => Ok(file.is_some()),
            Err(error) => Err(error.kind()),
        };
        let out = Err(ErrorKind::CrossesDevices);
        for (key, expected) in [
            ("d/f", Ok(true)),
            ("d/near", Ok(true)),
            ("same/f", Ok(true)),
            ("d/out", out),
            ("up/secret", out),
            ("../secret", out),
            ("missing", Ok(false)),
            ("d/f/g", Ok(false)),
            ("loop", Ok(false)),
        ] {
            assert_eq!(found(open_beneath(&folder, &path, key)), expected, "{key}");
            assert_eq!(found(if_present(resolve(&path, key))), expected, "{key}, resolved here");
        }
        for (key, there) in [("d/f", true), ("d/near", false), ("same/f", false)] {
            let path = path.join(key);
            assert_eq!(found(open_exactly(&path)), Ok(there), "{key}");
            assert_eq!(
                found(if_present(resolve_exactly(&path))),
                Ok(there),
                "{key}, resolved here"
            );
        }
    }
}
