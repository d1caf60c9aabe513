//! Turns leases into committed splits: claim, read the source, run the pipeline, store, commit.
//!
//! Both the worker function and the workers on a trainer's host run this loop; they differ only in where
//! finished splits go, which is the [`SplitSink`].

mod block_cache;
mod committer;
mod compute;
mod dataset;
mod described;
mod indexing;
mod lease;
mod parts;
mod sink;
mod split;
mod split_source;
mod worker;

pub use committer::FinishedSplit;
pub use compute::ComputeMode;
pub use indexing::IndexStore;
pub use lease::LeaseError;
pub use lease::SplitName;
pub use sink::{ClaimableBundles, LEVELS, ObjectSink, SplitSink, WorkerDismissal};
pub use worker::{JobContext, Runner, RunnerConfig, WorkerStopReason};
