//! Free space of the disk that holds the state directory.
//!
//! Code that fails to write reports it with [`note`]; the service checks twice a second whether writing works again.
//! Clients ask the service, so that a full disk has the same error text everywhere.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::functions::lock;

/// Interval of the checks.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// Below this many free bytes a probe file is written.
const SCARCE_BYTES: u64 = 1 << 20;
const PROBE_BYTES: usize = 64 << 10;

/// Additional free bytes, compared with the failed write, after which the disk counts as free again.
const RELIEF_BYTES: u64 = 1 << 20;

/// Time without failed writes after which the disk counts as free again.
const QUIET: Duration = Duration::from_secs(15);

/// Writes of this process that failed for lack of space.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Counts a failed write if the disk was full.
pub(crate) fn note(error: &io::Error) {
    if is_lack_of_room(error) {
        FAILED.fetch_add(1, Relaxed);
    }
}

/// As [`note`], for the embedded table, whose errors are text.
pub(crate) fn note_table(error: &str) {
    if error.contains("disk is full") || error.contains("disk I/O error") {
        FAILED.fetch_add(1, Relaxed);
    }
}

pub(crate) fn is_lack_of_room(error: &io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Free space below one directory.
#[derive(Debug)]
pub(crate) struct Room {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Value of [`FAILED`] at the last check.
    failed: u64,
    full: Option<Full>,
}

/// Facts about a full disk.
#[derive(Debug, Clone, Copy)]
struct Full {
    last_failure: Instant,
    free_then: u64,
    free_now: u64,
}

impl Room {
    pub(crate) fn new(dir: &Path) -> Self {
        let state = State { failed: FAILED.load(Relaxed), full: None };
        Self { dir: dir.to_owned(), state: Mutex::new(state) }
    }

    /// Checks the disk. May block.
    pub(crate) fn look(&self) {
        self.look_after(FAILED.load(Relaxed));
    }

    /// As [`look`](Self::look), given the number of failed writes.
    fn look_after(&self, failed: u64) {
        let Some(free) = free_bytes(&self.dir) else { return };
        let known = lock(&self.state).full;
        let no_room = free < SCARCE_BYTES || known.is_some();
        let no_room = no_room && probe(&self.dir).is_err_and(|error| is_lack_of_room(&error));
        let mut state = lock(&self.state);
        let failure = no_room || failed != state.failed;
        state.failed = failed;
        let now = Instant::now();
        state.full = match (failure, known) {
            (true, _) => Some(Full { last_failure: now, free_then: free, free_now: free }),
            (false, Some(full)) if !is_over(&full, free, now) => {
                Some(Full { free_now: free, ..full })
            }
            _ => None,
        };
    }

    /// Description of the problem and its remedy; `None` while there is space.
    pub(crate) fn trouble(&self) -> Option<String> {
        let full = lock(&self.state).full?;
        Some(format!(
            "the disk under {} is full ({} bytes free): free some space, then jobs continue",
            self.dir.display(),
            full.free_now
        ))
    }
}

fn is_over(full: &Full, free: u64, now: Instant) -> bool {
    free >= full.free_then.saturating_add(RELIEF_BYTES)
        || now.saturating_duration_since(full.last_failure) >= QUIET
}

/// Bytes that this process's user may still write.
fn free_bytes(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    Some(blocks.saturating_mul(disk.f_frsize))
}

fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join("room.probe");
    let written = fs::write(&path, [0; PROBE_BYTES]);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => written.and(Err(error)),
        _ => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_trouble_until_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room { dir: dir.path().to_owned(), state: Mutex::default() };
        room.look_after(0);
        assert_eq!(room.trouble(), None);
        assert!(is_lack_of_room(&io::Error::from(ErrorKind::StorageFull)));
        assert!(!is_lack_of_room(&io::Error::from(ErrorKind::NotFound)));
        room.look_after(1);
        let trouble = room.trouble().unwrap();
        assert!(
            trouble.starts_with(&format!("the disk under {}", dir.path().display())),
            "{trouble}"
        );
        assert!(trouble.contains("bytes free"), "{trouble}");
        let full = lock(&room.state).full.unwrap();
        assert!(!is_over(&full, full.free_then, full.last_failure));
        assert!(is_over(&full, full.free_then + RELIEF_BYTES, full.last_failure));
        assert!(is_over(&full, full.free_then, full.last_failure + QUIET));
        assert!(!dir.path().join("room.probe").exists());
    }

    #[test]
    fn the_table_says_it_in_words() {
        let before = FAILED.load(Relaxed);
        note_table("internal error: database or disk is full");
        assert!(FAILED.load(Relaxed) > before);
    }
}
