//! Opens files that must lie below a folder, for reading.
//!
//! Linux guarantees this atomically (`openat2`). Without that call, as on macOS, the path is resolved first and
//! compared, which concurrent renames could defeat.

use super::disk::is_any;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opening a pipe must not wait.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens `key` below the folder `root`, following links that stay below it. None if there is no such file.
///
/// # Errors
/// `CrossesDevices` if it leads out of the folder, `PermissionDenied` if it may not be read.
pub(super) fn open_beneath(folder: &File, root: &Path, key: &str) -> io::Result<Option<File>> {
    let opened = by_kernel(folder, key.as_ref(), true);
    if_present(opened.unwrap_or_else(|| resolve(&root.join(key), Some(root))))
}

/// Opens the absolute `path`, following no links. None if there is no such file.
///
/// # Errors
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
mod tests {
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
