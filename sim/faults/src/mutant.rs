//! Deliberate bugs. A simulation that does not detect them proves nothing.

use crate::FaultKind;

/// One bug in the protocol or below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A commit is accepted from any sender.
    CommitsWithoutOwner,
    /// Attempts at a split share one key.
    KeysWithoutAttempt,
    /// Cached splits share one key.
    CachedSplitsShareKeys,
    /// Delivered batches are collected before the trainer has checkpointed them.
    CollectsDelivered,
    /// Objects that no entry names are deleted while their bundle is being worked on.
    CollectsEarly,
    /// A repeated write that finds itself applied is treated as a failure.
    ConflictsAreFailures,
    /// Acknowledgements of an earlier generation count.
    UnfencedAcks,
    /// Writes do not check the version they replace.
    WritesUnconditionally,
    /// Workers may use all of the account's concurrency; none is reserved for the coordinator.
    NoHeadroom,
    /// Silent workers are never removed from the scaler's state.
    NobodyIsSilent,
    /// A full or throttling store is treated as a permanent error.
    FullIsFinal,
    /// A throttling table is treated as a permanent error.
    ThrottlingIsFinal,
    /// A call that timed out is treated as refused.
    SlowIsRefused,
    /// A cache entry is deleted before its objects.
    EntryGoesFirst,
    /// A denied object is treated as a permanent error.
    DenialIsFinal,
    /// A denied table is treated as a permanent error.
    TableDenialIsFinal,
    /// A job keeps a deleted worker version.
    PinnedForGood,
    /// A state file is accepted regardless of its job.
    TakesAnyState,
    /// The state file lags one write behind its acknowledgement.
    SavesUnsynced,
    /// Results of the first scan are cached forever.
    LooksOnce,
    /// Items read by another claim are cached forever.
    SharedForGood,
    /// A bundle that appeared unclaimed is claimed without a condition.
    ClaimsUnseen,
    /// A bundle that a hint names as released is claimed without a condition.
    NamedUnseen,
    /// Leases never expire, nor does the claim whose lost answer was requested again without saying so.
    LeasesForGood,
    /// Reports of readers of any generation are merged.
    MergesAnyGeneration,
    /// A rank without a reader counts as done.
    MissingReaderIsDone,
    /// The job moves to the greatest of its readers' cursors.
    GreatestForLeast,
    /// Tokens of superseded runs are forgotten.
    PastTokenLetIn,
    /// Each rank takes the last batches of an epoch if its own exists.
    TailPerRank,
    /// A full store stops all claims, also that of the split which the trainer waits for.
    StoreStopsClaims,
    /// The claim of a needed split is judged by the slowest of all readers.
    JudgedBySlowest,
    /// The coordinator takes calls, and so jobs, of a newer version than the rest of its stack speaks.
    TakesNewerJobs,
    /// Each release speaks its own version alone.
    SpeaksOneVersion,
}

impl Mutant {
    /// Bugs that only training with several ranks can show.
    pub const OF_RANKS: [Self; 6] = [
        Self::MergesAnyGeneration,
        Self::MissingReaderIsDone,
        Self::GreatestForLeast,
        Self::PastTokenLetIn,
        Self::TailPerRank,
        Self::JudgedBySlowest,
    ];

    pub const ALL: [Self; 27] = [
        Self::CommitsWithoutOwner,
        Self::KeysWithoutAttempt,
        Self::CachedSplitsShareKeys,
        Self::CollectsDelivered,
        Self::CollectsEarly,
        Self::ConflictsAreFailures,
        Self::UnfencedAcks,
        Self::WritesUnconditionally,
        Self::NoHeadroom,
        Self::NobodyIsSilent,
        Self::FullIsFinal,
        Self::ThrottlingIsFinal,
        Self::SlowIsRefused,
        Self::EntryGoesFirst,
        Self::DenialIsFinal,
        Self::TableDenialIsFinal,
        Self::PinnedForGood,
        Self::TakesAnyState,
        Self::SavesUnsynced,
        Self::LooksOnce,
        Self::SharedForGood,
        Self::ClaimsUnseen,
        Self::NamedUnseen,
        Self::LeasesForGood,
        Self::StoreStopsClaims,
        Self::TakesNewerJobs,
        Self::SpeaksOneVersion,
    ];

    /// Faults required to expose the bug; simulations with it have them.
    pub fn needs(self) -> &'static [FaultKind] {
        match self {
            Self::TakesAnyState => &[FaultKind::WrongState, FaultKind::FetcherDies],
            Self::SavesUnsynced => &[FaultKind::DiesSaving, FaultKind::FetcherDies],
            Self::NamedUnseen => &[FaultKind::HintStale, FaultKind::HintTorn],
            Self::LeasesForGood => &[FaultKind::AnswerLost, FaultKind::ResentLost],
            Self::MergesAnyGeneration => &[FaultKind::RunRestarts, FaultKind::OldCheckpoint],
            Self::PastTokenLetIn => &[FaultKind::RunRestarts, FaultKind::OldRunWakes],
            Self::TakesNewerJobs | Self::SpeaksOneVersion => {
                &[FaultKind::StackReplaced, FaultKind::HostsReplaced]
            }
            _ => &[],
        }
    }

    /// Whether it is a bug of bounds on memory: simulations with it have the tightest ones, and local workers.
    pub fn is_of_memory(self) -> bool {
        matches!(self, Self::StoreStopsClaims | Self::JudgedBySlowest)
    }

    /// Whether it is a bug of the fetcher's server.
    pub fn is_of_serving(self) -> bool {
        matches!(self, Self::TakesAnyState | Self::SavesUnsynced)
    }
}
