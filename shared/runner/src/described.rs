//! Stored descriptions of datasets: listings, manifests and packs of images. Each is named by a hash of what it
//! describes, so a damaged one is noticed. A worker cannot make one again: it removes it, and the next job over the
//! dataset makes it.

use crate::LeaseError;
use gristmill_model::Fingerprint;
use gristmill_model::wire::{Dataset, DatasetManifest, ImagePack};
use gristmill_ports::{ObjectError, ObjectPath, ObjectStore};
use gristmill_sources::images;

/// A job whose description is gone cannot go on, and a new one makes it.
const MADE_AGAIN: &str =
    "start another job, or this one again after `gristmill forget`, with its checkpoint";

pub(crate) async fn read_listing(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    version: Fingerprint,
    format: &str,
) -> Result<Dataset, LeaseError> {
    read(objects, path, |stored| {
        let listing: Dataset = serde_json::from_slice(stored).ok()?;
        (listing.version(format) == version).then_some(listing)
    })
    .await
}

/// Reads the manifest of dataset `version`, whose files are read as `format`. Its numbers of records are to be compared
/// with the indices.
pub(crate) async fn read_manifest(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    version: Fingerprint,
    format: &str,
) -> Result<DatasetManifest, LeaseError> {
    read(objects, path, |stored| {
        let manifest: DatasetManifest = serde_json::from_slice(stored).ok()?;
        let described = Dataset {
            bucket: manifest.bucket.clone(),
            files: manifest.files.iter().map(|file| file.file.clone()).collect(),
            members: manifest.members.clone(),
        };
        (described.version(format) == version).then_some(manifest)
    })
    .await
}

/// Reads the pack at `path`, whose etag is its hash; a pack is its own index.
pub(crate) async fn read_pack(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    etag: &str,
) -> Result<ImagePack, LeaseError> {
    let is_whole = |stored: &[u8]| ImagePack::fingerprint(stored).to_string() == etag;
    read(objects, path, |stored| images::read_pack(stored).ok().filter(|_| is_whole(stored))).await
}

/// Reads a description; `parse` returns none if it is damaged.
async fn read<T>(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, LeaseError> {
    match objects.get(path).await.map(|stored| parse(&stored)) {
        Ok(Some(described)) => Ok(described),
        Ok(None) => Err(damaged(objects, path).await),
        Err(ObjectError::NotFound(path)) => {
            Err(LeaseError::fatal(format!("{path} is missing: {MADE_AGAIN}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes a damaged description. Returns the error that ends the job.
pub(crate) async fn damaged(objects: &dyn ObjectStore, path: &ObjectPath) -> LeaseError {
    let removed = objects.delete(&path.bucket, std::slice::from_ref(&path.key)).await;
    LeaseError::fatal(match removed {
        Ok(()) => format!("{path} is damaged and is removed: {MADE_AGAIN}"),
        Err(error) => format!(
            "{path} is damaged and cannot be removed ({error}): remove it; then {MADE_AGAIN}"
        ),
    })
}
