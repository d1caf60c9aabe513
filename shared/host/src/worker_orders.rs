//! The messages between a service and its worker processes: one JSON document a line, over the worker's standard input
//! and output.

use crate::ServiceFile;
use gristmill_model::wire::WorkerEvent;
use serde::{Deserialize, Serialize};

/// The first line to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerSetup {
    pub service: ServiceFile,
    /// Memory that the worker assumes, in MB.
    pub memory_mb: u32,
}

/// Each further line: work for one event. The worker ends when its standard input does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerOrder {
    pub event: WorkerEvent,
    /// Identifies the invocation.
    pub request: String,
    /// Unix time by which it must end.
    pub deadline_ms: u64,
}

/// A line from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerAnswer {
    /// The event is done; how it ended.
    Done(String),
    /// The event failed; why.
    Failed(String),
    /// Why the worker cannot go on at present; none when it can again.
    Trouble(Option<String>),
}
