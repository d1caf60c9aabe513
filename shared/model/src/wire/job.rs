//! A job: its specification, its dataset, and the split plan derived from both.

use crate::{
    Compression, Epoch, Fingerprint, JobName, LocalShare, Nonce, Position, Sharding, SkippedRecord,
    splits::job::JobState,
    wire::{CachingView, GivenOptions, JobBudget, JobSettings, OptionChange},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One file of a dataset as it was listed; `etag` pins its content for the life of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    pub key: String,
    pub size: u64,
    pub etag: String,
    /// Hash of the content, if it is another one than was first read under this etag: the etag of a local file is its
    /// size and time, and stays when the file is rewritten and its time set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Fingerprint>,
}

impl SourceFile {
    /// A file as it was listed.
    pub fn new(key: impl Into<String>, size: u64, etag: impl Into<String>) -> Self {
        Self { key: key.into(), size, etag: etag.into(), content: None }
    }

    /// Identifies this exact content of this file in `bucket`; the file's index is stored under it.
    pub fn fingerprint(&self, bucket: &str) -> Fingerprint {
        let Self { key, size, etag, content } = self;
        let mut text = format!("{bucket}\n{key}\n{size}\n{etag}");
        if let Some(content) = content {
            text += &format!("\n{content}");
        }
        Fingerprint::from_content("gristmill source file v1", text.as_bytes())
    }
}

/// The files a job reads, in delivery-key order (the file index of a record key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    pub bucket: String,
    pub files: Vec<SourceFile>,
    #[serde(default, skip_serializing_if = "ZipFileCounts::is_one")]
    pub members: ZipFileCounts,
}

impl Dataset {
    /// The files of one dataset.
    pub fn one(bucket: impl Into<String>, files: Vec<SourceFile>) -> Self {
        Self { bucket: bucket.into(), files, members: ZipFileCounts::default() }
    }

    /// BLAKE3 over bucket, keys, sizes, etags and the format they are read as: changes when any file
    /// does, when other records are found in them, and when they are other datasets' of a zip.
    pub fn version(&self, format: &str) -> Fingerprint {
        let lines = self.files.iter().map(|file| file.fingerprint(&self.bucket).to_string() + "\n");
        let members = self.members.to_string();
        let lines = format!("{format}{members}\n{}", lines.collect::<String>());
        Fingerprint::from_content("gristmill dataset v2", lines.as_bytes())
    }
}

/// The stored list of a dataset's files: [`keys::listing`](crate::stored::keys::listing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredListing {
    pub version: Fingerprint,
    pub files: usize,
}

/// A file of an indexed dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    #[serde(flatten)]
    pub file: SourceFile,
    pub records: u32,
}

/// An indexed dataset: written once per dataset version, read by workers and coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetManifest {
    pub bucket: String,
    pub files: Vec<ManifestFile>,
    #[serde(default, skip_serializing_if = "ZipFileCounts::is_one")]
    pub members: ZipFileCounts,
}

impl DatasetManifest {
    /// Records of each file, in file order.
    pub fn records(&self) -> Vec<u32> {
        self.files.iter().map(|file| file.records).collect()
    }
}

/// A record left out of an epoch, and where to find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRecordLocation {
    #[serde(flatten)]
    pub record: SkippedRecord,
    /// The file, and which record of it; or the image.
    pub source: String,
}

/// The settings of a job: those that determine its batches, and how it is run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobSpec {
    /// Canonical JSON of the pipeline, its version included.
    pub pipeline: String,
    pub seed: u64,
    pub epochs: Epoch,
    /// Decoder build and architecture of the workers: a job never mixes them. If empty, that of the
    /// first worker that claims.
    pub numerics: String,
    /// Remote workers that the scaler holds while there is work; with `autoscale`, the most of
    /// them. With 0, local workers do all the work.
    pub workers: u32,
    /// The scaler decides the number of workers from the trainer's reports.
    #[serde(default)]
    pub autoscale: bool,
    /// Name of the scaling policy by which it decides; the default one if absent.
    #[serde(default)]
    pub policy: Option<String>,
    /// It also decides how many of the local workers are at work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto_placement: bool,
    /// Part of all splits that local workers make, if it is fixed: they are as many as the settings say, on all hosts
    /// together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_share: Option<LocalShare>,
    /// Workers that the job's budget of an hour pays for, if it has one.
    #[serde(default)]
    pub budget_workers: Option<u32>,
    /// The budget of all its runs, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<JobBudget>,
    #[serde(default)]
    pub compress: Compression,
    #[serde(default)]
    pub settings: JobSettings,
}

impl JobSpec {
    /// A job of one epoch of `pipeline` (its canonical JSON), with one worker and defaults for the
    /// rest.
    pub fn new(pipeline: String) -> Self {
        Self { pipeline, epochs: 1, workers: 1, ..Self::default() }
    }

    /// The pipeline and the numerics of its workers: jobs of which these are equal compute alike.
    pub fn pipeline_fingerprint(&self) -> Fingerprint {
        let text = format!("{}\n{}", self.numerics, self.pipeline);
        Fingerprint::from_content("gristmill pipeline metrics v1", text.as_bytes())
    }

    /// Workers, those of the trainer's hosts included; at least one.
    pub fn all_workers(&self) -> u32 {
        self.workers.saturating_add(self.settings.local_workers).max(1)
    }

    /// Whether the scaler decides on local workers. Under a budget all of them work: a part of it is kept for them.
    pub fn decides_placement(&self) -> bool {
        self.auto_placement && self.budget.is_none()
    }

    /// Remote workers at one time, within the budget of an hour.
    pub fn most_workers(&self) -> u32 {
        self.budget_workers.map_or(self.workers, |most| self.workers.min(most))
    }

    /// Visits of the dataset in an epoch.
    pub fn copies(&self) -> u32 {
        match self.settings.sharding {
            Sharding::Dynamic => 1,
            Sharding::Off => self.all_workers(),
        }
    }
}

/// Registers a job, or joins the job of that name: see [`OptionMeaning`](crate::wire::OptionMeaning).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegisterCall {
    pub job: JobName,
    pub spec: JobSpec,
    /// None to join a job that exists, over any dataset.
    pub dataset: Option<Dataset>,
    /// Version of the listing that holds the dataset's files when they are too many for a call;
    /// `dataset` then has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<StoredListing>,
    /// Random, drawn by the caller: identifies a call that is sent again.
    #[serde(default)]
    pub nonce: Option<Nonce>,
    #[serde(default)]
    pub given: GivenOptions,
    /// Lets a job that has failed go on, if it has gone on so many times before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<u32>,
}

impl RegisterCall {
    /// Registers `job`, with no option given by hand.
    pub fn new(job: JobName, spec: JobSpec, dataset: Dataset) -> Self {
        let given = GivenOptions::ALL;
        Self { job, spec, dataset: Some(dataset), listing: None, nonce: None, given, resumes: None }
    }

    /// Joins a job that exists, over any dataset.
    pub fn join(job: JobName, spec: JobSpec, given: GivenOptions) -> Self {
        Self { job, spec, dataset: None, listing: None, nonce: None, given, resumes: None }
    }

    /// This call for a dataset whose listing is stored under `version`.
    #[must_use]
    pub fn with_listing(mut self, version: Fingerprint) -> Self {
        let files = self.dataset.iter_mut().flat_map(|of| std::mem::take(&mut of.files)).count();
        Self { listing: Some(StoredListing { version, files }), ..self }
    }

    /// The version of the dataset, read as `format`: see [`Dataset::version`]. None if it names no dataset.
    pub fn dataset_version(&self, format: &str) -> Option<Fingerprint> {
        let listed = self.listing.map(|listing| listing.version);
        listed.or_else(|| self.dataset.as_ref().map(|dataset| dataset.version(format)))
    }

    /// Number of files, over all datasets.
    pub fn n_files(&self) -> usize {
        let files = || self.dataset.as_ref().map_or(0, |dataset| dataset.files.len());
        self.listing.map_or_else(files, |listing| listing.files)
    }
}

/// The split arithmetic of a running job, fixed once its dataset is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochPlan {
    /// Records of an epoch, over all its copies of the dataset.
    pub records: u64,
    /// Visits of the dataset in an epoch.
    #[serde(default = "once")]
    pub copies: u32,
    pub batch_size: u32,
    /// Whether an epoch's last partial batch is left out.
    pub drop_last: bool,
    /// Whether batches keep the order of the dataset.
    #[serde(default)]
    pub in_order: bool,
    pub split_records: u32,
    pub n_splits: Position,
    /// Most positions of a bundle (a power of two).
    pub max_bundle_splits: u32,
    /// Positions that workers may run ahead of the lowest undelivered one when the largest number of
    /// workers that the job has had is at work, and bytes that may be ready beyond it.
    pub window_splits: u32,
    pub window_bytes: u64,
    /// Bytes of a batch as estimated; 0 if not known.
    #[serde(default)]
    pub batch_bytes: u64,
}

impl EpochPlan {
    /// Batches of an epoch, if every record becomes one element.
    pub fn most_batches(&self) -> u64 {
        let size = u64::from(self.batch_size.max(1));
        if self.drop_last { self.records / size } else { self.records.div_ceil(size) }
    }

    /// Batches of a split, if operators drop no elements.
    pub fn split_batches(&self) -> u32 {
        self.split_records / self.batch_size.max(1)
    }
}

fn once() -> u32 {
    1
}

/// A job as its trainer and its workers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    pub job: JobName,
    /// When it was registered, in milliseconds since the Unix epoch: distinguishes it from an
    /// earlier, forgotten job of the name.
    #[serde(default)]
    pub registered_ms: u64,
    pub spec: JobSpec,
    pub dataset_version: Fingerprint,
    pub n_files: u32,
    #[serde(flatten)]
    pub state: JobState,
    pub plan: Option<EpochPlan>,
    /// Set for pipelines with `autocache` points.
    #[serde(default)]
    pub caching: Option<CachingView>,
    /// Changes of its options by those who joined, the latest ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<OptionChange>,
    /// How many times it has gone on after it had failed.
    #[serde(default)]
    pub resumed: u32,
}

impl JobView {
    /// Batches of a split, if that is known: it was asked for, or the dataset is indexed.
    pub fn split_batches(&self) -> Option<u32> {
        self.plan.map(|plan| plan.split_batches()).or(self.spec.settings.asked_split_batches())
    }

    /// Identifies the batches that the job makes of a dataset without bad records: jobs of one fingerprint make the same
    /// batches under the same numbers. Epochs, workers and the treatment of bad records take no part in it.
    pub fn batches_fingerprint(&self) -> Fingerprint {
        let copies = self.spec.copies();
        let split_batches = self.split_batches().unwrap_or(0);
        let JobSpec { pipeline, seed, .. } = &self.spec;
        let text = format!("{seed}\n{split_batches}\n{copies}\n{pipeline}");
        Fingerprint::from_content("gristmill batches v3", text.as_bytes())
    }

    /// The job as a reader sees it that reads `epochs`; all of them, if it names none.
    pub fn read_until(mut self, epochs: Option<Epoch>) -> Self {
        self.spec.epochs = epochs.map_or(self.spec.epochs, |own| own.min(self.spec.epochs));
        self
    }
}

/// Number of files of each zipped dataset, in order. If empty, all files belong to one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ZipFileCounts(Vec<u32>);

impl ZipFileCounts {
    /// Datasets of so many files.
    pub fn new(files: Vec<u32>) -> Self {
        match files.len() {
            0 | 1 => Self::default(),
            _ => Self(files),
        }
    }

    /// Whether there is one dataset.
    pub fn is_one(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of datasets.
    pub fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// The dataset that a file belongs to.
    pub fn member_of_file(&self, file: u32) -> usize {
        let mut end = 0_u64;
        let before = self.0.iter().take_while(|&&files| {
            end += u64::from(files);
            end <= u64::from(file)
        });
        before.count()
    }

    /// Divides values of files by dataset; `None` if there are not as many values as files.
    pub fn divide<'a, T>(&self, mut files: &'a [T]) -> Option<Vec<&'a [T]>> {
        if self.is_one() {
            return Some(vec![files]);
        }
        let mut divided = Vec::with_capacity(self.0.len());
        for count in &self.0 {
            let (own, rest) = files.split_at_checked(*count as usize)?;
            divided.push(own);
            files = rest;
        }
        files.is_empty().then_some(divided)
    }
}

/// The part of a dataset's version: empty for one dataset.
impl fmt::Display for ZipFileCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|files| write!(f, " {files}"))
    }
}

/// Images of one pack: few enough that its description is read at once, and enough that a million
/// images are a thousand packs.
pub const PACK_IMAGES: usize = 1024;

/// One image; `etag` pins its content for the life of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedImage {
    pub key: String,
    pub size: u64,
    pub etag: String,
    /// Its class.
    pub label: u32,
}

/// Images that are read as the records of one file, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePack {
    /// The bucket the images are in.
    pub bucket: String,
    pub images: Vec<PackedImage>,
}

impl ImagePack {
    /// Identifies this pack by its stored form: another pack, or another order, has another
    /// fingerprint.
    pub fn fingerprint(stored: &[u8]) -> Fingerprint {
        Fingerprint::from_content("gristmill pack v1", stored)
    }
}

#[cfg(test)]
mod members_tests {
    use super::*;
    use crate::Fingerprint;
    use crate::wire::{Dataset, SourceFile};

    #[test]
    fn files_are_those_of_datasets_one_after_the_other() {
        let members = ZipFileCounts::new(vec![2, 0, 1]);
        assert_eq!((members.count(), members.is_one()), (3, false));
        assert_eq!([0, 1, 2].map(|file| members.member_of_file(file)), [0, 0, 2]);
        assert_eq!(members.divide(&["a", "b", "c"]), Some(vec![&["a", "b"][..], &[], &["c"]]));
        assert_eq!(members.divide(&["a", "b"]), None);
        assert_eq!(members.divide(&["a", "b", "c", "d"]), None);
        assert_eq!(members.to_string(), " 2 0 1");
    }

    #[test]
    fn stored_job_of_one_dataset_is_unchanged_by_zips() {
        let file = SourceFile::new("k", 7, "e");
        let lines = format!("jsonl\n{}\n", file.fingerprint("b"));
        let one = Dataset::one("b", vec![file.clone()]);
        let version = Fingerprint::from_content("gristmill dataset v2", lines.as_bytes());
        assert_eq!(one.version("jsonl"), version);
        let stored = r#"{"bucket":"b","files":[{"key":"k","size":7,"etag":"e"}]}"#;
        assert_eq!(serde_json::to_string(&one).unwrap(), stored);
        assert_eq!(serde_json::from_str::<Dataset>(stored).unwrap(), one);
        let members = ZipFileCounts::new(vec![1, 1]);
        let two = Dataset { files: vec![file.clone(), file], members, ..one };
        let stored = serde_json::to_string(&two).unwrap();
        assert!(stored.ends_with(r#","members":[1,1]}"#), "{stored}");
        assert_eq!(serde_json::from_str::<Dataset>(&stored).unwrap(), two);
    }

    #[test]
    fn one_dataset_is_nothing_special() {
        for files in [vec![], vec![7]] {
            let one = ZipFileCounts::new(files);
            assert_eq!(
                (one.count(), one.member_of_file(3), one.to_string()),
                (1, 0, String::new())
            );
            assert_eq!(one.divide(&[1, 2]), Some(vec![&[1, 2][..]]));
        }
    }
}
