//! Decodes stored items for read-only observers: simulations, which check every write.

use crate::{
    items::{ItemName, JobItem, parse_bundle_sk},
    store::{DELETED, ItemCodec as _},
};
use gristmill_model::splits::{Bundle, JobProgress, job::JobState};
use gristmill_model::wire::BundlePartition;
use gristmill_model::{BundleIndex, Epoch, JobName, Namespace};
use gristmill_ports::ItemKey;

/// An item by its type; the split protocol constrains all types but `Other`.
#[derive(Debug, Clone)]
pub enum DecodedItem {
    Bundle(Box<Bundle>),
    Progress(Box<JobProgress>),
    Job(JobState),
    Other,
}

/// The item stored under `key`. The error is one line.
pub fn decode(key: &ItemKey, body: &[u8]) -> Result<DecodedItem, String> {
    if body == DELETED {
        return Ok(DecodedItem::Other);
    }
    match key.sk.split_once('#') {
        Some(("B", _)) => Bundle::decode(body).map(Box::new).map(DecodedItem::Bundle),
        Some(("C", _)) => JobProgress::decode(body).map(Box::new).map(DecodedItem::Progress),
        None if key.sk == "JOB" => JobItem::decode(body).map(|job| DecodedItem::Job(job.state)),
        _ => Ok(DecodedItem::Other),
    }
}

/// The key of a bundle.
pub fn bundle_key(
    ns: &Namespace,
    job: &JobName,
    partition: BundlePartition,
    epoch: Epoch,
    bundle: BundleIndex,
) -> ItemKey {
    ItemName::Bundle(job, partition, epoch, bundle).key(ns)
}

/// The partition of a bundle, from the body of the stored job.
pub fn partition(job: &[u8], bundle: BundleIndex) -> Option<BundlePartition> {
    JobItem::decode(job).ok().map(|job| job.partition(bundle))
}

/// The epoch and index of the bundle stored under `key`; none for other keys.
pub fn bundle_of(key: &ItemKey) -> Option<(Epoch, BundleIndex)> {
    let bundle = parse_bundle_sk(&key.sk)?;
    let epoch = key.pk.rsplit('#').nth(2)?.parse().ok()?;
    Some((epoch, bundle))
}

/// The key of the job's item.
pub fn job_key(ns: &Namespace, job: &JobName) -> ItemKey {
    ItemName::Job(job).key(ns)
}

/// The key of the trainer's item.
pub fn progress_key(ns: &Namespace, job: &JobName) -> ItemKey {
    ItemName::Progress(job).key(ns)
}
