//! Epochs that are read from a cache as a whole: what they deliver is known without asking.

use crate::{FetchError, ledger::Ledger};
use gristmill_ports::{ObjectError, ObjectPath};
use gristmill_protocol::{CacheManifest, keys};
use gristmill_runner::Runner;
use std::sync::Arc;

/// Reads what is cached once the job has come to it. Ends at once where that never happens.
pub(crate) async fn load(runner: Runner, ledger: Arc<Ledger>) {
    // A run that has ended needs nothing more.
    let Ok(shelf) = ledger.whole_shelf().await else { return };
    match manifest(&runner, &shelf).await {
        Ok(manifest) => ledger.set_cached(manifest),
        Err(error) => ledger.fail(error),
    }
}

async fn manifest(runner: &Runner, shelf: &str) -> Result<CacheManifest, FetchError> {
    let path = ObjectPath::new(&runner.config.bucket, keys::shelf_manifest(shelf));
    let bad = |error: String| FetchError::BadObject(error);
    let read = runner.objects.get(&path).await.map_err(|error| match error {
        ObjectError::NotFound(path) => bad(format!(
            "{path} is gone, which this job reads instead of computing: start it under another name"
        )),
        other => bad(other.to_string()),
    })?;
    serde_json::from_slice(&read).map_err(|error| bad(format!("{path} is no manifest: {error}")))
}
