//! The state directory: its lock, and `service.json` for the next start.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{Mount, Ports};
use crate::{Credentials, LocalError};

/// Contains keys, so it is readable by its owner only.
pub(super) const FILE: &str = "service.json";

/// Larger than any valid file.
const MAX_BYTES: u64 = 1 << 20;

/// State saved for the next start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Saved {
    pub ports: Ports,
    pub credentials: Credentials,
    pub mounts: Vec<Mount>,
}

/// A state directory locked by this process.
#[derive(Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    /// Released with the descriptor, so a killed service leaves no lock behind.
    _lock: File,
}

impl StateDir {
    /// Creates the directory if needed and locks it.
    pub(super) fn open(path: &Path) -> Result<Self, LocalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| LocalError::state(path, error)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))?;
        let path = path.canonicalize().map_err(failed(path))?;
        keep_private(&path).map_err(failed(&path))?;
        let lock_path = path.join("service.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LocalError::Busy { path }),
            Err(error) => Err(LocalError::state(lock_path, error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    /// The state saved by the last service, if any.
    pub(super) fn load(&self) -> Result<Option<Saved>, LocalError> {
        read(&self.file())
    }

    /// Replaces the saved state atomically.
    pub(super) fn save(&self, saved: &Saved) -> Result<(), LocalError> {
        let file = self.file();
        let failed = |error: std::io::Error| LocalError::state(&file, error);
        let text = serde_json::to_vec_pretty(saved).map_err(|error| failed(error.into()))?;
        let new = self.path.join("service.json.new");
        // A file left by a service killed at this point may have other permissions.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut out =
            File::options().create_new(true).write(true).mode(0o600).open(&new).map_err(failed)?;
        out.write_all(&text).and_then(|()| out.sync_all()).map_err(failed)?;
        std::fs::rename(&new, &file).map_err(failed)
    }
}

/// Removes others' permissions on a directory that is, or becomes, a service's. A directory with other content keeps
/// its permissions: files of the service are private by themselves.
fn keep_private(dir: &Path) -> std::io::Result<()> {
    let ours = dir.join("service.lock").exists() || std::fs::read_dir(dir)?.next().is_none();
    let about = std::fs::metadata(dir)?;
    let mine = about.uid() == rustix::process::geteuid().as_raw();
    if ours && mine && about.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

pub(super) fn read(path: &Path) -> Result<Option<Saved>, LocalError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LocalError::state(path, error)),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| LocalError::state(path, error))?;
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        LocalError::state(
            path,
            format!("not the state of a service ({error}): remove it to start again"),
        )
    })
}
