//! How a client on the same machine finds a running service: the file that it leaves in its state directory, and in the
//! register of its user's services. Both are readable by their owner only.

use crate::{
    HostError, places,
    private::{private_dir, read_private, write_private},
    state_dir::{is_alive, lock_if_dead},
};
use gristmill_model::{Namespace, wire::WorkerEvent};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

const FILE_NAME: &str = "endpoint.json";
/// Larger than any service writes.
const MAX_BYTES: u64 = 1 << 20;
/// Begins an endpoint that is a socket of this machine.
pub(crate) const UNIX: &str = "unix:";

/// Everything a client needs to talk to a service on this machine.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFile {
    /// The address people pass as `--endpoint`: `unix:PATH` or `http://127.0.0.1:PORT`.
    pub endpoint: String,
    /// Part of each request, so that another user of the machine cannot send one.
    pub token: String,
    pub state_dir: PathBuf,
    pub namespace: Namespace,
    pub bucket: String,
    /// The version of gristmill that serves.
    pub version: String,
    /// The process that serves, for people: another process may have this number in a container.
    pub pid: u32,
    /// The S3 of another service that keeps the objects.
    #[serde(default)]
    pub s3: Option<ForeignS3>,
    /// The credentials of its workers ([`crate::credentials_id`]); none for one that a person started.
    #[serde(default)]
    pub credentials: Option<String>,
}

/// An S3-compatible service, with keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignS3 {
    pub endpoint: String,
    pub region: String,
    pub access_key_id: String,
    pub secret_access_key: String,
}

/// Why a service cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(
        "no service of yours listens at {0}: start one with `gristmill up`, or name its --state-dir"
    )]
    Unknown(String),
    #[error("no service runs on {}: start one with `gristmill up --state-dir`", .0.display())]
    Ended(PathBuf),
    #[error("cannot read {path}: {error}")]
    Unreadable { path: PathBuf, error: String },
    #[error(
        "{0:?} is not an endpoint: it looks like unix:/run/user/1000/gristmill/0f.sock or http://127.0.0.1:4571"
    )]
    NotAnEndpoint(String),
}

impl std::fmt::Debug for ServiceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceFile({})", self.endpoint)
    }
}

impl ServiceFile {
    /// The service whose state directory is `dir`.
    pub fn from_state_dir(dir: &Path) -> Result<Self, AttachError> {
        let unreadable = |error: HostError| AttachError::Unreadable {
            path: dir.to_owned(),
            error: error.to_string(),
        };
        if !dir.exists() {
            return Err(AttachError::Ended(dir.to_owned()));
        }
        let dir = private_dir(dir).map_err(unreadable)?;
        if is_alive(&dir) { Self::read(&dir.join(FILE_NAME)) } else { Err(AttachError::Ended(dir)) }
    }

    /// The service of this user that listens at `endpoint`.
    pub fn from_endpoint(endpoint: &str) -> Result<Self, AttachError> {
        let endpoint = endpoint.trim_end_matches('/');
        if !endpoint.starts_with(UNIX) && port(endpoint).is_none() {
            return Err(AttachError::NotAnEndpoint(endpoint.to_owned()));
        }
        let is_it = |file: &Self| match port(endpoint) {
            Some(port_named) => port(&file.endpoint) == Some(port_named),
            None => file.endpoint == endpoint,
        };
        registered()
            .into_iter()
            .find(is_it)
            .ok_or_else(|| AttachError::Unknown(endpoint.to_owned()))
    }

    fn read(path: &Path) -> Result<Self, AttachError> {
        let unreadable = |error: String| AttachError::Unreadable { path: path.to_owned(), error };
        let text = read_private(path, MAX_BYTES).map_err(|error| unreadable(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
    }

    /// Makes the service known; returns the files written, to be removed when it ends.
    pub fn publish(&self) -> Result<Vec<PathBuf>, HostError> {
        let entry = places::run_path(&self.state_dir)?.with_extension("json");
        let written = vec![entry, self.state_dir.join(FILE_NAME)];
        for path in &written {
            let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
            text.and_then(|text| write_private(path, &text)).map_err(HostError::at(path))?;
        }
        Ok(written)
    }

    /// The path of the socket for the service on `state_dir`.
    pub fn socket_path(state_dir: &Path) -> Result<PathBuf, HostError> {
        Ok(places::run_path(state_dir)?.with_extension("sock"))
    }
}

fn port(endpoint: &str) -> Option<u16> {
    endpoint.strip_prefix("http://")?.trim_end_matches('/').rsplit_once(':')?.1.parse().ok()
}

/// All running services of this user on this machine. Removes the entries of those that have ended.
pub fn registered() -> Vec<ServiceFile> {
    let mut found: Vec<ServiceFile> = Vec::new();
    for dir in places::known_run_dirs() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let Ok(file) = ServiceFile::read(&path) else { continue };
            // Held while files are removed, so that no service starts meanwhile and loses its own.
            let dead = file.state_dir.is_dir().then(|| lock_if_dead(&file.state_dir));
            if !matches!(dead, Some(Ok(None))) {
                for left in [path.with_extension("sock"), path] {
                    // It may be gone already.
                    let _ = fs::remove_file(left);
                }
            } else if !found.iter().any(|known| known.state_dir == file.state_dir) {
                found.push(file);
            }
        }
    }
    found.sort_by(|a, b| a.state_dir.cmp(&b.state_dir));
    found
}

/// The first line to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerSetup {
    pub service: ServiceFile,
    /// Memory that the worker assumes, in MB.
    pub memory_mb: u32,
}

/// Each further line: work for one event. The worker ends when its standard input does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerOrder {
    pub event: WorkerEvent,
    /// Identifies the invocation.
    pub request: String,
    /// Unix time by which it must end.
    pub deadline_ms: u64,
}

/// A line from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerAnswer {
    /// The event is done; how it ended.
    Done(String),
    /// The event failed; why.
    Failed(String),
    /// Why the worker cannot go on at present; none when it can again.
    Trouble(Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_sockets_or_ports_of_this_machine() {
        assert_eq!(port("http://127.0.0.1:4571/"), Some(4571));
        for bad in ["", "4571", "http://127.0.0.1", "tcp://x:1", "/run/x.sock"] {
            let error = ServiceFile::from_endpoint(bad).unwrap_err();
            assert!(matches!(error, AttachError::NotAnEndpoint(_)), "{bad}: {error}");
        }
        let error = ServiceFile::from_endpoint("unix:/nowhere.sock").unwrap_err();
        assert!(matches!(error, AttachError::Unknown(_)), "{error}");
    }
}
