//! Accepted events on disk: as on Lambda, they survive the host that was to run them.
//!
//! One small file per event, written before the caller is answered and removed when the event has run or its failure is
//! queued as a report. A kill at any point runs or reports an event once more; functions tolerate duplicates anyway.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::environment::Invocation;
use crate::LocalError;

/// The directory of the files; without one nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    dir: Option<PathBuf>,
}

/// An event as stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub function: String,
    pub request_id: String,
    pub payload: String,
    pub client_context: Option<String>,
    pub reports_failure: bool,
}

impl Journal {
    /// Opens the directory, creating it if missing, and reads the events of an earlier host, oldest first.
    pub(crate) fn open(dir: Option<PathBuf>) -> Result<(Self, Vec<Entry>), LocalError> {
        let Some(dir) = dir else { return Ok((Self::default(), Vec::new())) };
        let left = read_all(&dir).map_err(|error| LocalError::state(&dir, error))?;
        Ok((Self { dir: Some(dir) }, left))
    }

    /// Stores an event. Without fsync: it survives a kill, but may not survive a power cut.
    pub(crate) fn add(
        &self,
        function: &str,
        invocation: &Invocation,
        reports_failure: bool,
    ) -> io::Result<()> {
        let Some(path) = self.path(&invocation.request_id) else { return Ok(()) };
        let payload = String::from_utf8_lossy(&invocation.payload).into_owned();
        let entry = Entry {
            function: function.to_owned(),
            request_id: invocation.request_id.clone(),
            payload,
            client_context: invocation.client_context.clone(),
            reports_failure,
        };
        let text = serde_json::to_vec(&entry)?;
        let new = File::options().create_new(true).write(true).mode(0o600).open(&path);
        let written = new.and_then(|mut file| file.write_all(&text));
        written.inspect_err(|error| {
            crate::room::note(error);
            // The event was not acknowledged.
            let _ = std::fs::remove_file(&path);
        })
    }

    /// Removes an event that has ended.
    pub(crate) fn remove(&self, request_id: &str) {
        let Some(path) = self.path(request_id) else { return };
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(event = %path.display(), %error, "a finished event stays on disk");
        }
    }

    fn path(&self, request_id: &str) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(request_id))
    }
}

fn read_all(dir: &Path) -> io::Result<Vec<Entry>> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut left = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        let written = file.metadata()?.modified()?;
        match serde_json::from_slice::<Entry>(&std::fs::read(file.path())?) {
            Ok(entry) => left.push((written, entry)),
            // Cut short by a kill before the event was acknowledged.
            Err(_) => match std::fs::remove_file(file.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
    }
    left.sort_by_key(|(written, _)| *written);
    Ok(left.into_iter().map(|(_, entry)| entry).collect())
}
