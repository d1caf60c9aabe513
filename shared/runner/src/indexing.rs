//! The indices of source files: each is made once, by reading as much as is needed to find the file's records, for
//! most formats in one streamed pass. It is stored by (key, size, etag, format). One that is missing or damaged is made
//! again.
//!
//! A file on this machine may be rewritten with the same size and time. Its change stamp names its index too, so under
//! another stamp the file is read again, by one worker for all. If its content is what was first read, the index is
//! stored under the new stamp, and work goes on. Otherwise the job fails, and the content that it has now is noted:
//! it is part of the file's identity in jobs that begin later.

use crate::{ComputeMode, LeaseError, described::read_pack};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_chunk::crc32c;
use gristmill_model::{
    Fingerprint, Namespace,
    splits::RecordRange,
    stored::keys,
    wire::{ImagePack, SourceFile},
};
use gristmill_pipeline::FileFormat;
use gristmill_ports::{ChangeStamp, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome};
use gristmill_sources::{FileIndex, IndexBuilder, SourceError};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most bytes of files that are read when they are listed, to see whether they have changed; workers see it later.
const LOOKED_AT_BYTES: u64 = 1 << 30;
/// Files that are looked at together.
const LOOKS_AT_ONCE: usize = 16;

/// The store of indices.
pub struct IndexStore<'a> {
    pub objects: &'a dyn ObjectStore,
    pub compute: ComputeMode,
    pub ns: &'a Namespace,
    pub bucket: &'a str,
    /// Whether a damaged file has the records before the damage; it is an error otherwise.
    pub rescues: bool,
}

/// A source file as a format reads it.
#[derive(Clone, Copy)]
pub(crate) struct FormattedFile<'a> {
    pub format: &'a FileFormat,
    pub bucket: &'a str,
    pub file: &'a SourceFile,
}

/// An index, and the stamp that its file had when it was made.
pub(crate) struct StampedIndex {
    pub index: FileIndex,
    pub stamp: Option<ChangeStamp>,
}

impl FormattedFile<'_> {
    fn path(&self) -> ObjectPath {
        ObjectPath::new(self.bucket, &self.file.key)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.file.fingerprint(self.bucket)
    }

    /// Identifies the file as it was first read under its etag.
    fn first_fingerprint(&self) -> Fingerprint {
        SourceFile { content: None, ..self.file.clone() }.fingerprint(self.bucket)
    }
}

impl IndexStore<'_> {
    /// Number of records of `source`; its index is stored afterwards.
    pub(crate) async fn count(&self, source: FormattedFile<'_>) -> Result<u32, LeaseError> {
        if source.format.definition().is_packed {
            let pack = read_pack(self.objects, &source.path(), &source.file.etag).await?;
            return Ok(pack.images.len() as u32);
        }
        Ok(self.load(source).await?.index.len())
    }

    pub(crate) async fn load(&self, source: FormattedFile<'_>) -> Result<StampedIndex, LeaseError> {
        let stamp = self.objects.change_stamp(&source.path()).await?;
        let path = self.path_of(source, stamp.as_ref());
        let stored = found(self.objects.get(&path).await)?;
        let is_damaged = stored.is_some();
        match stored.map(|stored| FileIndex::decode(&stored, source.format)) {
            Some(Ok(index)) => {
                return match index.lost_rest().filter(|_| !self.rescues) {
                    Some(lost) => Err(LeaseError::fatal(format!("{}: {lost}", source.path()))),
                    None => Ok(StampedIndex { index, stamp }),
                };
            }
            Some(Err(error)) => tracing::warn!("{path}: {error}: it is made again"),
            None => {}
        }
        let (index, content) = self.build(source, stamp.is_some()).await?;
        let stored = Bytes::from(index.encode());
        if let (Some(stamp), Some(content)) = (&stamp, content) {
            self.check_content(source, stamp, content, &stored).await?;
        }
        if is_damaged && !self.removed(&path).await? {
            return Ok(StampedIndex { index, stamp });
        }
        // The index is a function of the file, so the winner of a race stored the same bytes.
        self.objects.put_if_absent(&path, stored, "index").await?;
        Ok(StampedIndex { index, stamp })
    }

    fn path_of(&self, source: FormattedFile<'_>, stamp: Option<&ChangeStamp>) -> ObjectPath {
        let (name, stamp) = (source.format.index_name(), stamp.map(|stamp| stamp.0.as_str()));
        ObjectPath::new(self.bucket, keys::index(self.ns, source.fingerprint(), &name, stamp))
    }

    /// Removes a damaged object, if this process may.
    async fn removed(&self, path: &ObjectPath) -> Result<bool, LeaseError> {
        match self.objects.delete(self.bucket, std::slice::from_ref(&path.key)).await {
            Ok(()) => Ok(true),
            Err(ObjectError::Denied(why)) => {
                tracing::warn!("{path} stays damaged: {why}");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the index, and hashes the content of a file that has a stamp.
    async fn build(
        &self,
        source: FormattedFile<'_>,
        is_stamped: bool,
    ) -> Result<(FileIndex, Option<Fingerprint>), LeaseError> {
        let (path, FormattedFile { format, file, .. }) = (source.path(), source);
        let bad = |error: SourceError| LeaseError::fatal(format!("{path}: {error}"));
        let mut builder = IndexBuilder::for_file(format, file.size).map_err(bad)?;
        let mut hash = is_stamped.then(ContentHasher::default);
        while let Some(range) = builder.wants() {
            // An empty range cannot be requested.
            let part = if range.is_empty() {
                Bytes::new()
            } else {
                self.objects.get_range(&path, range, Some(&file.etag)).await?
            };
            let pushed = self.compute.run(move || {
                if let Some(hash) = &mut hash {
                    hash.add(&part);
                }
                let pushed = builder.push(&part);
                Ok((pushed, builder, hash))
            });
            let (pushed, pushed_to, hashed) = pushed.await?;
            if !self.rescues {
                pushed.map_err(bad)?;
            }
            (builder, hash) = (pushed_to, hashed);
        }
        if let Some(hash) = &mut hash {
            for range in hash.samples(file.size) {
                let part = self.objects.get_range(&path, range, Some(&file.etag)).await?;
                hash.add(&part);
            }
        }
        let index = if self.rescues { builder.finish_or_rescue() } else { builder.finish() };
        Ok((index.map_err(bad)?, hash.map(ContentHasher::finish)))
    }

    /// Compares the content of a file that was read under `stamp` with what the job knows it by.
    async fn check_content(
        &self,
        source: FormattedFile<'_>,
        stamp: &ChangeStamp,
        content: Fingerprint,
        index: &Bytes,
    ) -> Result<(), LeaseError> {
        let path = source.path();
        if self.objects.change_stamp(&path).await?.as_ref() != Some(stamp) {
            return Err(LeaseError::Passing(format!("{path} was written to while it was read")));
        }
        let first = self.first_content(source, content).await?;
        if content == source.file.content.unwrap_or(first) {
            return Ok(());
        }
        let other = (content != first).then_some(content);
        let now = SourceFile { content: other, ..source.file.clone() };
        let now = self.path_of(FormattedFile { file: &now, ..source }, Some(stamp));
        self.objects.put_if_absent(&now, index.clone(), "index").await?;
        if let Some(other) = other {
            let at = self.other_content(source, stamp);
            self.objects.put_if_absent(&at, encode(other), "content").await?;
        }
        Err(ObjectError::Changed(path).into())
    }

    /// The content that was first read of the file; `content` if this is the first time.
    async fn first_content(
        &self,
        source: FormattedFile<'_>,
        content: Fingerprint,
    ) -> Result<Fingerprint, LeaseError> {
        let path = self.first_path(source);
        let put_id = content.to_string();
        let put = || self.objects.put_if_absent(&path, encode(content), &put_id);
        if put().await? == PutOutcome::Created {
            return Ok(content);
        }
        if let Some(first) = decode(&self.objects.get(&path).await?) {
            return Ok(first);
        }
        tracing::warn!("{path} is damaged: it is made again");
        if self.removed(&path).await? {
            put().await?;
        }
        Ok(content)
    }

    fn first_path(&self, source: FormattedFile<'_>) -> ObjectPath {
        let (file, name) = (source.first_fingerprint(), source.format.index_name());
        ObjectPath::new(self.bucket, keys::first_content(self.ns, file, &name))
    }

    fn other_content(&self, source: FormattedFile<'_>, stamp: &ChangeStamp) -> ObjectPath {
        let (file, name) = (source.first_fingerprint(), source.format.index_name());
        ObjectPath::new(self.bucket, keys::other_content(self.ns, file, &name, &stamp.0))
    }

    /// The files `found` in `bucket` as a job that begins now reads them: those with another content than was first read under
    /// their etags are named by it.
    pub async fn as_they_are(
        &self,
        format: &FileFormat,
        bucket: &str,
        found: Vec<ObjectInfo>,
    ) -> Result<Vec<SourceFile>, ObjectError> {
        let room = AtomicU64::new(LOOKED_AT_BYTES);
        let look = async |ObjectInfo { key, size, etag }: ObjectInfo| {
            let file = SourceFile::new(key, size, etag);
            let source = FormattedFile { format, bucket, file: &file };
            let content = self.content_now(source, &room).await?;
            Ok::<_, ObjectError>(SourceFile { content, ..file })
        };
        let looks: Vec<_> = found.into_iter().map(look).collect();
        stream::iter(looks).buffered(LOOKS_AT_ONCE).try_collect().await
    }

    /// The content of a file, if it is another one than was first read under its etag.
    async fn content_now(
        &self,
        source: FormattedFile<'_>,
        room: &AtomicU64,
    ) -> Result<Option<Fingerprint>, ObjectError> {
        let Some(stamp) = self.objects.change_stamp(&source.path()).await? else { return Ok(None) };
        if self.has(&self.path_of(source, Some(&stamp))).await? {
            return Ok(None);
        }
        let noted = self.other_content(source, &stamp);
        if let Some(content) = self.noted(&noted).await? {
            return Ok(Some(content));
        }
        let take = |room: u64| room.checked_sub(source.file.size);
        let is_new = !self.has(&self.first_path(source)).await?;
        if is_new || room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Ok(None);
        }
        // The job reports what is wrong with a file; here it only matters whether another content was noted.
        if let Err(error) = self.load(source).await {
            tracing::info!(%error, "looked at {}", source.path());
        }
        self.noted(&noted).await
    }

    async fn has(&self, path: &ObjectPath) -> Result<bool, ObjectError> {
        Ok(found(self.objects.get_range(path, 0..1, None).await)?.is_some())
    }

    async fn noted(&self, path: &ObjectPath) -> Result<Option<Fingerprint>, ObjectError> {
        Ok(found(self.objects.get(path).await)?.and_then(|stored| decode(&stored)))
    }
}

/// None for an object that is not there.
fn found(read: Result<Bytes, ObjectError>) -> Result<Option<Bytes>, ObjectError> {
    match read {
        Err(ObjectError::NotFound(_)) => Ok(None),
        read => read.map(Some),
    }
}

#[derive(Debug)]
pub(crate) struct IndexedFile {
    pub path: ObjectPath,
    pub index: FileIndex,
    /// The change stamp of the file that the index was made of.
    pub stamp: Option<ChangeStamp>,
    /// The list of images, if the records are images.
    pub pack: Option<ImagePack>,
}

/// Files by number in the dataset.
pub(crate) type IndexedFiles = HashMap<u32, Arc<IndexedFile>>;

pub(crate) fn file_of(files: &IndexedFiles, file: u32) -> Result<&Arc<IndexedFile>, LeaseError> {
    files.get(&file).ok_or_else(|| LeaseError::fatal(format!("file {file} has no index")))
}

impl IndexedFile {
    /// Approximate bytes in memory of a run of records.
    pub fn bytes_of(&self, run: &RecordRange) -> u64 {
        self.index.weight(run.first_record, run.records)
    }
}

/// Files up to this size are hashed whole, also if their index needs only a part of them.
const WHOLE_BYTES: u64 = 16 << 20;
/// Parts of a larger file that are hashed if its index needs only a part of it: a footer is not all of a file's content,
/// and reading all of it would take as long as an epoch.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 64 << 10;

/// Hashes the parts of a file that its index is made of, and if these are not all of it, samples of the rest.
#[derive(Debug, Default)]
pub(crate) struct ContentHasher {
    hasher: blake3::Hasher,
    bytes: u64,
}

impl ContentHasher {
    /// Hashes the next bytes.
    pub fn add(&mut self, part: &[u8]) {
        self.hasher.update(part);
        self.bytes += part.len() as u64;
    }

    /// The ranges of a file of `file_bytes` to add yet.
    pub fn samples(&self, file_bytes: u64) -> Vec<Range<u64>> {
        if self.bytes >= file_bytes {
            return Vec::new();
        }
        if file_bytes <= WHOLE_BYTES {
            return std::iter::once(0..file_bytes).collect();
        }
        let step = (file_bytes - SAMPLE_BYTES) / (SAMPLES - 1);
        (0..SAMPLES).map(|i| i * step..i * step + SAMPLE_BYTES).collect()
    }

    /// The fingerprint of all bytes so far.
    pub fn finish(self) -> Fingerprint {
        Fingerprint(*self.hasher.finalize().as_bytes())
    }
}

/// The stored form of a content: its hash and a checksum of it, as text.
pub(crate) fn encode(content: Fingerprint) -> Bytes {
    let text = content.to_string();
    let checksum = crc32c(text.as_bytes());
    Bytes::from(format!("{text} {checksum:08x}"))
}

/// The inverse of [`encode`]; none for anything else.
pub(crate) fn decode(stored: &[u8]) -> Option<Fingerprint> {
    let text = str::from_utf8(stored).ok()?.split_once(' ')?.0;
    let content = text.parse().ok()?;
    (encode(content) == stored).then_some(content)
}

#[cfg(test)]
mod content_tests {
    use super::*;

    #[test]
    fn a_content_of_which_any_byte_is_damaged_is_none() {
        let content = Fingerprint([7; 32]);
        let stored = encode(content);
        assert_eq!(decode(&stored), Some(content));
        for at in 0..stored.len() {
            let mut damaged = stored.to_vec();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!((decode(&damaged), decode(&stored[..at])), (None, None), "byte {at}");
        }
    }

    #[test]
    fn files_that_need_no_index_are_hashed_in_samples() {
        let mut hash = ContentHasher::default();
        hash.add(&[0; 100]);
        assert_eq!(hash.samples(100), []);
        assert!(hash.samples(200).into_iter().eq(std::iter::once(0..200)));
        let large = 10 << 30;
        let samples = hash.samples(large);
        assert_eq!((samples.len() as u64, samples[0].start), (SAMPLES, 0));
        assert!(samples.last().unwrap().end > large - SAMPLE_BYTES);
        assert!(samples.iter().all(|range| range.end - range.start == SAMPLE_BYTES));
    }
}
