//! Items of the table: [`ItemName`] defines every key, and one type defines what is stored under each.

use crate::caching::JobCaching;
use gristmill_model::splits::{
    SplitPlace,
    job::JobState,
    order::BundleDivision,
    ranges::{BundleRanges, FEWEST_PARTITIONS, partitions},
};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    BundlePartition, EpochPlan, JobSpec, JobView, OptionChange, SpokenVersions,
};
use gristmill_model::{BundleIndex, Epoch, Fingerprint, JobName, Namespace, Nonce, RunToken};
use gristmill_ports::ItemKey;
use serde::{Deserialize, Serialize};
use std::ops::Range;

pub(crate) use gristmill_model::splits::INDEX_EPOCH;

/// Index bundles per worker, at least, and the fewest workers to plan for. Small bundles spread the
/// indexing evenly over the workers.
const INDEX_BUNDLES_A_WORKER: u32 = 4;
const FEWEST_INDEXING: u32 = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ItemName<'a> {
    /// The job's entry in the list of all jobs.
    Listed(&'a JobName),
    Job(&'a JobName),
    /// The scaler's state.
    Scale(&'a JobName),
    /// Hints from the last look at the job's window.
    WindowHints(&'a JobName),
    /// Bit set of workers of one shard that have left.
    Left(&'a JobName, u32),
    /// The trainer's cursor. A job has one trainer for now.
    Progress(&'a JobName),
    /// The progress of one reader among several, by its first rank.
    Reader(&'a JobName, u32),
    /// A run that was superseded long ago.
    PastRun(&'a JobName, RunToken),
    /// Place up to which collected objects are deleted.
    Swept(&'a JobName),
    Deaths(&'a JobName),
    /// Records skipped in splits that the trainer has passed.
    Skips(&'a JobName),
    /// Measurements of its operators.
    Profile(&'a JobName),
    Epoch(&'a JobName, Epoch),
    Bundle(&'a JobName, BundlePartition, Epoch, BundleIndex),
    /// Use and readers of a cache entry.
    CacheUse(Fingerprint),
    /// The numerics class of this namespace's workers, as last seen.
    Numerics,
}

impl ItemName<'_> {
    /// The key in the table.
    pub fn key(&self, ns: &Namespace) -> ItemKey {
        let job_item = |job: &JobName, sk: &str| ItemKey {
            pk: keys::job_partition(ns, job),
            sk: sk.to_owned(),
        };
        match self {
            Self::Listed(job) => ItemKey { pk: keys::jobs_partition(ns), sk: job.to_string() },
            Self::Job(job) => job_item(job, "JOB"),
            Self::Scale(job) => job_item(job, keys::SCALE),
            Self::Left(job, shard) => {
                let (pk, sk) = keys::left(ns, job, *shard);
                ItemKey { pk, sk }
            }
            Self::WindowHints(job) => job_item(job, "FRONTIER"),
            Self::Progress(job) => job_item(job, "C#0000"),
            Self::Reader(job, first_rank) => job_item(job, &reader_sk(*first_rank)),
            Self::PastRun(job, token) => job_item(job, &format!("T#{token}")),
            Self::Swept(job) => job_item(job, "SWEPT"),
            Self::Deaths(job) => job_item(job, "DEATHS"),
            Self::Skips(job) => job_item(job, "SKIPS"),
            Self::Profile(job) => job_item(job, "PROFILE"),
            Self::CacheUse(fingerprint) => {
                ItemKey { pk: keys::cache_partition(ns), sk: fingerprint.to_string() }
            }
            Self::Numerics => ItemKey { pk: keys::cache_partition(ns), sk: "NUMERICS".to_owned() },
            Self::Epoch(job, epoch) => job_item(job, &format!("E#{epoch:06}")),
            Self::Bundle(job, partition, epoch, bundle) => ItemKey {
                pk: bundle_partition(ns, job, *partition, *epoch),
                sk: bundle_sk(*bundle),
            },
        }
    }

    /// Whether the item is one of many that accumulate while a job runs. Those expire on their own; the few
    /// items that define the job live until it has ended.
    pub fn accumulates(&self) -> bool {
        matches!(
            self,
            Self::Deaths(_)
                | Self::Skips(_)
                | Self::WindowHints(_)
                | Self::Left(..)
                | Self::Reader(..)
                | Self::Profile(_)
                | Self::Epoch(..)
                | Self::Bundle(..)
        )
    }
}

pub(crate) fn bundle_partition(
    ns: &Namespace,
    job: &JobName,
    partition: BundlePartition,
    epoch: Epoch,
) -> String {
    let BundlePartition { registered_ms, partition } = partition;
    format!("{}#R#{registered_ms:x}#E#{epoch:06}#P#{partition}", keys::job_partition(ns, job))
}

/// The sort key of a bundle; keys sort in the order of bundle numbers.
pub(crate) fn bundle_sk(bundle: BundleIndex) -> String {
    format!("B#{bundle:08}")
}

/// The sort key of a reader's progress; keys sort in the order of ranks.
fn reader_sk(first_rank: u32) -> String {
    format!("R#{first_rank:010}")
}

/// The lowest and the highest sort key of a reader's progress.
pub(crate) fn reader_sks() -> (String, String) {
    (reader_sk(0), reader_sk(u32::MAX))
}

pub(crate) fn parse_bundle_sk(sk: &str) -> Option<BundleIndex> {
    sk.strip_prefix("B#")?.parse().ok()
}

/// Entry in the list of jobs, which upkeep goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedJob {
    pub registered_ms: u64,
    /// The job has ended and its chunks and items are cleaned up.
    pub tidied: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobItem {
    /// Distinguishes the job from earlier jobs of the same name.
    #[serde(default)]
    pub registered_ms: u64,
    /// Nonce of the call that registered the job.
    #[serde(default)]
    pub registered_by: Option<Nonce>,
    pub spec: JobSpec,
    pub dataset_version: Fingerprint,
    pub n_files: u32,
    #[serde(flatten)]
    pub state: JobState,
    pub plan: Option<EpochPlan>,
    /// Epochs before this one are closed.
    pub closed: Epoch,
    /// Set for pipelines with `autocache` points.
    #[serde(default)]
    pub caching: Option<JobCaching>,
    #[serde(default, skip_serializing_if = "BundleLayout::is_least")]
    pub layout: BundleLayout,
    /// The latest changes of its options by those who joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<OptionChange>,
    /// How many times it has gone on after it had failed, or for a trainer that went back behind what is kept. A late
    /// call that fails it is of the time before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed: u32,
    /// The newest version of the protocol that all who take part in the job speak: the stack and the trainer that
    /// registered it, and those who joined. The worker version that it keeps speaks it too. A job that version 2
    /// registered, or wrote last, has none.
    #[serde(default = "unsaid", skip_serializing_if = "is_unsaid")]
    pub protocol: u32,
}

/// The places of a job's bundles. The number of workers at registration determines it, and later ones do not move bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BundleLayout {
    /// Partitions that the bundles of each epoch are spread over.
    pub partitions: u32,
    /// Files per index bundle, before [`BundleDivision::new`] clamps it to 1 to 8.
    pub index_files: u32,
}

impl Default for BundleLayout {
    fn default() -> Self {
        Self { partitions: FEWEST_PARTITIONS, index_files: 0 }
    }
}

fn unsaid() -> u32 {
    SpokenVersions::default().newest
}

fn is_unsaid(version: &u32) -> bool {
    *version == unsaid()
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl BundleLayout {
    /// Whether it is that of few workers and files, which is not written.
    fn is_least(&self) -> bool {
        *self == Self::default()
    }

    /// The layout of a job of `n_files` files that is not indexed yet.
    pub fn new(spec: &JobSpec, n_files: u32) -> Self {
        let workers = spec.workers.clamp(FEWEST_INDEXING, u32::MAX / INDEX_BUNDLES_A_WORKER);
        Self {
            partitions: partitions(spec.all_workers()),
            index_files: n_files / (workers * INDEX_BUNDLES_A_WORKER),
        }
    }
}

impl JobItem {
    /// Distinguishes the job from earlier ones of its name, and from the time before it went on.
    pub fn resumption(&self) -> (u64, u32) {
        (self.registered_ms, self.resumed)
    }

    /// Number of partitions that the bundles of each epoch are spread over.
    pub fn partitions(&self) -> u32 {
        self.layout.partitions
    }

    /// Whether this version of the job determines where the objects of `epoch` are. The first claim settles
    /// the numerics class, and an epoch's caching is settled before its first claim.
    pub fn locates(&self, epoch: Epoch) -> bool {
        let unsettled = self.caching.as_ref().and_then(|caching| caching.view.unsettled);
        !self.spec.numerics.is_empty() && unsettled.is_none_or(|first| epoch < first)
    }

    /// The partition of a bundle.
    pub fn partition(&self, bundle: BundleIndex) -> BundlePartition {
        self.partition_at(bundle % self.partitions())
    }

    /// The name of a bundle of `job`, which this is.
    pub fn bundle<'a>(&self, job: &'a JobName, epoch: Epoch, bundle: BundleIndex) -> ItemName<'a> {
        ItemName::Bundle(job, self.partition(bundle), epoch, bundle)
    }

    /// The partition with this number.
    pub fn partition_at(&self, partition: u32) -> BundlePartition {
        BundlePartition { registered_ms: self.registered_ms, partition }
    }

    /// How positions form bundles: splits of an epoch, or files to index.
    pub fn division(&self) -> BundleDivision {
        match self.plan {
            Some(plan) => BundleDivision::new(plan.n_splits, plan.max_bundle_splits),
            None => BundleDivision::new(self.n_files, self.layout.index_files),
        }
    }

    /// Number of positions in all epochs, or of files to index.
    pub fn run(&self) -> u64 {
        let epochs = if self.plan.is_some() { self.spec.epochs } else { 1 };
        u64::from(epochs) * u64::from(self.division().n_splits())
    }

    /// The bundles that hold the positions `span`, counted through all epochs. Epochs that are delivered
    /// from the cache have no bundles.
    pub fn ranges(&self, span: Range<u64>) -> BundleRanges {
        let span = span.start..span.end.min(self.run());
        if self.plan.is_none() {
            let file = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
            return BundleRanges::from_epoch(
                self.division(),
                INDEX_EPOCH,
                file(span.start)..file(span.end),
            );
        }
        let caching = self.caching.as_ref().map(|caching| &caching.view);
        BundleRanges::from_positions(self.division(), span, |epoch| {
            caching.is_none_or(|caching| caching.delivered_prefix(epoch).is_none())
        })
    }

    /// The job as its callers see it.
    pub fn view(&self, job: &JobName) -> JobView {
        JobView {
            job: job.clone(),
            registered_ms: self.registered_ms,
            spec: self.spec.clone(),
            dataset_version: self.dataset_version,
            n_files: self.n_files,
            state: self.state.clone(),
            plan: self.plan,
            caching: self.caching.as_ref().map(|caching| caching.view.clone()),
            changes: self.changes.clone(),
            resumed: self.resumed,
        }
    }
}

/// Place up to which collected objects are deleted; behind the horizon only while a sweep is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SweepProgress {
    pub place: SplitPlace,
    /// Bundles of earlier epochs are deleted.
    #[serde(default)]
    pub pruned: Epoch,
}

/// Records skipped in splits before a place, within its epoch. Each split is counted once, in order, before
/// its bundle may expire.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SkipCounts {
    pub before: SplitPlace,
    pub skipped: u64,
    pub rows: u64,
    /// The first record that the job skipped, with the reason.
    pub first: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_item_has_a_key_of_its_own_in_its_namespace() {
        let (ns, job): (Namespace, JobName) = ("team".parse().unwrap(), "j".parse().unwrap());
        let mut names = vec![
            ItemName::Listed(&job),
            ItemName::Job(&job),
            ItemName::Scale(&job),
            ItemName::Progress(&job),
            ItemName::WindowHints(&job),
            ItemName::Left(&job, 0),
            ItemName::Left(&job, 8),
            ItemName::Reader(&job, 0),
            ItemName::Reader(&job, 8),
            ItemName::Swept(&job),
            ItemName::Deaths(&job),
            ItemName::Skips(&job),
            ItemName::Profile(&job),
            ItemName::CacheUse(Fingerprint([7; 32])),
            ItemName::Numerics,
            ItemName::Epoch(&job, 0),
            ItemName::Epoch(&job, INDEX_EPOCH),
        ];
        let partition = |registered_ms, b| BundlePartition { registered_ms, partition: b % 8 };
        names.extend((0..20).map(|b| ItemName::Bundle(&job, partition(1, b), 0, b)));
        names.extend((0..20).map(|b| ItemName::Bundle(&job, partition(2, b), 0, b)));
        names.extend((0..20).map(|b| ItemName::Bundle(&job, partition(1, b), 1, b)));
        let keys: BTreeSet<_> = names.iter().map(|name| name.key(&ns)).collect();
        assert_eq!(keys.len(), names.len());
        assert!(keys.iter().all(|key| key.pk.starts_with("T#team#")));
    }
}
