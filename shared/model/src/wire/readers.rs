//! The readers of a training run, in answers to their polls and in `status`.

use crate::splits::run::TrainingRun;
use crate::splits::{Cursor, readers::ReaderProgress};
use serde::{Deserialize, Serialize};

/// The part of a reader in the job's current run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReaderStanding {
    /// None before the first run.
    pub run: Option<TrainingRun>,
    /// The number of the reader that serves these ranks as far as is known, 0 if none does.
    pub number: u64,
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
    /// As [`JobProgress::ended`](crate::splits::JobProgress::ended).
    #[serde(default)]
    pub ended: Option<Cursor>,
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
