//! Turns a job's committed splits into batches: in order, exactly once, with bounded memory.
//!
//! [`Fetcher::start`] opens the stream of a job. [`Fetcher::next`] returns batches, [`Fetcher::checkpointed`] records which
//! are safe in a checkpoint, and [`Fetcher::finish`] closes the job. Polling, prefetching, joining splits and local
//! workers run in background tasks. [`StepStream`] gives the batches of a step to ranks, and [`RunObserver`] counts and
//! times what a trainer gets.

#![deny(clippy::print_stderr)]

mod asking;
mod assembler;
mod bounds;
mod cached;
#[cfg(test)]
mod changes;
mod downloader;
mod error;
mod fetcher;
mod folders;
mod host_memory;
mod ledger;
mod listing;
mod local;
mod observer;
mod own_batches;
mod own_ranks;
mod pace;
mod patience;
mod poller;
mod progress;
mod rows;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
mod start;
mod steps;
mod stream;
pub mod waiting;
mod waits;

pub use asking::ask;
pub use bounds::PrefetchMemory;
pub use downloader::MemoryShare;
pub use error::FetchError;
pub use fetcher::{
    BatchAcknowledger, DeliveredBatch, EpochTotals, Fetcher, FetcherConfig, FetcherPorts,
    JobStatistics, StreamDelivery,
};
pub use folders::FolderBuckets;
pub use observer::{
    EpochCounts, EpochReport, ObservableRun, PolledJob, RankCounts, RankSteps, RunObservations,
    RunObserver, SteadyPart, WorkerCpuMeter,
};
pub use own_ranks::ServedRanks;
pub use steps::{RankBatch, StepDelivery, StepStream};
pub use waits::DeliveryWaits;
