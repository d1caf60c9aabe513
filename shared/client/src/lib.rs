//! The trainer's side: finds a service, starts a job, and streams its batches into the training loop, in order,
//! exactly once, with bounded memory.
//!
//! [`connect`] finds a running [`ServiceConnection`], [`start_local`] starts one. [`ServiceConnection::submit`] starts or joins a [`JobHandle`],
//! [`JobHandle::batches`] streams it: [`Fetcher::next`] returns batches, [`Fetcher::checkpointed`] records which are safe
//! in a checkpoint, and [`Fetcher::finish`] closes the job. Polling, prefetching, joining splits and local workers
//! run in background tasks. [`report`] counts and times the deliveries to a trainer.

#![deny(clippy::print_stderr)]

mod asking;
mod assembler;
mod authored;
mod bounds;
mod cached;
#[cfg(test)]
mod changes;
pub mod cursor;
mod dataset;
mod downloader;
mod error;
mod failure;
mod fetcher;
mod folders;
pub mod framing;
mod given;
mod host_memory;
mod images;
mod job;
mod ledger;
mod list_error;
mod listing;
mod local;
mod log;
mod memory;
mod options;
mod own;
mod own_batches;
mod own_ranks;
mod pace;
mod patience;
mod poller;
mod progress;
mod rank_options;
pub mod report;
mod rows;
#[cfg(test)]
mod samples;
mod selection;
pub mod server;
mod service;
pub mod signals;
mod start;
mod steps;
mod stream;
mod trouble;
mod user_file;
pub mod waiting;
mod waits;

pub use authored::AuthoredPipeline;
pub use bounds::PrefetchMemory;
pub use dataset::{DatasetFiles, DatasetListing, DatasetLocation};
pub use downloader::MemoryShare;
pub use error::FetchError;
pub use failure::ProgramFailure;
pub use fetcher::{
    BatchAcknowledger, DeliveredBatch, EpochTotals, Fetcher, FetcherConfig, FetcherPorts,
    JobStatistics, StreamDelivery,
};
pub use folders::FolderBuckets;
pub use given::GivenOptionNames;
pub use gristmill_executor::NUMERICS;
pub use gristmill_host::{AttachError, ServiceFile};
pub use job::{JobConfig, JobHandle, ResumeError};
pub use list_error::ListError;
pub use log::{log_to_stderr, write_stderr};
pub use memory::return_large_buffers;
pub use options::{
    JobOptions, ReportOptions, ServiceBackend, ServiceOptions, StreamOptions, WorkerCount,
    parse_budget,
};
pub use own::{ServiceLauncher, StartRefusal, start_local, start_own};
pub use own_ranks::ServedRanks;
pub use rank_options::{RankOptions, TailOption};
pub use selection::LeftOutFiles;
pub use service::{LocalService, NamedService, ServiceConnection, connect, needs_aws};
pub use steps::{RankBatch, StepDelivery, StepStream};
pub use user_file::{read_user_file, read_user_text};
pub use waits::DeliveryWaits;

/// The built-in operators, for a program without operators of its own.
pub fn operators() -> std::sync::Arc<gristmill_pipeline::OperatorRegistry> {
    std::sync::Arc::new(gristmill_operators::registry().clone())
}
