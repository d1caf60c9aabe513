//! The trainer's side: finds a service, lists a dataset, starts a job, and reports a run.
//!
//! [`connect`] finds a running [`ServiceConnection`], [`start_local`] starts one. [`ServiceConnection::submit`] starts or
//! joins a [`JobHandle`], and [`JobHandle::batches`] streams it with a [`Fetcher`](gristmill_stream::Fetcher). [`report`]
//! sums up the deliveries to a trainer.

#![deny(clippy::print_stderr)]

mod authored;
mod dataset;
mod failure;
mod given;
mod images;
mod job;
mod list_error;
mod log;
mod memory;
mod options;
mod own;
mod rank_options;
pub mod report;
mod selection;
mod service;
pub mod signals;
mod trouble;
mod user_file;

pub use authored::AuthoredPipeline;
pub use dataset::{DatasetFiles, DatasetListing, DatasetLocation};
pub use failure::ProgramFailure;
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
pub use rank_options::{RankOptions, TailOption};
pub use selection::LeftOutFiles;
pub use service::{LocalService, NamedService, ServiceConnection, connect, needs_aws};
pub use user_file::{read_user_file, read_user_text};

/// The built-in operators, for a program without operators of its own.
pub fn operators() -> std::sync::Arc<gristmill_pipeline::OperatorRegistry> {
    std::sync::Arc::new(gristmill_operators::registry().clone())
}
