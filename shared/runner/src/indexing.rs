//! The indices of source files: each is made once, by reading as much as is needed to find the file's records, for
//! most formats in one streamed pass. It is stored by (key, size, etag, format). One that is missing or damaged is made
//! again.

use crate::{Compute, RunError};
use bytes::Bytes;
use gristmill_model::Namespace;
use gristmill_model::stored::keys;
use gristmill_model::wire::{Pack, SourceFile};
use gristmill_pipeline::Format;
use gristmill_ports::{ObjectError, ObjectPath, Objects};
use gristmill_sources::{FileIndex, IndexBuilder, SourceError, images};

/// The store of indices.
pub(crate) struct IndexStore<'a> {
    pub objects: &'a dyn Objects,
    pub compute: Compute,
    pub ns: &'a Namespace,
    pub bucket: &'a str,
}

impl IndexStore<'_> {
    /// Number of records of `file` in `bucket`; its index is stored afterwards.
    pub async fn count(
        &self,
        format: &Format,
        bucket: &str,
        file: &SourceFile,
    ) -> Result<u32, RunError> {
        if format.definition().is_packed {
            let pack = read_pack(self.objects, &ObjectPath::new(bucket, &file.key)).await?;
            return Ok(pack.images.len() as u32);
        }
        Ok(self.load(format, bucket, file).await?.len())
    }

    /// The index of `file` in `bucket`.
    pub async fn load(
        &self,
        format: &Format,
        bucket: &str,
        file: &SourceFile,
    ) -> Result<FileIndex, RunError> {
        let key = keys::index(self.ns, file.fingerprint(bucket), &format.index_name());
        let path = ObjectPath::new(self.bucket, key);
        let is_damaged = match self.objects.get(&path).await {
            Ok(stored) => match FileIndex::decode(&stored, format) {
                Ok(index) => return Ok(index),
                Err(error) => {
                    tracing::warn!("{path}: {error}: it is made again");
                    true
                }
            },
            Err(ObjectError::NotFound(_)) => false,
            Err(error) => return Err(error.into()),
        };
        let index = self.build(format, bucket, file).await?;
        if is_damaged {
            match self.objects.delete(self.bucket, std::slice::from_ref(&path.key)).await {
                Ok(()) => {}
                Err(ObjectError::Denied(why)) => {
                    tracing::warn!("{path} stays damaged: {why}");
                    return Ok(index);
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The index is a function of the file, so the winner of a race stored the same bytes.
        self.objects.put_if_absent(&path, Bytes::from(index.encode()), "index").await?;
        Ok(index)
    }

    async fn build(
        &self,
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
                false => self.objects.get_range(&path, range, Some(&file.etag)).await?,
            };
            let pushed = self.compute.run(move || {
                let pushed = builder.push(&part);
                Ok(pushed.map(|()| builder))
            });
            builder = pushed.await?.map_err(bad)?;
        }
        builder.finish().map_err(bad)
    }
}

/// Reads the pack at `path`; a pack is its own index.
pub(crate) async fn read_pack(objects: &dyn Objects, path: &ObjectPath) -> Result<Pack, RunError> {
    images::read_pack(&objects.get(path).await?)
        .map_err(|error| RunError::fatal(format!("{path}: {error}")))
}
