//! Settings that an operator tunes.

use crate::snapshot::JobSnapshot;
use gristmill_model::splits::{BundleRetryLimits, ObjectSizes};
use gristmill_model::wire::SpokenVersions;
use gristmill_model::{ErrorPolicy, Namespace};
use std::{num::NonZeroU32, time::Duration};

/// Deaths on one split, all but the first right after a survived control, that make it poison. The minimum
/// is three; with five, at most one in a thousand runs of unrelated deaths looks the same.
const POISON_STRIKES: u8 = 5;

/// Settings of one coordinator.
#[derive(Debug, Clone)]
pub struct CoordinatorSettings {
    /// The namespace that the coordinator serves; it refuses calls for any other.
    pub ns: Namespace,
    /// The bucket of chunks, indices and manifests.
    pub bucket: String,
    /// Name (and qualifier) of the scaler function.
    pub scaler_function: String,
    /// No more splits are leased once this many bytes are ready but not yet received by the trainer.
    pub window_bytes: u64,
    /// The bytes of objects, as the window counts them.
    pub object_sizes: ObjectSizes,
    /// Capacity of the cache, in bytes; the least useful entries are evicted to make room.
    pub cache_bytes: u64,
    /// A job whose trainer has not polled for this long is abandoned and stopped; its chunks are gone by then.
    pub retention: Duration,
    pub limits: BundleRetryLimits,
    /// The versions of the protocol that the stack speaks.
    pub spoken: SpokenVersions,
    /// Whether bundles of passed epochs are deleted, and not left to expire.
    pub prunes_bundles: bool,
    /// When to fail a job whose workers achieve nothing.
    pub failure_limits: WorkerFailureLimits,
    /// Pairs of (active workers, milliseconds), most workers first: from that many workers on, claims may
    /// use job items that this process read up to that long ago. Otherwise, claims of many workers would
    /// exceed the read throughput of the job's partition.
    pub shared_reads: Vec<(u32, u64)>,
}

/// A job fails once both limits are passed.
#[derive(Debug, Clone, Copy)]
pub struct WorkerFailureLimits {
    /// Workers that died or could not start, with no split committed in between.
    pub workers: u32,
    /// Time between the first and the last of these failures.
    pub lasting: Duration,
}

/// 1 TiB: about $24 a month.
const CACHE_BYTES: u64 = 1 << 40;

impl CoordinatorSettings {
    /// The defaults for one stack.
    pub fn new(ns: Namespace, bucket: String, scaler_function: String) -> Self {
        Self {
            ns,
            bucket,
            scaler_function,
            window_bytes: 2 << 30,
            object_sizes: ObjectSizes::Real,
            cache_bytes: CACHE_BYTES,
            retention: Duration::from_secs(14 * 86_400),
            prunes_bundles: false,
            spoken: SpokenVersions::BUILD,
            limits: BundleRetryLimits {
                poison_strikes: POISON_STRIKES,
                ..BundleRetryLimits::default()
            },
            failure_limits: WorkerFailureLimits { workers: 20, lasting: Duration::from_secs(120) },
            shared_reads: vec![(1_500, 1_000), (32, 250)],
        }
    }

    /// Milliseconds for which a claim may reuse items that another claim read. Inactive workers may all
    /// claim at the same time, so at least a sixteenth of the job's workers counts as active.
    pub(crate) fn shared_ms(&self, snapshot: &JobSnapshot) -> u64 {
        let active = snapshot.active().max(snapshot.item.spec.workers / 16);
        self.shared_reads.iter().find(|(least, _)| active >= *least).map_or(0, |(_, ms)| *ms)
    }

    /// Sets the retention, in days, if given.
    #[must_use]
    pub fn with_retention(self, days: Option<NonZeroU32>) -> Self {
        let retention =
            days.map_or(self.retention, |days| Duration::from_secs(u64::from(days.get()) * 86_400));
        Self { retention, ..self }
    }

    /// Deletes the bundles of passed epochs, for a table whose space counts.
    #[must_use]
    pub fn with_pruning(self) -> Self {
        Self { prunes_bundles: true, ..self }
    }

    /// Sets the capacity of the cache, in GiB, if given.
    #[must_use]
    pub fn with_cache(self, gib: Option<NonZeroU32>) -> Self {
        let cache_bytes = gib.map_or(self.cache_bytes, |gib| u64::from(gib.get()) << 30);
        Self { cache_bytes, ..self }
    }

    pub(crate) fn limits_of(&self, on_error: ErrorPolicy) -> BundleRetryLimits {
        BundleRetryLimits { on_error, ..self.limits }
    }
}
