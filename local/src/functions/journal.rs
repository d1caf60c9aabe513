//! Accepted events on disk: like those Lambda has accepted, they outlive whoever was to run them.
//!
//! One small file an event, from before its caller hears of it until it has run or its failure was queued as a report.
//! A kill at any point leaves an event that runs, or is reported, once more; functions survive doubled events anyway.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::environment::Invocation;
use crate::LocalError;

/// The folder of the files; nothing is kept without one.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    dir: Option<PathBuf>,
}

/// An event as it is written down.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub function: String,
    pub request_id: String,
    pub payload: String,
    pub client_context: Option<String>,
    pub reports_failure: bool,
}

impl Journal {
    /// Opens the folder, made if missing, and reads what an earlier host left in it, oldest first.
    pub(crate) fn open(dir: Option<PathBuf>) -> Result<(Self, Vec<Entry>), LocalError> {
        let Some(dir) = dir else { return Ok((Self::default(), Vec::new())) };
        let left = read_all(&dir).map_err(|error| LocalError::state(&dir, error))?;
        Ok((Self { dir: Some(dir) }, left))
    }

    /// Writes an event down. It is not forced to the disk: a kill does not lose it, a power cut may.
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
            // Nobody was told that the event is accepted.
            let _ = std::fs::remove_file(&path);
        })
    }

    /// The event has ended.
    pub(crate) fn remove(&self, request_id: &str) {
        let Some(path) = self.path(request_id) else { return };
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(event = %path.display(), %error, "an event that ended stays on disk");
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
            // Cut short by a kill: nobody was told that it is accepted.
            Err(_) => match std::fs::remove_file(file.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
    }
    left.sort_by_key(|(written, _)| *written);
    Ok(left.into_iter().map(|(_, entry)| entry).collect())
}
