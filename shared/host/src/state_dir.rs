//! A service's state directory, and the locks by which processes share it.
//!
//! The service holds `service.lock` as long as it runs: whether a service is alive is decided by that lock, never by the
//! number of a process. Each client holds `clients.lock` shared. A service that belongs to no process ends once nobody
//! holds it, and keeps it exclusively while it ends, so that no client finds a service that is ending.

use crate::{
    HostError, places,
    private::{close_to_others, open_private, private_dir, read_private, write_private},
};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Says which version of this layout a directory has.
const FORMAT_FILE: &str = "format";
const FORMAT: &[u8] = b"gristmill state 2\n";
/// Files of the layout before, which this version cannot read.
const FILES_BEFORE: [&str; 2] = ["service.json", "table.sqlite"];
const SERVICE_LOCK: &str = "service.lock";
const CLIENTS_LOCK: &str = "clients.lock";
const START_LOCK: &str = "start.lock";

/// How often a lock that another process holds is tried.
const LOOK: Duration = Duration::from_millis(20);
/// Those who look whether a service is alive hold its lock for a moment.
const GLANCE: Duration = Duration::from_millis(200);
/// How long a service may take to end, or to start.
const LOCK_PATIENCE: Duration = Duration::from_secs(40);

/// The directory of a running service; dropping it lets another service run there.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Whether it is removed at the end.
    is_temporary: bool,
    lock: File,
}

impl StateDir {
    /// Opens `dir` for a service, and creates it if it is missing. Fails with [`HostError::Busy`]
    /// if another service runs there, [`HostError::Unusable`] if it must not be used.
    pub fn open(dir: &Path) -> Result<Self, HostError> {
        let path = checked(dir)?;
        let began = Instant::now();
        let lock = loop {
            match lock_if_dead(&path)? {
                Some(lock) => break lock,
                None if began.elapsed() < GLANCE => std::thread::sleep(LOOK / 10),
                None => return Err(HostError::Busy(path)),
            }
        };
        let format = path.join(FORMAT_FILE);
        let found = match read_private(&format, FORMAT.len() as u64) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            found => found.map_err(|_| other_version(&path))?,
        };
        // A power cut may leave it empty.
        if found.is_empty() {
            write_private(&format, FORMAT).map_err(HostError::at(&format))?;
        } else if found != FORMAT {
            return Err(other_version(&path));
        }
        Ok(Self { path, is_temporary: false, lock })
    }

    /// A new directory, removed at the end. Removes those of services that were killed.
    pub fn temporary() -> Result<Self, HostError> {
        let parent = places::temporary_states()?;
        // A directory is locked before another process may take it for one that is left over.
        let _lock = try_lock(&parent.join("lock"), FlockOperation::LockExclusive)?;
        for left in fs::read_dir(&parent).map_err(HostError::at(&parent))?.flatten() {
            let path = left.path();
            if path.is_dir() && matches!(lock_if_dead(&path), Ok(Some(_))) {
                // Another start tries again.
                let _ = fs::remove_dir_all(&path);
            }
        }
        let number =
            (0_u32..).find(|number| !parent.join(number.to_string()).exists()).unwrap_or_default();
        let mut made = Self::open(&parent.join(number.to_string()))?;
        made.is_temporary = true;
        Ok(made)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no client uses the service. The first one to come is kept waiting as long as the returned lock is held.
    pub fn unused(&self) -> Option<NoClientsLock> {
        if !self.path.is_dir() {
            // Somebody removed it.
            return Some(NoClientsLock { _lock: None });
        }
        let lock =
            try_lock(&self.path.join(CLIENTS_LOCK), FlockOperation::NonBlockingLockExclusive);
        lock.ok().flatten().map(|file| NoClientsLock { _lock: Some(file) })
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if self.is_temporary {
            // The next temporary state removes what is left.
            let _ = fs::remove_dir_all(&self.path);
        }
        unlock(&self.lock);
    }
}

/// Releases a lock. Closing its file is not enough while a forked process, which has yet to start its program, has it too.
fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

/// Proof that a service has no client, and gets none.
#[derive(Debug)]
pub struct NoClientsLock {
    _lock: Option<File>,
}

/// Says that this process uses the service on a directory.
#[derive(Debug)]
pub struct ClientLock(File);

impl ClientLock {
    /// Takes the lock on `state_dir`, which [`checked`] returned. Waits for a service that ends.
    pub async fn take(state_dir: &Path) -> Result<Self, HostError> {
        let lock = state_dir.join(CLIENTS_LOCK);
        let file = wait(&lock, FlockOperation::NonBlockingLockShared).await?;
        file.map(Self).ok_or_else(|| {
            HostError::unusable(state_dir, "its service does not end: end it with `gristmill ps`")
        })
    }

    /// Whether no other client uses the service; then none begins to while this lock is held. Otherwise it is lost.
    pub fn hold_alone(&self) -> bool {
        flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

impl Drop for ClientLock {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

/// Proof that no other process starts a service on a directory.
#[derive(Debug)]
pub struct StartLock {
    _lock: File,
}

impl StartLock {
    /// Waits while another process starts a service.
    pub async fn take(state_dir: &Path) -> Result<Self, HostError> {
        let file =
            wait(&state_dir.join(START_LOCK), FlockOperation::NonBlockingLockExclusive).await?;
        let late = || {
            HostError::unusable(state_dir, "another process does not finish to start its service")
        };
        file.map(|file| Self { _lock: file }).ok_or_else(late)
    }
}

/// The state directory `dir`, which need not have a service, after all checks; creates it if it is
/// missing. Fails with [`HostError::Unusable`] if it must not be used.
pub fn checked(dir: &Path) -> Result<PathBuf, HostError> {
    let path = private_dir(dir)?;
    places::refuse_network(&path)?;
    if FILES_BEFORE.iter().any(|file| path.join(file).exists()) {
        return Err(other_version(&path));
    }
    // A directory with other content keeps its permissions: all files of a service are private by themselves.
    let is_empty = fs::read_dir(&path).map_err(HostError::at(&path))?.next().is_none();
    if is_empty {
        close_to_others(&path)?;
    }
    Ok(path)
}

/// Whether a service has run on `dir`.
pub fn is_state_dir(dir: &Path) -> bool {
    dir.join(FORMAT_FILE).is_file()
}

fn other_version(path: &Path) -> HostError {
    HostError::unusable(
        path,
        "it holds the state of another version of gristmill: name another --state-dir, or remove it",
    )
}

/// Whether a service runs on `state_dir`.
pub fn is_alive(state_dir: &Path) -> bool {
    let lock = state_dir.join(SERVICE_LOCK);
    matches!(try_lock(&lock, FlockOperation::NonBlockingLockShared), Ok(None))
}

/// The lock of the service on `state_dir`, which lets none start; nothing if one runs.
pub(crate) fn lock_if_dead(state_dir: &Path) -> Result<Option<File>, HostError> {
    try_lock(&state_dir.join(SERVICE_LOCK), FlockOperation::NonBlockingLockExclusive)
}

/// The lock, or nothing while another process holds it.
fn try_lock(path: &Path, how: FlockOperation) -> Result<Option<File>, HostError> {
    let file = open_private(path, File::options().write(true).create(true).truncate(false));
    let file = file.map_err(HostError::at(path))?;
    match flock(&file, how) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(HostError::at(path)(error.into())),
    }
}

async fn wait(path: &Path, how: FlockOperation) -> Result<Option<File>, HostError> {
    let began = Instant::now();
    loop {
        match try_lock(path, how)? {
            None if began.elapsed() < LOCK_PATIENCE => tokio::time::sleep(LOOK).await,
            outcome => return Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_has_one_service_and_knows_its_clients() {
        let base = tempfile::tempdir().unwrap();
        let dir = checked(&base.path().join("state")).unwrap();
        assert!(!is_alive(&dir));
        let state = StateDir::open(&dir).unwrap();
        assert!(is_alive(&dir));
        assert!(matches!(StateDir::open(&dir), Err(HostError::Busy(_))));
        let client = ClientLock::take(&dir).await.unwrap();
        assert!(state.unused().is_none());
        drop(client);
        let gone = state.unused().unwrap();
        let late = tokio::time::timeout(Duration::from_millis(50), ClientLock::take(&dir));
        assert!(late.await.is_err(), "a client waits while the service ends");
        drop((gone, state));
        assert!(!is_alive(&dir));
        ClientLock::take(&dir).await.unwrap();
    }

    #[test]
    fn a_service_starts_while_others_look_whether_one_is_alive() {
        let base = tempfile::tempdir().unwrap();
        let dir = checked(&base.path().join("state")).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        is_alive(&dir);
                    }
                });
            }
            let opened: Vec<_> = (0..300).map(|_| StateDir::open(&dir).map(drop)).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            let refused = opened.iter().filter(|opened| opened.is_err()).count();
            assert_eq!(refused, 0, "{:?}", opened.iter().find(|opened| opened.is_err()));
        });
    }

    #[test]
    fn the_state_of_another_version_is_refused() {
        for name in ["table.sqlite", "service.json", "format"] {
            let base = tempfile::tempdir().unwrap();
            fs::write(base.path().join(name), "x").unwrap();
            let error = StateDir::open(base.path()).unwrap_err().to_string();
            assert!(error.contains("another version"), "{name}: {error}");
        }
    }

    #[test]
    fn an_empty_format_file_as_a_power_cut_leaves_it_is_written_again() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join(FORMAT_FILE), "").unwrap();
        drop(StateDir::open(base.path()).unwrap());
        assert_eq!(fs::read(base.path().join(FORMAT_FILE)).unwrap(), FORMAT);
    }
}
