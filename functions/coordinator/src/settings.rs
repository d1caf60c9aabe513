//! Settings that an operator tunes.

use crate::snapshot::JobSnapshot;
use gristmill_model::splits::Limits;
use gristmill_model::{ErrorPolicy, Namespace};
use gristmill_pipeline::Batching;
use std::{num::NonZeroU32, time::Duration};

/// Deaths on one split, each beside a control that lived, that make it poison. More than the three that are
/// needed: at worst, one in a thousand runs of chance looks like this.
const POISON_STRIKES: u8 = 5;

/// Settings of one coordinator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The namespace it serves; calls for any other are refused.
    pub ns: Namespace,
    /// The bucket of chunks, indices and manifests.
    pub bucket: String,
    /// Name (and qualifier) of the scaler function.
    pub scaler_function: String,
    /// Objects are planned to be about this large, in bytes: large enough that requests cost
    /// little beside compute, small enough for a worker's memory and one put.
    pub object_bytes: u64,
    /// Splits an epoch is divided into at least, data permitting, so that work can fan out.
    pub min_splits: u64,
    /// Bytes ready and not yet taken in at which hand-out stops.
    pub window_bytes: u64,
    /// Bytes that may be cached: what is of least use is removed for what is stored next.
    pub cache_bytes: u64,
    /// A job whose trainer has not been heard of for this long is abandoned: its chunks are gone by
    /// then.
    pub retention: Duration,
    pub limits: Limits,
    /// When a job whose workers come to nothing is given up.
    pub patience: Patience,
    /// From so many workers at work on, claims go by what their process read of the job up to so many
    /// milliseconds ago: the items of a job, read by all, would be asked for more often than their partition
    /// answers. Most workers first.
    pub shared_reads: Vec<(u32, u64)>,
}

/// How much in vain is enough: both must be passed.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Workers that died or could not begin, without a split committed between.
    pub workers: u32,
    /// From the first of them to the last.
    pub lasting: Duration,
}

/// Default settings of the plan.
const OBJECT_BYTES: u64 = 64 << 20;
const MIN_SPLITS: u64 = 64;
/// A terabyte: $24 a month.
const CACHE_BYTES: u64 = 1 << 40;

/// Batches of a split, where the user does not say: objects of about the planned size, but enough
/// splits to fan out on a small dataset, and enough batches to each for what `batching` sorts within it.
pub fn split_batches(records: u64, record_bytes: u64, batching: &Batching) -> u64 {
    batches_for(OBJECT_BYTES, MIN_SPLITS, records, record_bytes, batching)
}

fn batches_for(
    object_bytes: u64,
    min_splits: u64,
    records: u64,
    record_bytes: u64,
    batching: &Batching,
) -> u64 {
    let batch = u64::from(batching.size.max(1));
    let by_bytes = object_bytes / record_bytes.saturating_mul(batch).max(1);
    let by_spread = records / batch.saturating_mul(min_splits).max(1);
    by_bytes.min(by_spread.max(batching.batches_together())).max(1)
}

impl Settings {
    /// The defaults for one stack.
    pub fn new(ns: Namespace, bucket: String, scaler_function: String) -> Self {
        Self {
            ns,
            bucket,
            scaler_function,
            object_bytes: OBJECT_BYTES,
            min_splits: MIN_SPLITS,
            window_bytes: 2 << 30,
            cache_bytes: CACHE_BYTES,
            retention: Duration::from_secs(14 * 86_400),
            limits: Limits { poison_strikes: POISON_STRIKES, ..Limits::default() },
            patience: Patience { workers: 20, lasting: Duration::from_secs(120) },
            shared_reads: vec![(1_500, 1_000), (32, 250)],
        }
    }

    /// How long a claim of the job may go by what another one read. Of those that are not at work, but may all
    /// ask at one time, a sixteenth counts.
    pub(crate) fn shared_ms(&self, snapshot: &JobSnapshot) -> u64 {
        let active = snapshot.active().max(snapshot.item.spec.workers / 16);
        self.shared_reads.iter().find(|(least, _)| active >= *least).map_or(0, |(_, ms)| *ms)
    }

    /// With another retention, in days; the same if there is none.
    #[must_use]
    pub fn with_retention(self, days: Option<NonZeroU32>) -> Self {
        let retention =
            days.map_or(self.retention, |days| Duration::from_secs(u64::from(days.get()) * 86_400));
        Self { retention, ..self }
    }

    /// With room for so many GiB in the cache; the same if there is none.
    #[must_use]
    pub fn with_cache(self, gib: Option<NonZeroU32>) -> Self {
        let cache_bytes = gib.map_or(self.cache_bytes, |gib| u64::from(gib.get()) << 30);
        Self { cache_bytes, ..self }
    }

    /// As [`split_batches`], by these settings.
    pub(crate) fn split_batches(
        &self,
        records: u64,
        record_bytes: u64,
        batching: &Batching,
    ) -> u64 {
        batches_for(self.object_bytes, self.min_splits, records, record_bytes, batching)
    }

    /// The limits of a job with this error policy.
    pub(crate) fn limits_of(&self, on_error: ErrorPolicy) -> Limits {
        Limits { on_error, ..self.limits }
    }
}
