//! Space on the disk of a state directory.

use gristmill_host::free_bytes;
use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// With fewer free bytes, nothing can be stored.
const SCARCE_BYTES: u64 = 1 << 20;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Why nothing can be stored below `dir`, with the remedy.
pub(crate) fn trouble(dir: &Path) -> Option<String> {
    let free = free_bytes(dir).ok()?;
    (free < SCARCE_BYTES).then(|| {
        format!(
            "the disk under {} is full ({free} bytes free): free some space, then jobs continue",
            dir.display()
        )
    })
}

/// Bytes that the files below `dir` take on the disk. Files that come and go meanwhile may be missing.
pub(crate) fn used_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let bytes_of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => used_bytes(&entry.path()),
        Ok(about) => about.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}
