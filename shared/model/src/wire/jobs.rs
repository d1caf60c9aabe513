//! Calls about a job: describe, status, stop, forget.

use crate::JobName;
use crate::splits::{Cursor, SplitPlace};
use crate::wire::{JobView, RunStatus, WorkProfile};
use serde::{Deserialize, Serialize};

/// Reads the job of that name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DescribeCall {
    pub job: JobName,
}

/// Reads the progress of a job. Read-only, unlike a poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusCall {
    pub job: JobName,
}

/// Status of a job, for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobStatus {
    pub job: JobView,
    /// The first place that the trainer's host has not taken in.
    pub delivered: SplitPlace,
    /// The next batch a restart of the trainer would need.
    pub durable: Cursor,
    /// When the trainer last reported progress, in milliseconds since the Unix epoch; 0 if never.
    pub heartbeat_ms: u64,
    /// Splits committed and not taken in.
    pub ready: u32,
    /// Splits that workers may run ahead of the trainer, for the target number of workers.
    #[serde(default)]
    pub window: u32,
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Distinct workers that hold an unexpired lease.
    pub active_workers: u32,
    /// Files indexed so far, while the job is indexing.
    pub indexed_files: u32,
    pub scale: crate::wire::ScaleState,
    /// Times and yields of operators, over the profiled splits.
    #[serde(default)]
    pub profile: WorkProfile,
    /// The reason why the job makes no progress, and the remedy under way, one line.
    #[serde(default)]
    pub trouble: Option<String>,
    /// The current run of the training program; none before the first.
    #[serde(default)]
    pub run: Option<RunStatus>,
}

/// Ends a job. One that has ended stays as it ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StopCall {
    pub job: JobName,
}

/// Deletes the items and objects of a job that has ended, which frees its name. A large job takes several calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForgetCall {
    pub job: JobName,
}

/// The answer to [`ForgetCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetReply {
    /// Items this call deleted.
    pub items: u64,
    /// Objects this call deleted.
    pub objects: u64,
    /// Nothing is left.
    pub all: bool,
}
