//! The indexed dataset as a worker reads it: manifest and file indices, cached; splits as one
//! ranged read each.

use crate::RunError;
use bytes::Bytes;
use gristmill_executor::sources::tfrecord::FileIndex;
use gristmill_ports::{ObjectPath, Objects};
use gristmill_protocol::{Manifest, keys};
use gristmill_splits::SplitPlan;
use gristmill_types::{Fingerprint, Namespace, RecordKey, SplitId};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// File indices kept at a time: a permuted epoch touches all files of a dataset in turn.
const CACHED_INDICES: usize = 512;

/// The bytes of a split's records, as they are in the source file.
#[derive(Debug, Clone)]
pub struct SplitSource {
    pub first: RecordKey,
    pub n_records: u32,
    pub data: Bytes,
    pub index: Arc<FileIndex>,
    /// Name of the source file, for error messages.
    pub file: String,
}

/// Reads one dataset version; shared by all jobs and invocations of a process.
pub struct DatasetCache {
    ns: Namespace,
    bucket: String,
    version: Fingerprint,
    manifest: Manifest,
    indices: Mutex<VecDeque<(u32, Arc<FileIndex>)>>,
}

impl DatasetCache {
    /// Reads the manifest of dataset `version` from `bucket`.
    pub async fn open(
        objects: &dyn Objects,
        ns: &Namespace,
        bucket: &str,
        version: Fingerprint,
    ) -> Result<Self, RunError> {
        let path = ObjectPath::new(bucket, keys::manifest(ns, version));
        let manifest: Manifest = serde_json::from_slice(&objects.get(&path).await?)
            .map_err(|error| RunError::fatal(format!("{path} is not a manifest: {error}")))?;
        let (ns, bucket) = (ns.clone(), bucket.to_owned());
        Ok(Self { ns, bucket, version, manifest, indices: Mutex::default() })
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

    /// Reads the records of `split`: one ranged read, pinned to the file as it was registered.
    pub async fn read_split(
        &self,
        objects: &dyn Objects,
        plan: &SplitPlan,
        split: SplitId,
    ) -> Result<SplitSource, RunError> {
        let range = plan
            .split(split)
            .ok_or_else(|| RunError::fatal(format!("split {split} is not in the dataset")))?;
        let index = self.index(objects, range.file).await?;
        let file = &self.manifest.files[range.file as usize].file;
        let bytes = index.byte_range(range.first_record, range.records).ok_or_else(|| {
            RunError::fatal(format!("the index of {} does not hold {range:?}", file.key))
        })?;
        let path = ObjectPath::new(&self.manifest.bucket, &file.key);
        let data = objects.get_range(&path, bytes, Some(&file.etag)).await?;
        Ok(SplitSource {
            first: RecordKey { file: range.file, record: range.first_record },
            n_records: range.records,
            data,
            index,
            file: path.to_string(),
        })
    }

    async fn index(&self, objects: &dyn Objects, file: u32) -> Result<Arc<FileIndex>, RunError> {
        let cached = |indices: &VecDeque<(u32, Arc<FileIndex>)>| {
            indices.iter().find(|(f, _)| *f == file).map(|(_, index)| Arc::clone(index))
        };
        if let Some(index) = cached(&self.lock()) {
            return Ok(index);
        }
        let source = &self.manifest.files[file as usize].file;
        let fingerprint = source.fingerprint(&self.manifest.bucket);
        let path = ObjectPath::new(&self.bucket, keys::index(&self.ns, fingerprint));
        let index = FileIndex::decode(&objects.get(&path).await?)
            .map_err(|error| RunError::fatal(format!("{path}: {error}")))?;
        let index = Arc::new(index);
        let mut indices = self.lock();
        indices.truncate(CACHED_INDICES - 1);
        indices.push_front((file, Arc::clone(&index)));
        Ok(index)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(u32, Arc<FileIndex>)>> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
