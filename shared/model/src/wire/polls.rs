//! The trainer's poll and its answer: the splits that are ready.

use crate::splits::readers::{RankRange, ReaderReport};
use crate::splits::run::RunJoin;
use crate::splits::{SplitOutcome, SplitPlace, WorkerTimes};
use crate::wire::{JobView, ReaderStanding, TrainingReport};
use crate::{Attempt, BundleIndex, JobName, Nonce};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// A reader joins its run, asks which splits are ready, and reports the progress of its ranks and its measurements.
///
/// The reader of all ranks reports on the job's progress itself; one of several reports for its own ranks, and the
/// reports are merged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PollCall {
    pub job: JobName,
    /// When the caller's job was registered, as its description says: a late call must not reach a later job of the
    /// name. 0: unknown.
    #[serde(default)]
    pub registered_ms: u64,
    /// The first place whose split the reader does not know yet.
    pub from: SplitPlace,
    /// The ranks that it serves, and how many its run has.
    pub ranks: RankRange,
    pub of: NonZeroU32,
    /// Sent until it is answered.
    pub join: Option<RunJoin>,
    /// The progress of the ranks, sent when it is worth a write.
    pub report: Option<ReaderReport>,
    pub metrics: TrainerMetrics,
    /// The basis of the scaler's decisions, sent about every hundred batches by the reader of rank 0.
    #[serde(default)]
    pub training: Option<TrainingReport>,
}

impl PollCall {
    /// Whether the caller serves all ranks of its run.
    pub fn is_alone(&self) -> bool {
        self.ranks == RankRange::all(self.of)
    }
}

/// The trainer's measurements since the last poll.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainerMetrics {
    /// Mean time from one batch to the next, as the trainer saw it.
    pub batch_time_ms: f64,
    /// Part of that time spent waiting for data, 0 to 1.
    pub stall_fraction: f64,
    /// Batches delivered so far in the run, over all epochs.
    pub batches: u64,
    /// Batches fetched and not yet taken.
    pub queue_batches: u32,
}

/// One committed split, ready to fetch (or, for local ones, to take from the host that ran it).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadySplit {
    pub place: SplitPlace,
    pub bundle: BundleIndex,
    /// With `nonce`, names the object.
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub outcome: SplitOutcome,
    /// Its share of the times of its bundle so far.
    #[serde(default)]
    pub times: WorkerTimes,
}

/// The answer to a poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PollReply {
    pub job: JobView,
    /// Generation of the job's latest run; 0 if there was none.
    pub generation: u64,
    /// The first split that the trainer has not taken in, as the table has it.
    #[serde(default)]
    pub delivered: SplitPlace,
    pub ready: Vec<ReadySplit>,
    /// Remote workers that hold an unexpired lease in the window.
    pub remote_workers: u32,
    /// Workers in trainers' hosts that hold one.
    pub local_workers: u32,
    /// Positions that may be claimed now: work waits for workers.
    pub claimable: u32,
    /// Nothing more is handed out until the trainer has taken some of what is ready.
    #[serde(default)]
    pub window_full: bool,
    /// Splits that workers may run ahead of the trainer, for the target number of workers;
    /// 0 before the first look.
    #[serde(default)]
    pub window: u32,
    /// Positions handed out or ready, and not delivered.
    #[serde(default)]
    pub ahead: u32,
    /// No worker holds the split that the trainer needs next.
    #[serde(default)]
    pub head_of_line_blocked: bool,
    /// Files indexed so far, while the job is indexing.
    pub indexed_files: u32,
    pub scale: crate::wire::ScaleState,
    /// The reason why the job makes no progress, and the remedy under way, one line.
    #[serde(default)]
    pub trouble: Option<String>,
    /// The run, and the reader's part in it.
    pub reader: ReaderStanding,
}

impl PollReply {
    /// Workers that hold a lease.
    pub fn active_workers(&self) -> u32 {
        self.remote_workers + self.local_workers
    }
}
