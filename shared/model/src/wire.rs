//! Versioned messages between trainer, workers and functions, and the names of the objects they
//! point to.
//!
//! One request, one response, both JSON, POSTed to the coordinator's function URL. Every request is
//! safe to send again: a lost response never makes a second effect.

mod caching;
mod calls;
mod events;
mod job;
mod members;
mod outstanding;
mod pack;

pub use caching::{
    CacheEntry, CacheListed, CacheManifest, CacheMode, CacheOrders, CachedChunk, CachingView,
    EpochMode, OpWork, PointOrder, PointView, WorkProfile,
};
pub use calls::{
    Ack, CacheExplain, CacheRemove, Call, Claim, Commit, Fail, Flush, Home, Idle, IdleReason,
    JobStatus, Lease, Leave, Mark, PointFound, Poll, Polled, ReadyEntry, ReadyKind, Refusal,
    RefusalKind, Release, Reply, Request, TrainerMetrics, TrainingReport, Work, WorkerCost,
    WorkerSeconds,
};
pub use events::{Barren, ScaleDecision, ScaleState, ScalerEvent, WorkerEvent};
pub use job::{
    Dataset, JobSpec, JobState, JobView, Manifest, ManifestFile, Plan, Register, SkippedAt,
    SourceFile, SpecDifference, StoredListing,
};
pub use members::Members;
pub use outstanding::{LEFT_SHARD, Left, Outstanding};
pub use pack::{PACK_IMAGES, Pack, PackedImage};

/// Version of every message; a peer of another version is refused by name.
pub const VERSION: u32 = 1;
/// Upper bound of one encoded request or response, in bytes: what a function URL carries.
pub const MAX_MESSAGE_BYTES: usize = 6 << 20;
