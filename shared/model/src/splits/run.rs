//! The run of a training program: which one a job's progress belongs to, and how its readers join.
//!
//! A run has one number of ranks and one beginning; a trainer that names no run is one of one rank. All readers of a
//! run name it by the same token; the first that joins begins it, the others find it begun. A later run, with any number of ranks,
//! takes over, and the tokens of earlier runs are refused from then on: a reader of an old run that
//! restarts must not take the job back.
//!
//! A run may begin at any checkpoint. Committed splits outlive their objects, so its readers compute
//! again what has been collected.

use crate::splits::ranks::RunRanks;
use crate::splits::{
    Cursor, JobProgress, ProgressAck, TransitionOutcome, TransitionRefusal, job_progress,
};
use crate::{Epoch, RunToken, Visitation};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The latest superseded runs, whose tokens a job's progress has. Earlier ones are items of their own.
pub const PAST_RUNS: usize = 8;

/// One run of a training program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrainingRun {
    pub token: RunToken,
    pub ranks: RunRanks,
    /// Epochs that it reads; none of a reader that takes those of its run, or else of the job.
    #[serde(default)]
    pub epochs: Option<Epoch>,
}

impl fmt::Display for TrainingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ranks)?;
        self.epochs.map_or(Ok(()), |epochs| write!(f, " for {epochs} epochs"))
    }
}

impl TrainingRun {
    /// Whether a reader that joins with `other` agrees on everything but the beginning.
    pub fn is_alike(&self, other: &Self) -> bool {
        let epochs = self.epochs.zip(other.epochs).is_none_or(|(own, other)| own == other);
        let (own, other) = (self.ranks, other.ranks);
        let all = |ranks: RunRanks| (ranks.count, ranks.replicas, ranks.tail);
        epochs && all(own) == all(other)
    }
}

/// The tokens of the latest superseded runs, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Vec<RunToken>", into = "Vec<RunToken>")]
pub struct PastRuns([Option<RunToken>; PAST_RUNS]);

impl PastRuns {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// Whether a run of this token was superseded.
    pub fn contains(&self, token: RunToken) -> bool {
        self.0.contains(&Some(token))
    }

    /// The oldest, if the next one takes its place.
    pub fn leaving(&self) -> Option<RunToken> {
        self.0[PAST_RUNS - 1]
    }

    /// These and `token`, without [`PastRuns::leaving`].
    #[must_use]
    pub fn with(self, token: RunToken) -> Self {
        let mut tokens: Vec<RunToken> = self.into();
        tokens.retain(|past| *past != token);
        tokens.insert(0, token);
        tokens.into()
    }
}

impl From<Vec<RunToken>> for PastRuns {
    fn from(tokens: Vec<RunToken>) -> Self {
        let mut past = Self::default();
        past.0.iter_mut().zip(tokens).for_each(|(place, token)| *place = Some(token));
        past
    }
}

impl From<PastRuns> for Vec<RunToken> {
    fn from(past: PastRuns) -> Self {
        past.0.into_iter().flatten().collect()
    }
}

/// A reader joins a run, or begins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunJoin {
    pub run: TrainingRun,
    /// The beginning of the run, should this reader be its first. `durable` is the run's first
    /// batch, or the next epoch if that batch does not exist.
    pub start: ProgressAck,
    /// The reader takes the place of an earlier one of the same run, so it may begin later.
    pub is_successor: bool,
}

impl RunJoin {
    fn check(&self) -> Result<(), TransitionRefusal> {
        let RunRanks { count, from, replicas, .. } = self.run.ranks;
        if replicas.data_ranks(count).is_none() {
            return Err(TransitionRefusal::Invalid { what: "replicas do not divide the ranks" });
        }
        let next_epoch = Cursor::start_of(from.epoch.saturating_add(1));
        let is_first = [from, next_epoch].contains(&self.start.durable);
        if is_first || self.is_successor {
            Ok(())
        } else {
            Err(TransitionRefusal::Invalid { what: "a run does not begin at its first batch" })
        }
    }
}

/// JOIN: the reader is one of the job's current run, or of a new run that takes over. Refuses with
/// [`TransitionRefusal::RunDiffers`] for a token of the current run with other ranks or another
/// beginning, [`TransitionRefusal::Fenced`] for a token of a superseded run or a generation that is
/// not newer, [`TransitionRefusal::Invalid`].
pub fn join(
    before: Option<&JobProgress>,
    command: &RunJoin,
    now_ms: u64,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    match agreed(before, command)? {
        Some((before, _)) => Ok(TransitionOutcome::AlreadyApplied(*before)),
        None => job_progress::begin(before, &command.start, command.run, now_ms),
    }
}

/// JOIN of a reader of all ranks. It acknowledges on the job's progress itself, so one that finds
/// another reader of its run there takes its place with a newer generation. Refuses as [`join`],
/// and with [`TransitionRefusal::Fenced`] if a reader has joined that it does not know of;
/// [`TransitionRefusal::Collected`] if batches that are durable would be visited again, and
/// `visitation` forbids that.
pub fn join_alone(
    before: Option<&JobProgress>,
    command: &RunJoin,
    visitation: Visitation,
    now_ms: u64,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    let run = agreed(before, command)?.map_or(command.run, |(_, current)| current);
    let RunJoin { start, .. } = command;
    if let Some(before) = before.filter(|_| visitation == Visitation::AtMostOnce)
        && start.generation > before.generation
        && start.durable < before.durable
    {
        return Err(TransitionRefusal::Collected { durable: before.durable });
    }
    job_progress::begin(before, start, run, now_ms)
}

/// The job's progress and its current run, if that is the run of `command` and both agree on it;
/// none if `command` may begin a new run.
fn agreed<'a>(
    before: Option<&'a JobProgress>,
    command: &RunJoin,
) -> Result<Option<(&'a JobProgress, TrainingRun)>, TransitionRefusal> {
    command.check()?;
    let RunJoin { run, start, is_successor } = command;
    let Some(before) = before else { return Ok(None) };
    let Some(current) = before.run.filter(|current| current.token == run.token) else {
        let is_late = before.past.contains(run.token) || start.generation <= before.generation;
        let fenced = TransitionRefusal::Fenced { generation: before.generation };
        return if is_late { Err(fenced) } else { Ok(None) };
    };
    let from = current.ranks.from;
    let begins_alike = run.ranks.from == from || *is_successor && run.ranks.from >= before.durable;
    if !current.is_alike(run) || !begins_alike {
        return Err(TransitionRefusal::RunDiffers { run: current, reader: *run });
    }
    Ok(Some((before, current)))
}

#[cfg(test)]
mod tests;
