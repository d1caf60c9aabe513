//! Deliberate mistakes: a simulation that does not catch them proves nothing.

use crate::Fault;

/// One mistake in the protocol or in what it stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A commit is taken from whoever sends it.
    CommitsWithoutOwner,
    /// Attempts at a split share one key.
    KeysWithoutAttempt,
    /// Splits that are cached share one key.
    CachedSplitsShareKeys,
    /// What was handed to the trainer is collected, checkpoint or not.
    CollectsDelivered,
    /// Objects that no entry names are deleted while their bundle is being worked on.
    CollectsEarly,
    /// A write that meets itself is taken for a failure.
    ConflictsAreFailures,
    /// An old trainer's progress counts.
    UnfencedAcks,
    /// Writes do not look at the version they replace.
    WritesUnconditionally,
    /// Workers may take all there is of the account, and the coordinator is left what they leave.
    NoHeadroom,
    /// Workers that nothing is heard of stay in the books.
    NobodyIsSilent,
    /// A store that is full, or throttles, is taken for one that says no.
    FullIsFinal,
    /// A table that throttles is taken for one that says no.
    ThrottlingIsFinal,
    /// A call that took too long is taken for one that was refused.
    SlowIsRefused,
    /// What says that something is cached goes before what is.
    EntryGoesFirst,
    /// An object that may not be read now is taken for one that never may.
    DenialIsFinal,
    /// So is a table.
    TableDenialIsFinal,
    /// A job keeps a worker version that is gone.
    PinnedForGood,
    /// A state file is read whatever job it is of.
    TakesAnyState,
    /// The state file is one write behind what was said of it.
    SavesUnsynced,
    /// The findings of the first look are believed for good.
    LooksOnce,
    /// The items that another claim read are believed for good.
    SharedForGood,
    /// A bundle that looked unclaimed is taken without a condition.
    ClaimsUnseen,
    /// A bundle that a hint names as come back is taken without a condition.
    NamedUnseen,
    /// Leases do not run out, nor does that of a claim whose answer was lost, sent again without a word of it.
    LeasesForGood,
}

impl Mutant {
    pub const ALL: [Self; 24] = [
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
    ];

    /// Faults without which nobody sees the mistake: worlds that make it have them.
    pub fn needs(self) -> &'static [Fault] {
        match self {
            Self::TakesAnyState => &[Fault::WrongState, Fault::FetcherDies],
            Self::SavesUnsynced => &[Fault::DiesSaving, Fault::FetcherDies],
            Self::NamedUnseen => &[Fault::HintStale, Fault::HintTorn],
            Self::LeasesForGood => &[Fault::AnswerLost, Fault::ResentLost],
            _ => &[],
        }
    }

    /// Whether it is one of the fetcher's server.
    pub fn is_of_serving(self) -> bool {
        matches!(self, Self::TakesAnyState | Self::SavesUnsynced)
    }
}
