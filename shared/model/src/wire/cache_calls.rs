//! Calls about the cache: list it, explain a look-up, remove an entry.

use crate::Fingerprint;
use crate::wire::{Dataset, JobSpec, ListedCacheEntry};
use serde::{Deserialize, Serialize};

/// Lists the cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheListCall {}

/// The answer to [`CacheListCall`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheListReply {
    pub entries: Vec<ListedCacheEntry>,
    /// Fingerprints of unfinished removals.
    #[serde(default)]
    pub removing: Vec<Fingerprint>,
}

/// Looks up a job's pipeline in the cache; registers nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheExplainCall {
    pub spec: JobSpec,
    pub dataset: Dataset,
}

/// The answer to [`CacheExplainCall`]: one look-up for each `autocache` point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheExplainReply {
    pub points: Vec<ExplainedCachePoint>,
}

/// The look-up of one `autocache` point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedCachePoint {
    /// The operator before the point.
    pub after: String,
    pub fingerprint: Fingerprint,
    pub hit: bool,
    /// The entry of a hit; for a miss, the differences from cached entries, one line each.
    pub why: Vec<String>,
}

/// Removes what is cached under a fingerprint, unless a living job reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheRemoveCall {
    pub fingerprint: Fingerprint,
}

/// The answer to [`CacheRemoveCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRemoveReply {
    /// Objects deleted.
    pub objects: u64,
}
