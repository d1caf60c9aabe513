//! A sample job whose splits were computed from a file, so that they can be computed again.

use super::{SampleJob, entry, view};
use crate::{FetcherConfig, FetcherPorts};
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits, FrameCodec, checksum, repack};
use gristmill_model::splits::SplitPlace;
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    CacheOrders, Dataset, DatasetManifest, JobView, ManifestFile, ReadySplit, SourceFile,
};
use gristmill_ports::{ObjectPath, ObjectStore as _, memory::MemoryObjects};
use gristmill_runner::{ComputeMode, JobContext};
use std::sync::Arc;

const PIPELINE: &str = "
source: { jsonl: d.jsonl, features: { value: { dtype: i64 } } }
ops: [{ batch: { size: 8 } }]
";
/// Rows of the file, and of each split but the last.
const ROWS: u32 = 44;
const SPLIT_ROWS: u32 = 16;

impl SampleJob {
    /// A job of one epoch over the numbers of a file, all of whose splits are committed and stored as `codec` has it.
    pub async fn computed(codec: FrameCodec) -> (Arc<Self>, FetcherPorts, FetcherConfig) {
        let objects = Arc::new(MemoryObjects::default());
        let view = planned(&objects).await;
        let config = FetcherConfig::new("a".parse().unwrap(), "b".into(), view.job.clone());
        let without = Arc::new(Self::committed(view.clone(), Vec::new()));
        let ports = FetcherPorts {
            compute: ComputeMode::Inline,
            ..FetcherPorts::new(without, Arc::clone(&objects) as _)
        };
        let context = JobContext::load(ports.runner(&config), &view.job).await.unwrap();
        let mut entries = Vec::new();
        for position in 0..view.plan.unwrap().n_splits {
            let entry = store(&context, codec, position).await;
            entries.push(entry);
        }
        let job = Arc::new(Self::committed(view, entries));
        (Arc::clone(&job), FetcherPorts { coordinator: job, ..ports }, config)
    }

    /// The committed splits.
    pub fn entries(&self) -> &[ReadySplit] {
        &self.entries
    }
}

/// Stores the file and its dataset, and returns the job over it.
async fn planned(objects: &MemoryObjects) -> JobView {
    let lines: String = (0..ROWS).map(|row| format!("{{\"value\": {row}}}\n")).collect();
    let path = ObjectPath::new("data", "d.jsonl");
    objects.put_if_absent(&path, Bytes::from(lines), "data").await.unwrap();
    let listed = objects.list("data", "").await.unwrap().remove(0);
    let file = SourceFile::new(listed.key, listed.size, listed.etag);
    let pipeline = gristmill_operators::parse(PIPELINE).unwrap();
    let dataset = Dataset::one("data", vec![file.clone()]);
    let mut view = view();
    view.spec.pipeline = pipeline.canonical_json();
    view.dataset_version = dataset.version(&pipeline.source().stored_as());
    let plan = view.plan.as_mut().unwrap();
    (plan.records, plan.split_records) = (u64::from(ROWS), SPLIT_ROWS);
    plan.n_splits = ROWS.div_ceil(SPLIT_ROWS);
    let files = vec![ManifestFile { file, records: ROWS }];
    let manifest = DatasetManifest { bucket: dataset.bucket, files, members: dataset.members };
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let key = keys::manifest(&"a".parse().unwrap(), view.dataset_version);
    let path = ObjectPath::new("b", key);
    objects.put_if_absent(&path, Bytes::from(manifest), "manifest").await.unwrap();
    view
}

async fn store(context: &JobContext, codec: FrameCodec, position: u32) -> ReadySplit {
    let place = SplitPlace::new(0, position);
    let split = context.compute_again(&CacheOrders::default(), place).await.unwrap();
    let chunk = Chunk::open(split.object, &ChunkLimits::default()).unwrap();
    let object = Bytes::from(repack(&chunk, codec).unwrap());
    let mut entry = entry(0, position, 0);
    entry.outcome = split.outcome;
    entry.outcome.object_bytes = object.len() as u64;
    entry.outcome.crc32c = checksum(&object).unwrap();
    let path = ObjectPath::new("b", key(&context.view, &entry));
    context.runner.objects.put_if_absent(&path, object, "chunk").await.unwrap();
    entry
}

pub(crate) fn key(view: &JobView, entry: &ReadySplit) -> String {
    let prefix = keys::bundle_prefix(&"a".parse().unwrap(), &view.job, 0, entry.bundle);
    keys::chunk(&prefix, entry.place.position, entry.attempt, entry.nonce)
}
