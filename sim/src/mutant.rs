//! Deliberate mistakes: a simulation that does not catch them proves nothing.

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
}

impl Mutant {
    pub const ALL: [Self; 8] = [
        Self::CommitsWithoutOwner,
        Self::KeysWithoutAttempt,
        Self::CachedSplitsShareKeys,
        Self::CollectsDelivered,
        Self::CollectsEarly,
        Self::ConflictsAreFailures,
        Self::UnfencedAcks,
        Self::WritesUnconditionally,
    ];
}
