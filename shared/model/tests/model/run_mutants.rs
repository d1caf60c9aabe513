//! The transitions of runs, or one of them with a deliberate fault that the model must find.

use gristmill_model::Visitation;
use gristmill_model::splits::ranks::{KnownBatches, RankAssignment, RunRanks, TrainingStep};
use gristmill_model::splits::readers::{self, RankRange, ReaderProgress, ReaderReport};
use gristmill_model::splits::run::{self, PastRuns, RunJoin};
use gristmill_model::splits::{Cursor, JobProgress, TransitionOutcome, TransitionRefusal};
use std::num::NonZeroU32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMutation {
    None,
    /// Reports of any generation are merged.
    MergeIgnoresGeneration,
    /// A rank without a report counts as done.
    MissingReaderIsDone,
    /// The job moves to the greatest of its readers' cursors.
    GreatestForLeast,
    /// A step is durable once one of the ranks that take the same batch has saved it.
    DurableForOneReplica,
    /// Tokens of superseded runs are forgotten.
    PastTokenLetIn,
    /// Each rank takes the last batches if its own exists.
    TailPerRank,
    /// A rank takes its batch as soon as that one exists.
    StepReleasedInParts,
    /// Reports of a replaced reader take effect.
    ReplacedReaderReports,
}

impl RunMutation {
    /// Each mutation, with the invariant that finds it.
    pub const ALL: [(Self, u8); 8] = [
        (Self::MergeIgnoresGeneration, 21),
        (Self::MissingReaderIsDone, 21),
        (Self::GreatestForLeast, 21),
        (Self::DurableForOneReplica, 21),
        (Self::PastTokenLetIn, 22),
        (Self::TailPerRank, 19),
        (Self::StepReleasedInParts, 23),
        (Self::ReplacedReaderReports, 21),
    ];

    pub fn join(
        self,
        before: Option<&JobProgress>,
        command: &RunJoin,
    ) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
        let forgetful = before
            .filter(|_| self == Self::PastTokenLetIn)
            .map(|before| JobProgress { past: PastRuns::default(), ..*before });
        let before = forgetful.as_ref().or(before);
        // Each rank has a reader, so the reader of a run of one rank serves all of them.
        match command.run.ranks.count {
            NonZeroU32::MIN => run::join_alone(before, command, Visitation::ExactlyOnce, 0),
            _ => run::join(before, command, 0),
        }
    }

    pub fn report(
        self,
        before: Option<&ReaderProgress>,
        command: &ReaderReport,
    ) -> Result<TransitionOutcome<ReaderProgress>, TransitionRefusal> {
        match before {
            Some(before) if self == Self::ReplacedReaderReports => {
                let theirs = ReaderProgress { reader: command.reader, ..*before };
                readers::report(Some(&theirs), command, 0)
            }
            _ => readers::report(before, command, 0),
        }
    }

    pub fn merge(
        self,
        before: Option<&JobProgress>,
        reports: &[ReaderProgress],
    ) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
        let mut reports = reports.to_vec();
        let job = before.filter(|job| job.run.is_some());
        match (self, job) {
            (Self::MergeIgnoresGeneration, Some(job)) => {
                reports.iter_mut().for_each(|report| report.generation = job.generation);
            }
            (Self::MissingReaderIsDone, Some(job)) => {
                reports.retain(|report| report.generation == job.generation);
                let done = reports.first().copied();
                let count = job.run.map_or(0, |run| run.ranks.count.get());
                for first in 0..count {
                    let is_missing = reports.iter().all(|report| report.ranks.first != first);
                    if let Some(done) = done.filter(|_| is_missing) {
                        let ranks = RankRange { first, count: NonZeroU32::MIN };
                        let durable = Cursor { epoch: u32::MAX, batch_index: 0 };
                        reports.push(ReaderProgress { ranks, durable, ..done });
                    }
                }
            }
            (Self::DurableForOneReplica, Some(JobProgress { run: Some(run), .. }))
                if run.ranks.data_ranks() > 1 => {}
            (Self::GreatestForLeast | Self::DurableForOneReplica, Some(job)) => {
                reports.retain(|report| report.generation == job.generation);
                if let Some(most) = reports.iter().copied().max_by_key(|report| report.durable) {
                    for report in &mut reports {
                        *report = ReaderProgress { ranks: report.ranks, ..most };
                    }
                }
            }
            _ => {}
        }
        readers::merge(before, &reports, 0)
    }

    pub fn assign(
        self,
        ranks: &RunRanks,
        step: TrainingStep,
        rank: u32,
        known: KnownBatches,
    ) -> RankAssignment {
        let batch_index = ranks.first_of(step) + u64::from(ranks.data_rank(rank));
        let has_own = batch_index < known.count;
        match (self, ranks.assign(step, rank, known)) {
            (Self::TailPerRank, RankAssignment::End)
            | (Self::StepReleasedInParts, RankAssignment::Wait)
                if has_own =>
            {
                RankAssignment::Batch { batch_index }
            }
            (_, assignment) => assignment,
        }
    }
}
