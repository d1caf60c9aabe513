//! Calls of workers: claim a bundle, mark a split, commit splits, give the bundle back, leave.

use crate::splits::{SplitCommit, SplitPlace, WorkerTimes};
use crate::wire::{CacheOrders, WorkProfile};
use crate::{
    Attempt, BundleIndex, Compression, Epoch, ErrorPolicy, InvocationId, JobName, Nonce, Position,
    SkippedRecord,
};
use serde::{Deserialize, Serialize};

/// Asks for a bundle of splits to work on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClaimCall {
    pub job: JobName,
    /// When the job that the caller knows was registered; 0 if unknown. Another job may have the
    /// name by now.
    #[serde(default)]
    pub registered_ms: u64,
    pub nonce: Nonce,
    pub invocation: InvocationId,
    /// Numerics class of the caller.
    pub numerics: String,
    /// Time until the platform stops the caller.
    pub remaining_ms: u64,
    /// Predicted time for one split, from those already done; 0 when unknown.
    pub split_ms: u64,
    /// Runs inside a trainer's host and commits without objects.
    pub local: bool,
    /// An earlier sending of this claim got no answer and may have taken a lease.
    #[serde(default)]
    pub resent: bool,
    /// The split that the caller's trainer waits for: only its bundle is wanted, wherever the window is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed: Option<SplitPlace>,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum ClaimReply {
    Leased(Lease),
    Idle(IdleReply),
}

/// Location of a bundle in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BundlePartition {
    /// When the job was registered: no other job of the name shares its bundles.
    pub registered_ms: u64,
    pub partition: u32,
}

/// A lease as its owner names it in each call: the bundle, the attempt at it, and the claim's nonce.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    pub job: JobName,
    pub home: BundlePartition,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// A bundle leased to one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub home: BundlePartition,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub work: LeaseWork,
    /// The first position of the bundle; entries, marks and masks count from it.
    pub first: Position,
    /// Positions (or file indices) not yet committed, in the order to do them.
    pub todo: Vec<Position>,
    /// The control: a committed split to run first, discarding the result, when workers died on the
    /// first split of `todo`. A worker that dies on the control too has another cause of death.
    /// `None` in most leases.
    #[serde(default)]
    pub control: Option<SplitPlace>,
    /// Orders to store to a cache or read from it.
    #[serde(default)]
    pub cache: CacheOrders,
    /// The treatment of bad records, and the compression, as the job has them now.
    #[serde(default)]
    pub on_error: ErrorPolicy,
    #[serde(default)]
    pub compress: Compression,
}

impl Lease {
    /// The name of this lease, obtained by a claim with `nonce`.
    pub fn reference(&self, job: &JobName, nonce: Nonce) -> LeaseRef {
        let Self { home, epoch, bundle, attempt, .. } = *self;
        LeaseRef { job: job.clone(), home, epoch, bundle, attempt, nonce }
    }

    /// Whether each split is marked before it starts: from the second attempt on, to distinguish a
    /// split that kills its workers from a host that dies.
    pub fn marks(&self) -> bool {
        self.attempt >= 2
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseWork {
    /// Index source files; `todo` are file indices.
    Index,
    /// Preprocess splits; `todo` are positions.
    Splits,
}

/// Why there is nothing to claim now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReply {
    pub reason: IdleReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleReason {
    /// Workers are as far ahead of the trainer as they may be.
    WindowFull,
    /// Everything that may be claimed is.
    AllClaimed,
    /// The job has more workers than it wants.
    Surplus,
    /// The job is done, stopped or failed.
    JobEnded,
}

/// A split is about to be started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MarkCall {
    #[serde(flatten)]
    pub lease: LeaseRef,
    /// Index in the bundle.
    pub split_index: u8,
}

/// Commits splits and renews the lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlushCall {
    #[serde(flatten)]
    pub lease: LeaseRef,
    pub commits: Vec<SplitCommit>,
    /// The next split to start, if splits are marked; saves a call.
    pub next: Option<u8>,
    pub remaining_ms: u64,
    pub split_ms: u64,
    /// Time spent since the last flush.
    pub times: WorkerTimes,
    /// Times and yields of the operators, if the lease asks for them.
    #[serde(default)]
    pub profile: Option<WorkProfile>,
}

/// Gives a bundle back. With `fatal` the job fails, because a retry cannot succeed. If it is `blameless`, nothing
/// has failed, and it may be claimed at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FailCall {
    #[serde(flatten)]
    pub lease: LeaseRef,
    pub error: String,
    pub fatal: bool,
    pub record: Option<SkippedRecord>,
    #[serde(default)]
    pub blameless: bool,
}

/// The platform reported that an invocation died: the bundle that it held may be claimed at once. Or that it never ran.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReleaseCall {
    pub job: JobName,
    pub invocation: InvocationId,
    /// The worker's number within the job.
    pub worker: Option<u32>,
    /// The worker did not fail itself: no split is suspected.
    pub blameless: bool,
    /// Its event expired before the platform had room for it: no worker ran, and there is no lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// The platform's error, one line; empty if there is none.
    #[serde(default)]
    pub error: String,
}

/// A worker ends of its own accord.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaveCall {
    pub job: JobName,
    pub worker: u32,
    /// Why it could not work, one line; `None` if it did the work that there was.
    #[serde(default)]
    pub error: Option<String>,
}
