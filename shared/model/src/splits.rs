//! The split table: which worker may run which splits, which are committed, how far the trainer is,
//! what may be collected, and in which order batches come. Pure: no I/O, no clock, no randomness.
//!
//! Every change of an item is a function `(before, command) -> Result<Outcome, Refusal>`; there is
//! no other way to change one. The caller reads an item with its version, decides here, and writes
//! the outcome on condition that the version is unchanged. If it has changed, the caller decides
//! again on the current item. A command that was applied, but whose answer was lost, is recognised
//! when it is sent again.
//!
//! [`invariants`] states each invariant once. The transitions check their own steps against them in
//! every build with debug assertions; the model checker and the simulation in `tests/` check whole
//! worlds.

pub mod batches;
mod bundle;
pub mod collect;
pub mod deaths;
pub mod epoch;
pub mod invariants;
pub mod job;
mod job_progress;
mod lease;
pub mod order;
mod plan;
pub mod ranges;
pub mod ranks;
pub mod readers;
mod refusal;
pub mod replicas;
pub mod run;
pub mod search;
mod view;
pub mod window;

pub(crate) use bundle::line_of;
pub use bundle::{
    Bundle, BundleState, CommittedSplit, MAX_BUNDLE_SPLITS, MAX_ERROR_BYTES, MAX_INVOCATION_BYTES,
    ObjectSizes, SplitCommit, SplitKind, SplitOutcome, SuspectSplit, TRIAL_ATTEMPTS, WorkerTimes,
};
pub use deaths::{DeathEvidence, DeathLog, DeathRecord, RECENT_DEATHS};
pub use job_progress::{
    Cursor, Horizon, INDEX_EPOCH, JobProgress, LackingSplits, ProgressAck, SplitPlace, ack,
    collected, made,
};
pub use lease::{
    BundleRetryLimits, ClaimTransition, FailTransition, FlushTransition, LapseTransition,
    LeaseTerm, MarkTransition, POISON_STRIKES, ReleaseTransition, claim, fail, flush, give_back,
    lapse, lease_until_ms, mark, release, retry_delay_ms, revive,
};
pub use plan::{SplitPlan, SplitVisit};
pub use readers::ReaderProgress;
pub use refusal::{TransitionOutcome, TransitionRefusal};
pub use view::{DatasetViewError, RecordRange, ZipMember};
