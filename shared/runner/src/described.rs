//! Stored descriptions of datasets: listings, manifests and packs of images. Each is named by a hash of what it
//! describes, so a damaged one is noticed. A worker cannot make one again: it removes it, and the next job over the
//! dataset makes it.

use crate::LeaseError;
use bytes::Bytes;
use gristmill_model::Fingerprint;
use gristmill_model::wire::{Dataset, DatasetManifest, ImagePack};
use gristmill_ports::{ObjectError, ObjectPath, ObjectStore};
use gristmill_sources::images;
use serde_json::Error;

/// A job whose description is gone cannot go on, and a new one makes it.
const MADE_AGAIN: &str =
    "start another job, or this one again after `gristmill forget`, with its checkpoint";

/// Reads the listing of dataset `version`, whose files are read as `format`.
pub(crate) async fn read_listing(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    version: Fingerprint,
    format: &str,
) -> Result<Dataset, LeaseError> {
    let listing: Result<Dataset, Error> = serde_json::from_slice(&read(objects, path).await?);
    match listing {
        Ok(listing) if listing.version(format) == version => Ok(listing),
        _ => Err(damaged(objects, path).await),
    }
}

/// Reads the manifest of dataset `version`, whose files are read as `format`. Its numbers of records are to be compared
/// with the indices.
pub(crate) async fn read_manifest(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    version: Fingerprint,
    format: &str,
) -> Result<DatasetManifest, LeaseError> {
    let manifest: Result<DatasetManifest, Error> =
        serde_json::from_slice(&read(objects, path).await?);
    let described = |manifest: &DatasetManifest| Dataset {
        bucket: manifest.bucket.clone(),
        files: manifest.files.iter().map(|file| file.file.clone()).collect(),
        members: manifest.members.clone(),
    };
    match manifest {
        Ok(manifest) if described(&manifest).version(format) == version => Ok(manifest),
        _ => Err(damaged(objects, path).await),
    }
}

/// Reads the pack at `path`, whose etag is its hash; a pack is its own index.
pub(crate) async fn read_pack(
    objects: &dyn ObjectStore,
    path: &ObjectPath,
    etag: &str,
) -> Result<ImagePack, LeaseError> {
    let stored = read(objects, path).await?;
    match images::read_pack(&stored) {
        Ok(pack) if ImagePack::fingerprint(&stored).to_string() == etag => Ok(pack),
        _ => Err(damaged(objects, path).await),
    }
}

async fn read(objects: &dyn ObjectStore, path: &ObjectPath) -> Result<Bytes, LeaseError> {
    objects.get(path).await.map_err(|error| match error {
        ObjectError::NotFound(path) => {
            LeaseError::fatal(format!("{path} is missing: {MADE_AGAIN}"))
        }
        error => error.into(),
    })
}

/// Removes a damaged description. Returns the error that ends the job.
pub(crate) async fn damaged(objects: &dyn ObjectStore, path: &ObjectPath) -> LeaseError {
    let removed = objects.delete(&path.bucket, std::slice::from_ref(&path.key)).await;
    LeaseError::fatal(match removed {
        Ok(()) => {
            format!("{path} is damaged and is removed: {MADE_AGAIN}")
        }
        Err(error) => format!(
            "{path} is damaged and cannot be removed ({error}): remove it; then {MADE_AGAIN}"
        ),
    })
}
