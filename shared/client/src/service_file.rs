//! How a client on the same machine finds a running service: the file it leaves in its state
//! directory, or in the user's registry under its port. Both are readable by their owner only.

use serde::{Deserialize, Serialize};
use std::{
    env, fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// File name in a state directory.
const FILE_NAME: &str = "endpoint.json";
/// Larger than any service writes.
const MAX_BYTES: u64 = 1 << 20;

/// Everything a client needs to talk to a service on this machine.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFile {
    /// The address people pass as `--endpoint`.
    pub endpoint: String,
    pub s3: String,
    /// The endpoint that serves folders of this machine as buckets.
    pub folders: String,
    pub dynamodb: String,
    pub coordinator_url: String,
    pub region: String,
    pub namespace: String,
    pub table: String,
    pub bucket: String,
    pub worker_function: String,
    pub scaler_function: String,
    pub access_key_id: String,
    pub secret_access_key: String,
    /// The process that serves.
    pub pid: u32,
}

/// Why a service cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(
        "no service of yours listens at {0}: start one with `gristmill up`, or name its --state-dir"
    )]
    Unknown(String),
    #[error("cannot read {path}: {error}")]
    Unreadable { path: PathBuf, error: String },
    #[error("{0:?} is not an endpoint: it looks like http://127.0.0.1:4571")]
    NotAnEndpoint(String),
}

impl std::fmt::Debug for ServiceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceFile({})", self.endpoint)
    }
}

impl ServiceFile {
    /// The service whose state directory is `dir`.
    pub fn of_state_dir(dir: &Path) -> Result<Self, AttachError> {
        Self::read(&dir.join(FILE_NAME))
    }

    /// The service of this user that listens at `endpoint`.
    pub fn of_endpoint(endpoint: &str) -> Result<Self, AttachError> {
        let path = registry_path(endpoint)?;
        match Self::read(&path) {
            Ok(file) => Ok(file),
            Err(_) if !path.exists() => Err(AttachError::Unknown(endpoint.to_owned())),
            Err(error) => Err(error),
        }
    }

    fn read(path: &Path) -> Result<Self, AttachError> {
        let unreadable = |error: String| AttachError::Unreadable { path: path.to_owned(), error };
        let text = crate::read_user_file(path, MAX_BYTES).map_err(unreadable)?;
        serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
    }

    /// Makes the service known; returns the files written, to be removed when it ends.
    pub fn publish(&self, state_dir: &Path) -> io::Result<Vec<PathBuf>> {
        let registry = registry_path(&self.endpoint).map_err(io::Error::other)?;
        let written = vec![state_dir.join(FILE_NAME), registry];
        for path in &written {
            write_private(path, &serde_json::to_vec_pretty(self)?).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
            })?;
        }
        Ok(written)
    }
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_private(path: &Path, body: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(body)?;
    fs::rename(&draft, path)
}

fn registry_path(endpoint: &str) -> Result<PathBuf, AttachError> {
    let invalid = || AttachError::NotAnEndpoint(endpoint.to_owned());
    let port = endpoint.trim_end_matches('/').rsplit(':').next().ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_| invalid())?;
    let home = env::var_os("HOME").map(PathBuf::from);
    let state = env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| home.map(|home| home.join(".local/state")));
    let state = state.unwrap_or_else(|| env::temp_dir().join(format!("gristmill-{}", user_id())));
    Ok(state.join("gristmill/services").join(format!("{port}.json")))
}

fn user_id() -> String {
    env::var("USER").unwrap_or_else(|_| "nobody".to_owned())
}
