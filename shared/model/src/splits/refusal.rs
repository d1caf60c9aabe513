//! Answers of transitions: an item to write, the fact that it is written already, or a refusal
//! that says what the caller does next.

use crate::splits::job_progress::Cursor;
use crate::splits::run::TrainingRun;
use crate::{Attempt, BundleIndex};

/// The result of a command that is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TransitionOutcome<T> {
    /// Write this item, on condition that the one decided on is still there.
    Write(T),
    /// The item already has the effect of this command: answer success, write nothing.
    AlreadyApplied(T),
}

impl<T: PartialEq> TransitionOutcome<T> {
    /// The item `after`, which is written if it differs from `before`.
    pub fn new(before: Option<&T>, after: T) -> Self {
        if before == Some(&after) { Self::AlreadyApplied(after) } else { Self::Write(after) }
    }
}

impl<T> TransitionOutcome<T> {
    /// The item after the command.
    pub fn item(&self) -> &T {
        match self {
            Self::Write(item) | Self::AlreadyApplied(item) => item,
        }
    }

    /// As [`TransitionOutcome::item`], by value.
    pub fn into_item(self) -> T {
        match self {
            Self::Write(item) | Self::AlreadyApplied(item) => item,
        }
    }

    /// This outcome with another item, which is written if it differs.
    #[must_use]
    pub fn with(self, change: impl FnOnce(T) -> T) -> Self
    where
        T: Clone + PartialEq,
    {
        match self {
            Self::Write(item) => Self::Write(change(item)),
            Self::AlreadyApplied(item) => Self::new(Some(&item), change(item.clone())),
        }
    }

    /// The item to write, if there is anything to write.
    pub fn write(&self) -> Option<&T> {
        match self {
            Self::Write(item) => Some(item),
            Self::AlreadyApplied(_) => None,
        }
    }
}

/// Why a command has no effect, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TransitionRefusal {
    /// Another worker holds the lease: try another bundle, or this one at `until_ms`.
    #[error("bundle is leased until {until_ms} ms: claim another")]
    Leased { until_ms: u64 },
    /// The bundle failed a moment ago: try another, or this one at `retry_at_ms`.
    #[error("bundle is not to be retried before {retry_at_ms} ms: claim another")]
    NotDue { retry_at_ms: u64 },
    /// Every split of the bundle is committed: try another.
    #[error("bundle is done: claim another")]
    Done,
    /// The bundle was given up: the job has failed with this error.
    #[error("bundle was given up: {error}")]
    Dead { error: String },
    /// The last owner died in `attempt`, working on split `split_index` if that is known: record
    /// the death in the death log, then claim the same bundle again with the log's answer.
    #[error("the owner of attempt {attempt} died: record its death, then claim again")]
    DeathUnrecorded { attempt: Attempt, split_index: Option<u8> },
    /// The lease is not (or no longer) the caller's: drop the work and claim again.
    #[error("the lease is no longer yours: drop the work and claim again")]
    Lost,
    /// The command contradicts a committed split: a fault of the caller, never retried.
    #[error("split {split_index} of the bundle is committed with other content: {what}")]
    Contradiction { split_index: u8, what: &'static str },
    /// The command can never be right.
    #[error("invalid command: {what}")]
    Invalid { what: &'static str },
    /// A newer generation of the trainer has joined: stop.
    #[error("trainer generation {generation} has taken over: stop this one")]
    Fenced { generation: u64 },
    /// Another reader serves these ranks now: stop.
    #[error("reader {reader} has taken over these ranks: stop this one")]
    Replaced { reader: u64 },
    /// The reader names the current run, and disagrees about it.
    #[error("the run has {run}, and this reader joins with {reader}: start all its readers alike")]
    RunDiffers { run: TrainingRun, reader: TrainingRun },
    /// A job whose batches are visited at most once goes on at what is durable, and not before.
    #[error(
        "the job's batches are visited at most once, and those before {durable} were: begin there"
    )]
    Collected { durable: Cursor },
    /// The epoch cannot be sealed: this bundle is not done.
    #[error("bundle {bundle} is not done: seal later")]
    NotDone { bundle: BundleIndex },
    /// More records were skipped than the job allows: fail the job.
    #[error(
        "{skipped} records of an epoch were skipped, and at most {max} may be: correct the data, \
         or raise --max-skipped"
    )]
    TooManySkipped { skipped: u64, max: u64 },
    /// The trainer still needs the epoch.
    #[error("the trainer still needs the epoch from {durable}: close later")]
    NotDurable { durable: Cursor },
    /// The epoch or job is past the state the command is for.
    #[error("already {state}: nothing to do")]
    Ended { state: &'static str },
}
