//! The poll of one reader among several of a training run, and what `status` says of them.
//!
//! A reader that serves all ranks of its run joins with this call too, and sends [`Poll`] from then
//! on.
//!
//! [`Poll`]: crate::wire::Poll

use crate::JobName;
use crate::splits::Place;
use crate::splits::readers::{RankRange, ReaderProgress, Report};
use crate::splits::run::{Join, TrainingRun};
use crate::wire::calls::Call;
use crate::wire::{Polled, TrainerMetrics, TrainingReport};
use serde::{Deserialize, Serialize};

/// A reader joins its run, asks which splits are ready, and reports the progress of its ranks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PollReader {
    pub job: JobName,
    /// When the caller's job was registered, as its description says: a late call must not reach a later job of the
    /// name. 0: unknown.
    #[serde(default)]
    pub registered_ms: u64,
    /// The first place whose split the reader does not know yet.
    pub from: Place,
    pub ranks: RankRange,
    /// Sent until it is answered.
    pub join: Option<Join>,
    /// The progress of the ranks, sent when it is worth a write.
    pub report: Option<Report>,
    pub metrics: TrainerMetrics,
    /// The basis of the scaler's decisions, from the reader of rank 0.
    #[serde(default)]
    pub training: Option<TrainingReport>,
}

impl Call for PollReader {
    type Reply = ReaderPolled;
    const NAME: &'static str = "poll_reader";
}

/// The answer to a reader's poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReaderPolled {
    #[serde(flatten)]
    pub polled: Polled,
    pub run: TrainingRun,
    /// The number of the reader that serves these ranks as far as is known, 0 if none does.
    pub reader: u64,
    /// Least time until the next poll.
    pub next_poll_ms: u64,
    /// Least time until the next report.
    pub next_report_ms: u64,
    /// The rank that keeps the job from moving on, one line; known to a poll that leads.
    #[serde(default)]
    pub uncovered: Option<String>,
}

/// The current run of a job's training program, and its readers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    pub run: TrainingRun,
    /// In order of rank.
    pub readers: Vec<ReaderStatus>,
    /// The ranks that the job waits for, and why, one line.
    #[serde(default)]
    pub uncovered: Option<String>,
}

/// One reader of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderStatus {
    pub progress: ReaderProgress,
    /// Batches that the furthest reader has taken in and this one has not.
    pub lag_batches: u64,
    /// Time since its latest report.
    pub silent_ms: u64,
}
