//! Indexes one source file: reads as much as is needed to find its records, for most formats in one
//! streamed pass. The index is stored by (key, size, etag, format), so every file content is indexed only once.

use crate::{Compute, RunError};
use bytes::Bytes;
use gristmill_model::Namespace;
use gristmill_model::stored::keys;
use gristmill_model::wire::{Pack, SourceFile};
use gristmill_pipeline::Format;
use gristmill_ports::{ObjectError, ObjectPath, Objects};
use gristmill_sources::{FileIndex, IndexBuilder, SourceError, images};

/// Builds and stores the index of `file` unless it exists; returns the number of records.
pub(crate) async fn ensure_index(
    objects: &dyn Objects,
    compute: Compute,
    format: &Format,
    ns: &Namespace,
    bucket: &str,
    source_bucket: &str,
    file: &SourceFile,
) -> Result<u32, RunError> {
    if format.definition().is_packed {
        let pack = read_pack(objects, &ObjectPath::new(source_bucket, &file.key)).await?;
        return Ok(pack.images.len() as u32);
    }
    let path = ObjectPath::new(
        bucket,
        keys::index(ns, file.fingerprint(source_bucket), &format.index_name()),
    );
    match objects.get(&path).await {
        Ok(stored) => {
            let index = FileIndex::decode(&stored, format);
            return index
                .map(|index| index.len())
                .map_err(|error| RunError::fatal(format!("{path}: {error}")));
        }
        Err(ObjectError::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let index = build_index(objects, compute, format, source_bucket, file).await?;
    // The index is a function of the file, so the winner of a race stored the same bytes.
    objects.put_if_absent(&path, Bytes::from(index.encode()), "index").await?;
    Ok(index.len())
}

async fn build_index(
    objects: &dyn Objects,
    compute: Compute,
    format: &Format,
    bucket: &str,
    file: &SourceFile,
) -> Result<FileIndex, RunError> {
    let path = ObjectPath::new(bucket, &file.key);
    let bad = |error: SourceError| RunError::fatal(format!("{path}: {error}"));
    let mut builder = IndexBuilder::of_file(format, file.size).map_err(bad)?;
    while let Some(range) = builder.wants() {
        // An empty range cannot be requested.
        let part = match range.is_empty() {
            true => Bytes::new(),
            false => objects.get_range(&path, range, Some(&file.etag)).await?,
        };
        let pushed = compute.run(move || {
            let pushed = builder.push(&part);
            Ok(pushed.map(|()| builder))
        });
        builder = pushed.await?.map_err(bad)?;
    }
    builder.finish().map_err(bad)
}

/// Reads the pack at `path`; a pack is its own index.
pub(crate) async fn read_pack(objects: &dyn Objects, path: &ObjectPath) -> Result<Pack, RunError> {
    images::read_pack(&objects.get(path).await?)
        .map_err(|error| RunError::fatal(format!("{path}: {error}")))
}
