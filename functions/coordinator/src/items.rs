//! The items of the table: one enum states every key, one type each what is stored under it.

use crate::caching::Caching;
use gristmill_ports::ItemKey;
use gristmill_protocol::{JobSpec, JobView, Plan, keys};
use gristmill_splits::{Place, job::JobState};
use gristmill_types::{BundleIndex, Epoch, Fingerprint, JobName, Namespace, Nonce};
use serde::{Deserialize, Serialize};

/// The pseudo-epoch whose positions are the dataset's files and whose splits are their indices.
pub(crate) const INDEX_EPOCH: Epoch = Epoch::MAX;
/// Bundles of an epoch are spread over this many partitions, so that one job's workers can write
/// faster than a single partition allows (1,000 write units per second).
const BUNDLE_PARTITIONS: u32 = 8;

/// Names an item of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ItemName<'a> {
    /// The job's entry in the list of all jobs.
    Listed(&'a JobName),
    Job(&'a JobName),
    /// The scaler's books.
    Scale(&'a JobName),
    /// The trainer. One, for now.
    Consumer(&'a JobName),
    /// How far collected objects have been deleted.
    Swept(&'a JobName),
    Deaths(&'a JobName),
    /// Records skipped of the splits that the trainer has passed.
    Skips(&'a JobName),
    /// What was measured of its operators.
    Profile(&'a JobName),
    Epoch(&'a JobName, Epoch),
    Bundle(&'a JobName, Epoch, BundleIndex),
    /// Who reads what is cached.
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
            Self::Consumer(job) => job_item(job, "C#0000"),
            Self::Swept(job) => job_item(job, "SWEPT"),
            Self::Deaths(job) => job_item(job, "DEATHS"),
            Self::Skips(job) => job_item(job, "SKIPS"),
            Self::Profile(job) => job_item(job, "PROFILE"),
            Self::CacheUse(fingerprint) => {
                ItemKey { pk: keys::cache_partition(ns), sk: fingerprint.to_string() }
            }
            Self::Numerics => ItemKey { pk: keys::cache_partition(ns), sk: "NUMERICS".to_owned() },
            Self::Epoch(job, epoch) => job_item(job, &format!("E#{epoch:06}")),
            Self::Bundle(job, epoch, bundle) => ItemKey {
                pk: format!(
                    "{}#E#{epoch:06}#P#{}",
                    keys::job_partition(ns, job),
                    bundle % BUNDLE_PARTITIONS
                ),
                sk: format!("B#{bundle:08}"),
            },
        }
    }

    /// The partitions of an epoch's bundles.
    pub fn bundle_partitions(
        ns: &Namespace,
        job: &JobName,
        epoch: Epoch,
    ) -> impl Iterator<Item = String> {
        let bundles = 0..BUNDLE_PARTITIONS;
        bundles.map(move |bundle| ItemName::Bundle(job, epoch, bundle).key(ns).pk)
    }

    /// Whether the item is one of many that a job leaves behind as it goes. Those expire by
    /// themselves; the few that say what the job is are kept until it has ended.
    pub fn is_passed_by(&self) -> bool {
        matches!(
            self,
            Self::Deaths(_)
                | Self::Skips(_)
                | Self::Profile(_)
                | Self::Epoch(..)
                | Self::Bundle(..)
        )
    }
}

/// A job in the list of jobs, for what must be done though nobody asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub registered_ms: u64,
    /// It has ended and nothing of it is left to do.
    pub tidied: bool,
}

/// A job as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobItem {
    /// Tells it from an earlier job of the name.
    #[serde(default)]
    pub registered_ms: u64,
    /// The call that registered it.
    #[serde(default)]
    pub registered_by: Option<Nonce>,
    pub spec: JobSpec,
    pub dataset_version: Fingerprint,
    pub n_files: u32,
    pub state: JobState,
    pub plan: Option<Plan>,
    /// Epochs before this one are closed.
    pub closed: Epoch,
    /// Of a pipeline with `autocache` points.
    #[serde(default)]
    pub caching: Option<Caching>,
}

impl JobItem {
    pub fn view(&self, job: &JobName) -> JobView {
        use gristmill_protocol::JobState as Wire;
        let state = match &self.state {
            JobState::Indexing => Wire::Indexing,
            JobState::Running => Wire::Running,
            JobState::Done => Wire::Done,
            JobState::Stopped => Wire::Stopped,
            JobState::Failed { error } => Wire::Failed { error: error.clone() },
        };
        JobView {
            job: job.clone(),
            registered_ms: self.registered_ms,
            spec: self.spec.clone(),
            dataset_version: self.dataset_version,
            n_files: self.n_files,
            state,
            plan: self.plan,
            caching: self.caching.as_ref().map(|caching| caching.view.clone()),
        }
    }
}

/// How far collected objects have been deleted; behind the horizon only while a sweep is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Swept {
    pub place: Place,
}

/// What the splits before a place skipped, of the epoch that the place is in. Each split is counted once,
/// in order, before the bundles that say so may be passed by.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Skips {
    pub before: Place,
    pub skipped: u64,
    pub rows: u64,
    /// The first record that the job skipped, and why.
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
            ItemName::Consumer(&job),
            ItemName::Swept(&job),
            ItemName::Deaths(&job),
            ItemName::Skips(&job),
            ItemName::Profile(&job),
            ItemName::CacheUse(Fingerprint([7; 32])),
            ItemName::Numerics,
            ItemName::Epoch(&job, 0),
            ItemName::Epoch(&job, INDEX_EPOCH),
        ];
        names.extend((0..20).map(|b| ItemName::Bundle(&job, 0, b)));
        names.extend((0..20).map(|b| ItemName::Bundle(&job, 1, b)));
        let keys: BTreeSet<_> = names.iter().map(|name| name.key(&ns)).collect();
        assert_eq!(keys.len(), names.len());
        assert!(keys.iter().all(|key| key.pk.starts_with("T#team#")));
    }
}
