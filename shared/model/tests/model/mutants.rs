//! The protocol of the model: the real transitions, or one of them with a deliberate fault, to show
//! that the model would find it.

use gristmill_model::splits::collect::{self, ChunkName, CollectionDecision};
use gristmill_model::splits::run::{RunJoin, join_alone};
use gristmill_model::splits::{
    Bundle, BundleRetryLimits, BundleState, ClaimTransition, DeathEvidence, DeathLog, DeathRecord,
    FailTransition, FlushTransition, JobProgress, MarkTransition, ProgressAck, ReleaseTransition,
    SplitPlace, TransitionOutcome, TransitionRefusal, ack, claim, collected, fail, flush, mark,
    release,
};
use gristmill_model::{Position, Visitation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// FLUSH commits for any caller.
    CommitWithoutOwner,
    /// Two attempts of one worker write to one key.
    KeyWithoutAttempt,
    /// The horizon follows what was delivered instead of what is durable.
    CollectByDelivered,
    /// Objects that are not committed yet count as orphans.
    CollectOrphansBeforeDone,
    /// A retry that finds its own write reports failure.
    ConditionFailedIsFailure,
    /// Reports of an old run of the trainer take effect.
    UnfencedAck,
    /// RELEASE ends any lease.
    ReleaseUnchecked,
    /// Deaths elsewhere do not end a suspicion.
    PoisonUnisolated,
    /// A death counts although no control succeeded before it.
    PoisonWithoutControl,
    /// Deaths on unknown splits are not recorded.
    UnmarkedDeathsForgotten,
}

impl Mutation {
    pub const ALL: [Self; 10] = [
        Self::CommitWithoutOwner,
        Self::KeyWithoutAttempt,
        Self::CollectByDelivered,
        Self::CollectOrphansBeforeDone,
        Self::ConditionFailedIsFailure,
        Self::UnfencedAck,
        Self::ReleaseUnchecked,
        Self::PoisonUnisolated,
        Self::PoisonWithoutControl,
        Self::UnmarkedDeathsForgotten,
    ];

    pub fn record(
        self,
        before: Option<&DeathLog>,
        death: DeathRecord,
        is_marked: bool,
    ) -> TransitionOutcome<DeathLog> {
        match before {
            Some(log) if self == Self::UnmarkedDeathsForgotten && !is_marked => {
                TransitionOutcome::AlreadyApplied(log.clone())
            }
            _ => DeathLog::record(before, death, is_marked),
        }
    }

    pub fn claim(
        self,
        before: Option<&Bundle>,
        command: &ClaimTransition<'_>,
        limits: &BundleRetryLimits,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        let mut command = command.clone();
        let suspect = before.and_then(|before| before.suspect);
        if let (Self::PoisonUnisolated, Some(suspect), Some(death)) = (self, suspect, command.death)
        {
            command.death = Some(DeathEvidence { ordinal: Some(suspect.ordinal + 1), ..death });
        }
        if let (Self::PoisonWithoutControl, Some(real)) = (self, before) {
            let control = Some(SplitPlace::default());
            let after = claim(Some(&Bundle { control, ..real.clone() }), &command, limits)?;
            return Ok(match after {
                TransitionOutcome::AlreadyApplied(_) => {
                    TransitionOutcome::AlreadyApplied(real.clone())
                }
                write => write,
            });
        }
        claim(before, &command, limits)
    }

    pub fn mark(
        self,
        before: Option<&Bundle>,
        command: &MarkTransition,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        mark(before, command)
    }

    pub fn flush(
        self,
        before: Option<&Bundle>,
        command: &FlushTransition<'_>,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        let open = |b: &&Bundle| !matches!(b.state, BundleState::Done | BundleState::Dead);
        let Some(real) = before.filter(|_| self == Self::CommitWithoutOwner).filter(open) else {
            return self.answer(flush(before, command));
        };
        let (attempt, owner) = (command.attempt, command.nonce);
        let theirs = Bundle { attempt, owner, state: BundleState::Leased, ..real.clone() };
        let mut after = flush(Some(&theirs), command)?.into_item();
        (after.attempt, after.owner) = (real.attempt, real.owner);
        if after.state == BundleState::Leased {
            after.state = real.state;
        }
        Ok(TransitionOutcome::Write(after))
    }

    pub fn fail(
        self,
        before: Option<&Bundle>,
        command: &FailTransition<'_>,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        fail(before, command)
    }

    fn answer<T>(
        self,
        answer: Result<TransitionOutcome<T>, TransitionRefusal>,
    ) -> Result<TransitionOutcome<T>, TransitionRefusal> {
        match answer {
            Ok(TransitionOutcome::AlreadyApplied(_)) if self == Self::ConditionFailedIsFailure => {
                Err(TransitionRefusal::Lost)
            }
            answer => answer,
        }
    }

    pub fn release(
        self,
        before: Option<&Bundle>,
        command: &ReleaseTransition<'_>,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        match before {
            Some(bundle) if self == Self::ReleaseUnchecked => release(
                before,
                &ReleaseTransition {
                    invocation: &bundle.invocation,
                    attempt: None,
                    blameless: false,
                },
            ),
            _ => release(before, command),
        }
    }

    pub fn key(self, name: ChunkName) -> ChunkName {
        match self {
            Self::KeyWithoutAttempt => ChunkName { attempt: 0, ..name },
            _ => name,
        }
    }

    pub fn join(
        self,
        before: Option<&JobProgress>,
        command: &RunJoin,
    ) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
        join_alone(before, command, Visitation::ExactlyOnce, 0)
    }

    pub fn ack(
        self,
        before: Option<&JobProgress>,
        command: &ProgressAck,
    ) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
        match before {
            Some(before) if self == Self::UnfencedAck => {
                ack(Some(before), &ProgressAck { generation: before.generation, ..*command }, 0)
            }
            _ => ack(before, command, 0),
        }
    }

    pub fn collected(
        self,
        before: Option<&JobProgress>,
    ) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
        match before {
            Some(real) if self == Self::CollectByDelivered => {
                let doctored = JobProgress { durable_place: real.delivered, ..*real };
                let after = collected(Some(&doctored))?.into_item();
                Ok(TransitionOutcome::Write(JobProgress {
                    durable_place: real.durable_place,
                    ..after
                }))
            }
            _ => collected(before),
        }
    }

    pub fn decide(
        self,
        object: &ChunkName,
        bundle: Option<&Bundle>,
        first: Position,
        horizon: SplitPlace,
    ) -> CollectionDecision {
        match bundle {
            Some(bundle) if self == Self::KeyWithoutAttempt => {
                let at = u8::try_from(object.position - first).unwrap();
                let attempt = bundle.entry(at).map_or(0, |entry| entry.attempt);
                let object = ChunkName { attempt, ..*object };
                collect::decide(&object, Some(bundle), first, horizon, false)
            }
            Some(bundle) if self == Self::CollectOrphansBeforeDone => {
                let done = Bundle { state: BundleState::Done, ..bundle.clone() };
                collect::decide(object, Some(&done), first, horizon, false)
            }
            _ => collect::decide(object, bundle, first, horizon, false),
        }
    }
}
