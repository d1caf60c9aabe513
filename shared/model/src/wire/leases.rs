//! Calls of workers: claim a bundle, mark a split, commit splits, give the bundle back, leave.

use crate::splits::{Commit, Place, WorkerTimes};
use crate::wire::calls::{Applied, Call};
use crate::wire::{CacheOrders, WorkProfile};
use crate::{Attempt, BundleIndex, Epoch, InvocationId, JobName, Nonce, Position, SkippedRecord};
use serde::{Deserialize, Serialize};

/// Asks for a bundle of splits to work on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claim {
    pub job: JobName,
    /// When the job that the caller knows was registered; 0 if it does not say. Another job may have the
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
    /// An earlier sending of this very claim was not answered: it may have got a lease.
    #[serde(default)]
    pub resent: bool,
}

impl Call for Claim {
    type Reply = ClaimReply;
    const NAME: &'static str = "claim";

    fn job(&self) -> Option<&JobName> {
        Some(&self.job)
    }

    fn note_resent(&mut self) {
        self.resent = true;
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum ClaimReply {
    Leased(Lease),
    Idle(Idle),
}

/// The home of a bundle in the table. The owner of a lease sends it back with every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Home {
    /// When the job was registered: no other job of the name shares its bundles.
    pub registered_ms: u64,
    pub partition: u32,
}

/// A bundle leased to one worker until `until_ms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub home: Home,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub work: Work,
    /// The first position of the bundle; entries, marks and masks count from it.
    pub first: Position,
    /// Positions (or file indices) not yet committed, in the order to do them.
    pub todo: Vec<Position>,
    /// A committed split to run again first, its result discarded: workers died of the first of `todo`, and
    /// one that dies of this one too does not die of that. None in most leases.
    #[serde(default)]
    pub control: Option<Place>,
    /// Orders to store to a cache or read from it.
    #[serde(default)]
    pub cache: CacheOrders,
}

impl Lease {
    /// A split is marked before it starts from the second attempt on, so that one which kills its
    /// workers can be told from a host that dies.
    pub fn marks(&self) -> bool {
        self.attempt >= 2
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Index source files; `todo` are file indices.
    Index,
    /// Preprocess splits; `todo` are positions.
    Splits,
}

/// Why there is nothing to claim now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub reason: IdleReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleReason {
    /// Workers are as far ahead of the trainer as they may be.
    WindowFull,
    /// Everything that may be claimed is.
    AllClaimed,
    /// Others are enough: the job wants fewer workers than it has.
    Surplus,
    /// The job is done, stopped or failed.
    JobEnded,
}

/// A split is about to be started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    pub job: JobName,
    pub home: Home,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
    /// Index in the bundle.
    pub split_index: u8,
}

impl Call for Mark {
    type Reply = Applied;
    const NAME: &'static str = "mark";

    fn job(&self) -> Option<&JobName> {
        Some(&self.job)
    }
}

/// Commits splits and renews the lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Flush {
    pub job: JobName,
    pub home: Home,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub commits: Vec<Commit>,
    /// The split to be started next, where splits are marked: saves a call.
    pub next: Option<u8>,
    pub remaining_ms: u64,
    pub split_ms: u64,
    /// Spent since the last flush.
    pub times: WorkerTimes,
    /// Times and yields of the operators, if the lease asks for them.
    #[serde(default)]
    pub profile: Option<WorkProfile>,
}

impl Call for Flush {
    type Reply = Applied;
    const NAME: &'static str = "flush";

    fn job(&self) -> Option<&JobName> {
        Some(&self.job)
    }
}

/// Gives a bundle back. `fatal` fails the job: trying again cannot help.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fail {
    pub job: JobName,
    pub home: Home,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub error: String,
    pub fatal: bool,
    pub record: Option<SkippedRecord>,
}

impl Call for Fail {
    type Reply = Applied;
    const NAME: &'static str = "fail";

    fn job(&self) -> Option<&JobName> {
        Some(&self.job)
    }
}

/// The platform reported that an invocation died: whatever it held may be claimed at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Release {
    pub job: JobName,
    pub invocation: InvocationId,
    /// The worker's number among those of the job.
    pub worker: Option<u32>,
    /// It did not fail itself: no split is suspected for it.
    pub blameless: bool,
    /// The platform's error, one line; empty if there is none.
    #[serde(default)]
    pub error: String,
}

impl Call for Release {
    type Reply = Applied;
    const NAME: &'static str = "release";

    fn job(&self) -> Option<&JobName> {
        Some(&self.job)
    }
}

/// A worker ends of its own accord.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Leave {
    pub job: JobName,
    pub worker: u32,
    /// Why it could not work, one line; none if it did what there was to do.
    #[serde(default)]
    pub error: Option<String>,
}

impl Call for Leave {
    type Reply = Applied;
    const NAME: &'static str = "leave";

    fn job(&self) -> Option<&JobName> {
        Some(&self.job)
    }
}
