//! Calls about the cache: list it, explain a look-up, remove an entry.

use crate::Fingerprint;
use crate::wire::{CacheListed, Dataset, JobSpec};
use serde::{Deserialize, Serialize};

/// Lists the cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheList {}

/// The answer to [`CacheList`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheListing {
    pub entries: Vec<CacheListed>,
    /// Fingerprints of unfinished removals.
    #[serde(default)]
    pub removing: Vec<Fingerprint>,
}

/// Looks up a job's pipeline in the cache; registers nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheExplain {
    pub spec: JobSpec,
    pub dataset: Dataset,
}

/// The answer to [`CacheExplain`]: one look-up for each `autocache` point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheExplained {
    pub points: Vec<PointFound>,
}

/// The look-up of one `autocache` point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointFound {
    /// The operator before the point.
    pub after: String,
    pub fingerprint: Fingerprint,
    pub hit: bool,
    /// The entry of a hit; for a miss, the differences from cached entries, one line each.
    pub why: Vec<String>,
}

/// Removes what is cached under a fingerprint, unless a living job reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheRemove {
    pub fingerprint: Fingerprint,
}

/// The answer to [`CacheRemove`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRemoved {
    /// Objects deleted.
    pub objects: u64,
}
