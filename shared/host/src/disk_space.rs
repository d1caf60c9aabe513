//! Space on a disk.

use rustix::{fs::statvfs, io, process::geteuid};
use std::path::Path;

/// Bytes that this user may still write on the disk of `path`.
///
/// # Errors
/// As the system says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = statvfs(path)?;
    let blocks = if geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    Ok(blocks.saturating_mul(disk.f_frsize))
}

/// [`free_bytes`] for an error message.
pub fn free_space(path: &Path) -> String {
    match free_bytes(path) {
        Ok(bytes) => format!("{bytes} bytes free"),
        Err(error) => format!("its free space is unknown: {error}"),
    }
}
