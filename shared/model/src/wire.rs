//! Versioned messages between trainer, workers and functions, and the names of the objects they
//! point to.
//!
//! Each call is one request and one response, both JSON, POSTed to the coordinator's function URL.
//! Every request is safe to send again: a resend after a lost response has no second effect.

mod budget;
mod caching;
mod calls;
mod events;
mod job;
mod metrics;
mod outstanding;
pub mod protocol;
mod settings;
mod training_report;

pub use crate::splits::job::JobState;
pub use budget::{
    ADMISSION_MS, BudgetFacts, FIRST_MS, InvocationAge, JobBudget, LEAVING_MS, LeaseDemand,
    PICODOLLARS, PaidWorker, SpendingLedger,
};
pub use caching::{
    CacheEntry, CacheManifest, CacheMode, CacheOrders, CachePointOrder, CachePointView,
    CachedChunk, CachingView, EpochCacheMode, ListedCacheEntry, OpWork, WorkProfile,
};
pub use calls::*;
pub use events::{ScaleDecision, ScaleState, ScalerEvent, WorkerEvent, WorkerFailureSeries};
pub use job::{
    Dataset, DatasetManifest, EpochPlan, ImagePack, JobSpec, JobView, ManifestFile, PACK_IMAGES,
    PackedImage, RegisterCall, SkippedRecordLocation, SourceFile, StoredListing, ZipFileCounts,
};
pub use metrics::{MeasuredValue, MetricsOrigin, WorkerMetrics};
pub use outstanding::{AccountRoom, DepartedWorkers, LEFT_SHARD, OutstandingWorkers};
pub use protocol::{SpokenVersions, VERSION};
pub use settings::{
    GivenOptions, JobSettings, OPTIONS, OptionChange, OptionMeaning, SpecDifference,
};
pub use training_report::TrainingReport;

/// Upper bound of one encoded request or response, in bytes: what a function URL carries.
pub const MAX_MESSAGE_BYTES: usize = 6 << 20;
