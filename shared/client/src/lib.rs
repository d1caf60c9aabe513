//! The trainer's side: finds a service, lists a dataset, starts a job, and reports a run.
//!
//! [`connect`] finds a running [`ServiceConnection`], [`start_local`] starts one. [`ServiceConnection::submit`] starts or
//! joins a [`JobHandle`], and [`JobHandle::batches`] streams it with a [`Fetcher`](gristmill_stream::Fetcher). [`report`]
//! sums up the deliveries to a trainer.

#![deny(clippy::print_stderr)]

mod authored_pipeline;
mod dataset;
mod job;
mod options;
mod order;
mod planned;
mod program;
mod rank_options;
pub mod report;
pub mod sample;
mod selection;
mod service;
mod service_launcher;
mod shard;

pub use authored_pipeline::{AuthoredPipeline, folder_of, read_user_file, read_user_text};
pub use dataset::{DatasetFiles, DatasetListing, DatasetLocation, ListError};
pub use gristmill_executor::NUMERICS;
pub use gristmill_host::{AttachError, ServiceFile};
pub use job::{JobConfig, JobHandle, ResumeError};
pub use options::{
    GivenOptionNames, JobOptions, PlacementRule, ReportOptions, ServiceBackend, ServiceOptions,
    StreamOptions, WorkerCount, parse_budget,
};
pub use order::{ORDER_ELEMENTS, OrderOptions, OrderedPipeline, SizeMeasuring};
pub use planned::PlannedWorkers;
pub use program::{
    Interruption, InterruptionSignals, ProgramFailure, interruption, log_to_stderr, printable,
    return_large_buffers, survive_size_limits, write_stderr,
};
pub use rank_options::{RankOptions, ReplicaOption, TailOption};
pub use selection::LeftOutFiles;
pub use service::{LocalService, NamedService, ServiceConnection, connect, needs_aws};
pub use service_launcher::{ServiceLauncher, StartRefusal, start_local, start_own};
pub use shard::{DatasetShard, ShardOptions, ShardPolicy};

/// The built-in operators, for a program without operators of its own.
pub fn operators() -> std::sync::Arc<gristmill_pipeline::OperatorRegistry> {
    std::sync::Arc::new(gristmill_operators::registry().clone())
}
