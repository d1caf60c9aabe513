//! Indexing one source file: a single streamed pass that finds where each record starts. Done once
//! per file content; its result is stored by (key, size, etag) and found again by every later job.

use crate::RunError;
use bytes::Bytes;
use gristmill_executor::sources::{FileIndex, IndexBuilder};
use gristmill_pipeline::Format;
use gristmill_ports::{ObjectError, ObjectPath, Objects};
use gristmill_protocol::{PACK_IMAGES, Pack, SourceFile, keys};
use gristmill_types::Namespace;

/// Bytes read at a time while indexing.
const READ_BYTES: u64 = 16 << 20;

/// Makes sure that the index of `file` exists; returns its record count.
pub(crate) async fn ensure_index(
    objects: &dyn Objects,
    format: Format,
    ns: &Namespace,
    bucket: &str,
    source_bucket: &str,
    file: &SourceFile,
) -> Result<u32, RunError> {
    if format == Format::Images {
        let pack = read_pack(objects, &ObjectPath::new(source_bucket, &file.key)).await?;
        return Ok(pack.images.len() as u32);
    }
    let path = ObjectPath::new(bucket, keys::index(ns, file.fingerprint(source_bucket)));
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
    let index = build_index(objects, format, source_bucket, file).await?;
    // Whoever wins the race stored the same bytes: an index is a function of the file.
    objects.put_if_absent(&path, Bytes::from(index.encode()), "index").await?;
    Ok(index.len())
}

async fn build_index(
    objects: &dyn Objects,
    format: Format,
    bucket: &str,
    file: &SourceFile,
) -> Result<FileIndex, RunError> {
    let path = ObjectPath::new(bucket, &file.key);
    let bad = |error: &dyn std::fmt::Display| RunError::fatal(format!("{path}: {error}"));
    let mut builder = IndexBuilder::new(format).map_err(|error| bad(&error))?;
    let mut start = 0;
    while start < file.size {
        let end = (start + READ_BYTES).min(file.size);
        let part = objects.get_range(&path, start..end, Some(&file.etag)).await?;
        builder.push(&part).map_err(|error| bad(&error))?;
        start = end;
    }
    builder.finish().map_err(|error| bad(&error))
}

/// A pack is its own index.
pub(crate) async fn read_pack(objects: &dyn Objects, path: &ObjectPath) -> Result<Pack, RunError> {
    let pack: Pack = serde_json::from_slice(&objects.get(path).await?)
        .map_err(|error| RunError::fatal(format!("{path} is not a pack of images: {error}")))?;
    match pack.images.len() <= PACK_IMAGES {
        true => Ok(pack),
        false => Err(RunError::fatal(format!("{path} has more than {PACK_IMAGES} images"))),
    }
}
