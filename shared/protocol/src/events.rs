//! Events that invoke the worker and the scaler function, and the scaler's books.

use crate::TrainingReport;
use gristmill_types::{InvocationId, JobName, Namespace};
use serde::{Deserialize, Serialize};

/// Starts one worker. It claims, works and leaves; nothing else is told to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEvent {
    pub v: u32,
    pub ns: Namespace,
    pub job: JobName,
    /// The worker's number in the scaler's books, never reused within a job.
    pub worker: u32,
}

/// Asks the scaler to look at a job. Sent by the coordinator when a trainer's report shows claimable
/// work and too few workers, and by a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalerEvent {
    pub v: u32,
    pub ns: Namespace,
    pub job: JobName,
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Workers on the books that nothing has been heard of for too long: their event was lost, or the
    /// word that they left. They are struck off.
    #[serde(default)]
    pub silent: Vec<u32>,
    /// Remote workers the job wants, or the most of them.
    pub wanted: u32,
    /// Whether the scaler decides how many.
    #[serde(default)]
    pub autoscale: bool,
    /// Workers that the job's budget pays for, where it has one.
    #[serde(default)]
    pub budget_workers: Option<u32>,
    /// What the trainer reported, if this is about it.
    #[serde(default)]
    pub report: Option<TrainingReport>,
    /// Changes when what workers do for a batch does, such as reading a cache instead of computing.
    #[serde(default)]
    pub mode: u32,
    /// Batches delivered to the trainer so far: the timeline's x axis.
    pub batches: u64,
    /// When the observation was made.
    pub at_ms: u64,
}

/// The scaler's item: which invocations are outstanding, and what was decided last.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ScaleState {
    /// Workers to hold while there is work; 0 before anything was decided.
    pub target: u32,
    /// What the scaling policy remembers between two reports, as JSON of its own.
    #[serde(default)]
    pub policy: Option<String>,
    /// Invocations that the platform refused since the report before.
    #[serde(default)]
    pub throttled: u32,
    /// The worker function, version included, that the job began with and keeps: workers of two
    /// versions might give different bytes.
    #[serde(default)]
    pub worker_function: Option<String>,
    /// Number the next worker gets.
    pub next_worker: u32,
    /// Invocations sent and not known to have ended (async events may still wait): (worker, sent_ms).
    pub outstanding: Vec<(u32, u64)>,
    /// Invocations reported dead last, oldest first, bounded: a claim that one of them had sent may
    /// still arrive.
    #[serde(default)]
    pub dead: Vec<InvocationId>,
    /// The latest decisions, oldest first, bounded.
    pub log: Vec<ScaleDecision>,
}

/// One change of the worker count, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleDecision {
    /// Batches delivered when it was made.
    pub batch: u64,
    /// Workers to hold after it.
    pub workers: u32,
    pub reason: String,
}
