//! Versioned messages between trainer, workers and functions, and the names of the objects they
//! point to.
//!
//! Each call is one request and one response, both JSON, POSTed to the coordinator's function URL.
//! Every request is safe to send again: a resend after a lost response has no second effect.

mod cache_calls;
mod caching;
mod calls;
mod events;
mod job;
mod job_options;
mod jobs;
mod leases;
mod members;
mod outstanding;
mod pack;
mod polls;
pub mod protocol;
mod readers;
mod room;
mod settings;
mod training_report;

pub use crate::splits::job::JobState;
pub use cache_calls::{
    CacheExplain, CacheExplained, CacheList, CacheListing, CacheRemove, CacheRemoved, PointFound,
};
pub use caching::{
    CacheEntry, CacheListed, CacheManifest, CacheMode, CacheOrders, CachedChunk, CachingView,
    EpochMode, OpWork, PointOrder, PointView, WorkProfile,
};
pub use calls::*;
pub use events::{Barren, ScaleDecision, ScaleState, ScalerEvent, WorkerEvent};
pub use job::{
    Dataset, JobSpec, JobView, Manifest, ManifestFile, Plan, Register, SkippedAt, SourceFile,
    StoredListing,
};
pub use job_options::{GivenOptions, OPTIONS, OptionChange, OptionMeaning, SpecDifference};
pub use jobs::{Describe, Forget, Forgotten, JobStatus, Status, Stop};
pub use leases::{
    Claim, ClaimReply, Fail, Flush, Home, Idle, IdleReason, Lease, LeaseRef, Leave, Mark, Release,
    Work,
};
pub use members::Members;
pub use outstanding::{LEFT_SHARD, Left, Outstanding};
pub use pack::{PACK_IMAGES, Pack, PackedImage};
pub use polls::{Poll, Polled, ReadySplit, TrainerMetrics};
pub use protocol::{SpokenVersions, VERSION};
pub use readers::{ReaderStanding, ReaderStatus, RunStatus};
pub use room::AccountRoom;
pub use settings::JobSettings;
pub use training_report::TrainingReport;

/// Upper bound of one encoded request or response, in bytes: what a function URL carries.
pub const MAX_MESSAGE_BYTES: usize = 6 << 20;
