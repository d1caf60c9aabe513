//! Files of this machine that are rewritten, touched or replaced, between jobs and while one runs, in every format.

use crate::{
    FetcherConfig, FetcherPorts,
    samples::{SampleJob, view},
};
use bytes::Bytes;
use gristmill_model::Fingerprint;
use gristmill_model::splits::SplitPlace;
use gristmill_model::stored::keys;
use gristmill_model::wire::{CacheOrders, Dataset, DatasetManifest, ManifestFile, SourceFile};
use gristmill_pipeline::Pipeline;
use gristmill_ports::memory::MemoryObjects;
use gristmill_ports::{ObjectPath, ObjectStore as _};
use gristmill_runner::{ComputeMode, IndexStore, JobContext, LeaseError};
use gristmill_sources::samples::{example, framed, ints};
use std::sync::Arc;

/// A file of some format, and another content of the same length.
struct Sample {
    pipeline: &'static str,
    records: u32,
    content: Vec<u8>,
    other: Vec<u8>,
}

const ID: &str = "features: { id: { key: id, dtype: i64 } } }\nops: [{ batch: { size: 4 } }]";

fn samples() -> Vec<(&'static str, Sample)> {
    let number = |first: i64| move |i: i64| ((first + i) % 10).to_string();
    let csv = |first| {
        "id\n".to_owned() + &(0..8).map(number(first)).map(|id| id + "\n").collect::<String>()
    };
    let json = |first| {
        let line = |id: String| format!("{{\"id\": {id}}}\n");
        (0..8).map(number(first)).map(line).collect::<String>()
    };
    let record = |first: i64| {
        let one = |i: i64| framed(&example([("id", ints(&[(first + i) % 10]))]));
        (0..8).flat_map(one).collect::<Vec<u8>>()
    };
    let tar = |first: i64| {
        let one = |i: i64| tarred(&format!("{i}.txt"), number(first)(i).as_bytes());
        let mut all: Vec<u8> = (0..8).flat_map(one).collect();
        all.extend([0; 1024]);
        all
    };
    let sample = |pipeline, content: Vec<u8>, other: Vec<u8>| {
        assert_eq!(content.len(), other.len());
        Sample { pipeline, records: 8, content, other }
    };
    vec![
        ("csv", sample("source: { csv: x, ", csv(0).into(), csv(1).into())),
        ("jsonl", sample("source: { jsonl: x, ", json(0).into(), json(1).into())),
        ("tfrecord", sample("source: { tfrecord: x, ", record(0), record(1))),
        ("webdataset", sample("source: { webdataset: x, ", tar(0), tar(1))),
    ]
}

fn pipeline(name: &str, sample: &Sample) -> Pipeline {
    let rest = match name {
        "webdataset" => ID.replace("key: id", "key: txt"),
        _ => ID.to_owned(),
    };
    gristmill_operators::parse(&format!("{}{rest}", sample.pipeline)).unwrap()
}

/// A file in a tar archive.
fn tarred(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[148..156].copy_from_slice(b"        ");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut out = header.to_vec();
    out.extend(content);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

/// A service over a file that has a change stamp.
struct World {
    objects: Arc<MemoryObjects>,
    pipeline: Pipeline,
    path: ObjectPath,
    records: u32,
}

impl World {
    async fn new(name: &str, sample: &Sample) -> Self {
        let objects = Arc::new(MemoryObjects::default());
        let path = ObjectPath::new("data", "file");
        let content = Bytes::from(sample.content.clone());
        objects.put_if_absent(&path, content, "etag").await.unwrap();
        objects.set_stamp(&path, 1);
        let records = sample.records;
        Self { objects, pipeline: pipeline(name, sample), path, records }
    }

    fn rewrite(&self, content: &[u8]) {
        assert!(self.objects.rewrite(&self.path, |_| content.to_vec()));
    }

    /// The file as a job that begins now lists it.
    async fn listed(&self) -> SourceFile {
        let found = self.objects.list("data", "").await.unwrap();
        let ns = "a".parse().unwrap();
        let compute = ComputeMode::Inline;
        let indices =
            IndexStore { objects: &*self.objects, compute, ns: &ns, bucket: "b", rescues: true };
        let format = &self.pipeline.source().format;
        indices.as_they_are(format, "data", found).await.unwrap().remove(0)
    }

    /// A job over the file as it is now.
    async fn job(&self) -> (Fingerprint, JobContext) {
        let file = self.listed().await;
        let dataset = Dataset::one("data", vec![file.clone()]);
        let mut view = view();
        view.spec.pipeline = self.pipeline.canonical_json();
        view.dataset_version = dataset.version(&self.pipeline.source().stored_as());
        let plan = view.plan.as_mut().unwrap();
        (plan.records, plan.split_records) = (u64::from(self.records), self.records);
        (plan.n_splits, plan.batch_size) = (1, 4);
        let files = vec![ManifestFile { file, records: self.records }];
        let manifest = DatasetManifest { bucket: "data".into(), files, members: dataset.members };
        let ns = "a".parse().unwrap();
        let path = ObjectPath::new("b", keys::manifest(&ns, view.dataset_version));
        let manifest = serde_json::to_vec(&manifest).unwrap();
        self.objects.put_if_absent(&path, manifest.into(), "manifest").await.unwrap();
        let version = view.dataset_version;
        let config = FetcherConfig::new(ns, "b".into(), view.job.clone());
        let job = Arc::new(SampleJob::committed(view, Vec::new()));
        let ports = FetcherPorts {
            compute: ComputeMode::Inline,
            ..FetcherPorts::new(job, Arc::clone(&self.objects) as _)
        };
        (version, JobContext::load(ports.runner(&config), &config.job).await.unwrap())
    }
}

async fn read((_, context): &(Fingerprint, JobContext)) -> Result<Bytes, LeaseError> {
    let orders = CacheOrders::default();
    Ok(context.compute_again(&orders, SplitPlace::default()).await?.object)
}

/// A job that reads a changed file fails, and says so in one line.
async fn finds_changed(job: &(Fingerprint, JobContext), name: &str) {
    let error = read(job).await.unwrap_err().to_string();
    assert!(error.contains("s3://data/file has changed"), "{name}: {error}");
    assert!(!error.contains('\n'), "{name}: {error}");
}

#[tokio::test]
async fn a_file_that_is_touched_or_copied_is_the_same_file() {
    for (name, sample) in samples() {
        let world = World::new(name, &sample).await;
        let job = world.job().await;
        let before = read(&job).await.unwrap();
        for stamp in [7, 3, 1] {
            world.objects.set_stamp(&world.path, stamp);
            assert_eq!(read(&job).await.unwrap(), before, "{name}");
            let next = world.job().await;
            assert_eq!((next.0, read(&next).await.unwrap()), (job.0, before.clone()), "{name}");
        }
    }
}

#[tokio::test]
async fn a_file_that_is_rewritten_ends_a_running_job_and_gives_a_new_job_another_version() {
    for (name, sample) in samples() {
        let world = World::new(name, &sample).await;
        let job = world.job().await;
        let before = read(&job).await.unwrap();
        world.rewrite(&sample.other);
        finds_changed(&job, name).await;
        let next = world.job().await;
        assert_ne!(next.0, job.0, "{name}");
        let after = read(&next).await.unwrap();
        assert_ne!(after, before, "{name}");
        finds_changed(&job, name).await;
        // The old content is the old file again, under any stamp.
        world.rewrite(&sample.content);
        assert_eq!(read(&job).await.unwrap(), before, "{name}");
        finds_changed(&next, name).await;
        assert_eq!(world.job().await.0, job.0, "{name}");
        world.rewrite(&sample.other);
        assert_eq!(world.job().await.0, next.0, "{name}: one content has one version");
    }
}

#[tokio::test]
async fn a_file_that_was_rewritten_between_jobs_is_read_anew() {
    for (name, sample) in samples() {
        let world = World::new(name, &sample).await;
        let first = world.job().await;
        let before = read(&first).await.unwrap();
        world.rewrite(&sample.other);
        let second = world.job().await;
        assert_ne!((second.0, read(&second).await.unwrap()), (first.0, before), "{name}");
    }
}

#[tokio::test]
async fn a_damaged_index_or_content_is_made_again() {
    let (name, sample) = samples().remove(1);
    let world = World::new(name, &sample).await;
    let before = read(&world.job().await).await.unwrap();
    let stored = world.objects.list("b", "t/a/index/").await.unwrap();
    assert_eq!(stored.len(), 2, "an index and a content: {stored:?}");
    for (i, info) in stored.iter().enumerate() {
        let path = ObjectPath::new("b", &info.key);
        for at in 0..info.size as usize {
            world.objects.rewrite(&path, |mut bytes| {
                bytes[at] ^= 1;
                bytes
            });
            // Under another stamp, the content is compared.
            let is_index = keys::is_index(&path.key);
            let stamp = if is_index { 1 } else { 2 + at + i * 10_000 };
            world.objects.set_stamp(&world.path, stamp as u64);
            assert_eq!(read(&world.job().await).await.unwrap(), before, "byte {at} of {path}");
        }
    }
}

#[tokio::test]
async fn a_manifest_of_which_any_byte_is_damaged_is_removed_and_made_again() {
    let (name, sample) = samples().remove(1);
    let world = World::new(name, &sample).await;
    let before = read(&world.job().await).await.unwrap();
    let info = world.objects.list("b", "t/a/datasets/").await.unwrap().remove(0);
    let path = ObjectPath::new("b", &info.key);
    for at in 0..info.size as usize {
        let job = world.job().await;
        world.objects.rewrite(&path, |mut bytes| {
            bytes[at] ^= 1;
            bytes
        });
        let error = read(&job).await.unwrap_err().to_string();
        assert!(error.contains("damaged and is removed"), "byte {at}: {error}");
        assert!(!error.contains('\n'), "byte {at}: {error}");
        assert_eq!(read(&world.job().await).await.unwrap(), before);
    }
}
