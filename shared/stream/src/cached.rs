//! Epochs that are read from a cache as a whole: their splits are known without polling.

use crate::FetchError;
use gristmill_model::stored::keys;
use gristmill_model::wire::CacheManifest;
use gristmill_ports::{ObjectError, ObjectPath, ObjectStore};
use std::sync::Arc;

/// The store of cached chunks.
pub(crate) struct CacheManifestReader {
    pub objects: Arc<dyn ObjectStore>,
    pub bucket: String,
}

impl CacheManifestReader {
    /// The manifest of `shelf`; none if it cannot be read now.
    pub async fn manifest(&self, shelf: &str) -> Result<Option<CacheManifest>, FetchError> {
        let path = ObjectPath::new(&self.bucket, keys::shelf_manifest(shelf));
        let bad = |error: String| FetchError::BadObject(error);
        let read = match self.objects.get(&path).await {
            Ok(read) => read,
            Err(ObjectError::Unavailable(why)) => {
                tracing::warn!(%path, why, "cannot read a cached object now");
                return Ok(None);
            }
            Err(ObjectError::NotFound(path)) => {
                return Err(bad(format!(
                    "{path} was deleted, and this job reads it instead of computing: start a job \
                     under another name"
                )));
            }
            Err(error) => return Err(bad(error.to_string())),
        };
        let manifest = serde_json::from_slice(&read);
        manifest.map(Some).map_err(|error| bad(format!("{path} is not a manifest: {error}")))
    }
}
