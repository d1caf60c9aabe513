//! Turns a job's committed splits into batches: in order, exactly once, with bounded memory.
//!
//! [`Fetcher::start`] opens the stream of a job. [`Fetcher::next`] returns batches, [`Fetcher::checkpointed`] records which
//! are safe in a checkpoint, and [`Fetcher::finish`] closes the job. Polling, prefetching, joining splits and local
//! workers run in background tasks. [`StepStream`] gives the batches of a step to ranks, and [`RunObserver`] counts and
//! times what a trainer gets.

#![deny(clippy::print_stderr)]

mod assembler;
mod batch_source;
mod calls;
mod delivery_waits;
mod downloader;
mod error;
mod fetcher;
mod ledger;
mod local;
mod local_pool;
mod local_share;
mod memory;
mod observer;
mod poller;
mod progress;
mod served_ranks;
mod steps;
pub mod waiting;

pub use calls::ask;
pub use delivery_waits::DeliveryWaits;
pub use downloader::MemoryShare;
pub use error::{FetchError, FolderBuckets};
pub use fetcher::{
    BatchAcknowledger, DeliveredBatch, EpochTotals, Fetcher, FetcherConfig, FetcherPorts,
    JobStatistics, StreamDelivery,
};
pub use memory::PrefetchMemory;
pub use observer::{
    EpochCounts, EpochReport, ObservableRun, PolledJob, RankCounts, RankSteps, RunObservations,
    RunObserver, SteadyPart, WorkerCpuMeter,
};
pub use served_ranks::ServedRanks;
pub use steps::{RankBatch, StepDelivery, StepStream, distinct_batches};

#[cfg(test)]
mod changed_files_tests;

#[cfg(any(test, feature = "samples"))]
pub mod samples;
