//! The indexed dataset as a worker reads it: manifest and file indices, cached; splits as one
//! ranged read each, a few of Parquet, or one read for each image.

use crate::{RunError, indexing::read_pack};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use gristmill_executor::sources::{FileIndex, Records, images};
use gristmill_pipeline::{Format, Source};
use gristmill_ports::{ObjectPath, Objects};
use gristmill_protocol::{Manifest, Pack, PackedImage, keys};
use gristmill_splits::{SplitPlan, SplitRange};
use gristmill_types::{Fingerprint, Namespace, RecordKey, SplitId};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// File indices kept at a time: a permuted epoch touches all files of a dataset in turn.
const CACHED_INDICES: usize = 512;
/// Most memory of the file indices that are kept, beside the last one.
const CACHED_BYTES: usize = 64 << 20;
/// Images, or parts of a file, read at a time: enough to hide the time to a first byte, few enough to
/// hold.
const READS_AHEAD: usize = 16;

/// What was read of a file for a split.
#[derive(Debug, Clone)]
pub struct SplitSource {
    pub first: RecordKey,
    pub n_records: u32,
    /// The parts of the file that its index asks for.
    parts: Vec<Bytes>,
    source: Arc<Source>,
    /// Which of an epoch's visits of these records.
    pub copy: u32,
    file: Arc<IndexedFile>,
}

impl SplitSource {
    pub fn index(&self) -> &FileIndex {
        &self.file.index
    }

    /// The records, end to end. Takes time where files are compressed, or Parquet.
    ///
    /// # Errors
    /// If they are not what was indexed, naming the file.
    pub fn open(&self) -> Result<Records, RunError> {
        let opened =
            self.file.index.open(self.first.record, self.n_records, &self.source, &self.parts);
        opened.map_err(|error| RunError::fatal(format!("{}: {error}", self.file.path)))
    }

    /// Where a record is, for people.
    pub fn describe(&self, record: u32) -> String {
        let image = |pack: &Pack| {
            let image = pack.images.get(record as usize)?;
            Some(ObjectPath::new(&pack.bucket, &image.key).to_string())
        };
        let image = self.file.pack.as_ref().and_then(image);
        image.unwrap_or_else(|| format!("{} record {record}", self.file.path))
    }
}

/// What is known of a file's records.
#[derive(Debug)]
struct IndexedFile {
    path: ObjectPath,
    index: FileIndex,
    /// The images, if that is what the records are.
    pack: Option<Pack>,
}

/// Reads one dataset version; shared by all jobs and invocations of a process.
pub struct DatasetCache {
    ns: Namespace,
    bucket: String,
    version: Fingerprint,
    source: Arc<Source>,
    manifest: Manifest,
    indices: Mutex<VecDeque<(u32, Arc<IndexedFile>)>>,
}

impl DatasetCache {
    /// Reads the manifest of dataset `version` from `bucket`.
    pub async fn open(
        objects: &dyn Objects,
        source: Arc<Source>,
        ns: &Namespace,
        bucket: &str,
        version: Fingerprint,
    ) -> Result<Self, RunError> {
        let path = ObjectPath::new(bucket, keys::manifest(ns, version));
        let manifest: Manifest = serde_json::from_slice(&objects.get(&path).await?)
            .map_err(|error| RunError::fatal(format!("{path} is not a manifest: {error}")))?;
        let (ns, bucket) = (ns.clone(), bucket.to_owned());
        Ok(Self { ns, bucket, version, source, manifest, indices: Mutex::default() })
    }

    /// The dataset version this cache reads.
    pub fn version(&self) -> Fingerprint {
        self.version
    }

    /// How the dataset divides into splits of `split_records`.
    pub fn split_plan(&self, split_records: u32) -> Result<SplitPlan, RunError> {
        SplitPlan::new(&self.manifest.records(), split_records)
            .ok_or_else(|| RunError::fatal("the dataset has more splits than can be counted"))
    }

    /// Reads the records of `split`, pinned to the files as they were registered.
    pub async fn read_split(
        &self,
        objects: &dyn Objects,
        plan: &SplitPlan,
        split: SplitId,
    ) -> Result<SplitSource, RunError> {
        let range = plan
            .split(split)
            .ok_or_else(|| RunError::fatal(format!("split {split} is not in the dataset")))?;
        let file = self.indexed(objects, range.file).await?;
        let SplitRange { first_record, records, .. } = range;
        let not_there =
            || RunError::fatal(format!("the index of {} does not hold {range:?}", file.path));
        let parts = match &file.pack {
            Some(pack) => {
                let bytes = file.index.byte_range(first_record, records).ok_or_else(not_there)?;
                let images = &pack.images[first_record as usize..][..records as usize];
                vec![read_images(objects, &pack.bucket, images, bytes.end - bytes.start).await?]
            }
            None => {
                let etag = self.manifest.files[range.file as usize].file.etag.as_str();
                let ranges = file.index.stored_ranges(first_record, records, &self.source);
                let ranges =
                    ranges.map_err(|error| RunError::fatal(format!("{}: {error}", file.path)))?;
                let reads = ranges
                    .into_iter()
                    .map(|range| objects.get_range(&file.path, range, Some(etag)));
                stream::iter(reads).buffered(READS_AHEAD).try_collect().await?
            }
        };
        let first = RecordKey { file: range.file, record: first_record };
        let source = Arc::clone(&self.source);
        Ok(SplitSource { first, n_records: records, parts, source, copy: 0, file })
    }

    async fn indexed(
        &self,
        objects: &dyn Objects,
        file: u32,
    ) -> Result<Arc<IndexedFile>, RunError> {
        let cached = |indices: &VecDeque<(u32, Arc<IndexedFile>)>| {
            indices.iter().find(|(f, _)| *f == file).map(|(_, index)| Arc::clone(index))
        };
        if let Some(index) = cached(&self.lock()) {
            return Ok(index);
        }
        let indexed = Arc::new(self.read_index(objects, file).await?);
        let mut indices = self.lock();
        indices.push_front((file, Arc::clone(&indexed)));
        let mut bytes = 0;
        let kept = indices.iter().take(CACHED_INDICES).take_while(|(_, indexed)| {
            bytes += indexed.index.memory_bytes();
            bytes <= CACHED_BYTES
        });
        let kept = kept.count().max(1);
        indices.truncate(kept);
        Ok(indexed)
    }

    async fn read_index(&self, objects: &dyn Objects, file: u32) -> Result<IndexedFile, RunError> {
        let source = &self.manifest.files[file as usize].file;
        let path = ObjectPath::new(&self.manifest.bucket, &source.key);
        if self.source.format == Format::Images {
            let pack = read_pack(objects, &path).await?;
            let index = images::index(pack.images.iter().map(|image| image.size))
                .map_err(|error| RunError::fatal(format!("{path}: {error}")))?;
            return Ok(IndexedFile { path, index, pack: Some(pack) });
        }
        let (format, fingerprint) = (self.source.format, source.fingerprint(&self.manifest.bucket));
        let stored =
            ObjectPath::new(&self.bucket, keys::index(&self.ns, fingerprint, format.name()));
        let index = FileIndex::decode(&objects.get(&stored).await?, format)
            .map_err(|error| RunError::fatal(format!("{stored}: {error}")))?;
        Ok(IndexedFile { path, index, pack: None })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(u32, Arc<IndexedFile>)>> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads images into the records they make, one after the other; `bytes` in all.
async fn read_images(
    objects: &dyn Objects,
    bucket: &str,
    images: &[PackedImage],
    bytes: u64,
) -> Result<Bytes, RunError> {
    let read = |image: &PackedImage| {
        let (path, label) = (ObjectPath::new(bucket, &image.key), i64::from(image.label));
        let (size, etag) = (image.size, image.etag.clone());
        async move {
            let content = match size {
                // A range of nothing cannot be asked for.
                0 => Bytes::new(),
                _ => objects.get_range(&path, 0..size, Some(&etag)).await?,
            };
            Ok::<_, RunError>((label, content))
        }
    };
    let mut reads = stream::iter(images.iter().map(read)).buffered(READS_AHEAD);
    let mut data = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    while let Some((label, content)) = reads.try_next().await? {
        data.extend_from_slice(&label.to_le_bytes());
        data.extend_from_slice(&content);
    }
    Ok(Bytes::from(data))
}
