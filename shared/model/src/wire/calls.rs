//! Calls to the coordinator and their replies.

use crate::wire::{CacheListed, CacheOrders, Dataset, JobSpec, JobView, Register, WorkProfile};
use crate::{
    Attempt, BundleIndex, Epoch, Fingerprint, InvocationId, JobName, Namespace, Nonce, Position,
    SkippedRecord,
};
use serde::{Deserialize, Serialize};

/// One call, as POSTed: version and tenant first, so that they are checked before all else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    pub v: u32,
    pub ns: Namespace,
    #[serde(flatten)]
    pub call: Call,
}

/// What a caller may ask of the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "call")]
pub enum Call {
    Register(Register),
    Describe {
        job: JobName,
    },
    /// Changes nothing, unlike a poll.
    Status {
        job: JobName,
    },
    Stop {
        job: JobName,
    },
    /// Deletes what there is of a job that has ended, so that its name is free.
    Forget {
        job: JobName,
    },
    Poll(Poll),
    Claim(Claim),
    Mark(Mark),
    Flush(Flush),
    Fail(Fail),
    Release(Release),
    Leave(Leave),
    /// What is cached.
    CacheList,
    /// What a job would find in the cache, and why not.
    CacheExplain(CacheExplain),
    CacheRemove(CacheRemove),
}

impl Call {
    /// The job it is about, if it is about one.
    pub fn job(&self) -> Option<&JobName> {
        Some(match self {
            Self::Register(call) => &call.job,
            Self::Describe { job }
            | Self::Status { job }
            | Self::Stop { job }
            | Self::Forget { job } => job,
            Self::Poll(call) => &call.job,
            Self::Claim(call) => &call.job,
            Self::Mark(call) => &call.job,
            Self::Flush(call) => &call.job,
            Self::Fail(call) => &call.job,
            Self::Release(call) => &call.job,
            Self::Leave(call) => &call.job,
            Self::CacheList | Self::CacheExplain(_) | Self::CacheRemove(_) => return None,
        })
    }

    /// Says, where it matters, that an earlier sending was not answered.
    pub fn note_resent(&mut self) {
        if let Self::Claim(claim) = self {
            claim.resent = true;
        }
    }

    /// The name of the call, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "register",
            Self::Describe { .. } => "describe",
            Self::Status { .. } => "status",
            Self::Stop { .. } => "stop",
            Self::Forget { .. } => "forget",
            Self::Poll(_) => "poll",
            Self::Claim(_) => "claim",
            Self::Mark(_) => "mark",
            Self::Flush(_) => "flush",
            Self::Fail(_) => "fail",
            Self::Release(_) => "release",
            Self::Leave(_) => "leave",
            Self::CacheList => "cache_list",
            Self::CacheExplain(_) => "cache_explain",
            Self::CacheRemove(_) => "cache_remove",
        }
    }
}

/// What the coordinator answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum Reply {
    Job(JobView),
    Status(JobStatus),
    Polled(Polled),
    Leased(Lease),
    Idle(Idle),
    Cached {
        entries: Vec<CacheListed>,
        /// Fingerprints of which a removal was begun and not finished.
        #[serde(default)]
        removing: Vec<Fingerprint>,
    },
    /// So many items and objects of a job are deleted, and whether that is all.
    Forgotten {
        items: u64,
        objects: u64,
        all: bool,
    },
    /// Gone from the cache, with so many objects.
    Removed {
        objects: u64,
    },
    Explained {
        points: Vec<PointFound>,
    },
    /// The write is applied (now, or by an earlier sending of the same call).
    Applied,
    Refused(Refusal),
}

/// Where a job stands, for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobStatus {
    pub job: JobView,
    /// The first (epoch, position) not taken in by the trainer's host.
    pub delivered: (Epoch, Position),
    /// The next batch (epoch, g) a restart of the trainer would need.
    pub durable: (Epoch, u64),
    /// When the trainer last said how far it is, in milliseconds since the Unix epoch; 0: never.
    pub heartbeat_ms: u64,
    /// Splits committed and not taken in.
    pub ready: u32,
    /// Splits that workers may run ahead of the trainer, of as many as there are to be now.
    #[serde(default)]
    pub window: u32,
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Distinct workers that hold an unexpired lease.
    pub active_workers: u32,
    /// Files indexed so far, while the job is indexing.
    pub indexed_files: u32,
    pub scale: crate::wire::ScaleState,
    /// What operators took and made, of the splits that were looked at closely.
    #[serde(default)]
    pub profile: WorkProfile,
    /// What keeps the job from going on, and what is done about it, one line.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// Why a call had no effect, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The lease belongs to somebody else now: drop the work and claim again.
    LeaseLost,
    /// A newer generation of this consumer has registered: stop.
    Fenced,
    /// The call is malformed, or differs from what is registered: fix it.
    Invalid,
    /// No such job.
    NotFound,
    /// The cursor lies behind what has been collected: those batches are gone.
    Collected,
    /// A passing fault: send again.
    Busy,
}

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

/// Where the coordinator keeps a bundle. Whoever holds its lease gives it back with every call.
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
    pub control: Option<(Epoch, Position)>,
    /// What is to be stored, or read, beside.
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

/// A split about to be started (`index` counts from the bundle's first position).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    pub job: JobName,
    pub home: Home,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub index: u8,
}

/// One finished split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    pub index: u8,
    /// No object was put: the bytes are with the trainer that ran it.
    pub local: bool,
    pub object_bytes: u64,
    /// What identifies its content: the checksum over the checksums of its frames.
    pub crc32c: u32,
    /// Records of an indexed file, or rows of a split.
    pub rows: u32,
    pub batches: u32,
    pub remainder_rows: u32,
    pub skipped: u32,
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
    pub cost: WorkerCost,
    /// What the operators took and made, where the lease asks for it.
    #[serde(default)]
    pub profile: Option<WorkProfile>,
}

/// What a bundle has cost its worker since the last flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerCost {
    pub source_ms: u32,
    pub compute_ms: u32,
    pub put_ms: u32,
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

/// The platform reported that an invocation died: whatever it held may be claimed at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Release {
    pub job: JobName,
    pub invocation: InvocationId,
    /// The worker's number in the scaler's books.
    pub worker: Option<u32>,
    /// It did not fail itself: no split is suspected for it.
    pub blameless: bool,
    /// What the platform says of its end, one line; empty if nothing.
    #[serde(default)]
    pub error: String,
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

/// Asks what of a job's pipeline is cached; registers nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheExplain {
    pub spec: JobSpec,
    pub dataset: Dataset,
}

/// What a look-up of one `autocache` point found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointFound {
    /// The operator before the point.
    pub after: String,
    pub fingerprint: Fingerprint,
    pub hit: bool,
    /// Of a hit what it is; of a miss what differs from what is cached, a line each.
    pub why: Vec<String>,
}

/// Removes what is cached under a fingerprint, unless a living job reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheRemove {
    pub fingerprint: Fingerprint,
}

/// The trainer's fetcher asks what is ready, says how far it is, and how training feels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Poll {
    pub job: JobName,
    /// The first (epoch, position) whose entry the fetcher does not know yet.
    pub from: (Epoch, Position),
    /// Present now and then: progress worth a write.
    pub ack: Option<Ack>,
    pub metrics: TrainerMetrics,
    /// Present about every hundred batches: what the scaler decides by.
    #[serde(default)]
    pub report: Option<TrainingReport>,
}

/// How far a consumer is. Fenced by generation, monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Chosen by the fetcher at start, larger than any before.
    pub generation: u64,
    /// The generation it found and takes over from, 0 if none.
    pub over: u64,
    /// Everything before this (epoch, position) has been handed to the trainer.
    pub delivered: (Epoch, Position),
    /// The next batch a restart would need: all before (epoch, g) is safe in a checkpoint.
    pub durable: (Epoch, u64),
    /// Objects of positions before this one are not needed to replay from `durable`.
    pub durable_position: (Epoch, Position),
}

/// What the trainer felt since the last poll.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainerMetrics {
    /// Mean time from one batch to the next, as the trainer saw it.
    pub batch_time_ms: f64,
    /// Part of that time spent waiting for data, 0 to 1.
    pub stall_fraction: f64,
    /// Batches delivered so far in the run, over all epochs.
    pub batches: u64,
    /// Batches fetched and not yet taken.
    pub queue_batches: u32,
}

/// How training and its workers did over about a hundred batches.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingReport {
    /// Batches delivered so far in the run, over all epochs: orders the reports.
    pub batches: u64,
    /// Mean time the trainer itself took for a batch.
    pub step_s: f64,
    /// Mean time it waited for one.
    pub stall_s: f64,
    /// Part of that in which the batch was committed, and on its way to the trainer.
    pub fetch_stall_s: f64,
    /// Batches fetched or ready, and not taken; mean over the polls.
    pub queue_batches: f64,
    /// Batches handed out to workers or ready, and not delivered, at the latest poll.
    pub ahead_batches: u64,
    /// Batches of one lease.
    pub lease_batches: u32,
    /// Part of the polls at which nothing was handed out because the window was full, 0 to 1.
    pub window_full: f64,
    /// Workers that held a lease, mean over the polls.
    pub workers: f64,
    /// What one worker spent on a batch, of the splits that became ready meanwhile.
    pub worker: Option<WorkerSeconds>,
}

/// Seconds of one worker for one batch, by what it did.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkerSeconds {
    pub source_s: f64,
    pub compute_s: f64,
    pub put_s: f64,
}

/// One committed split, ready to fetch (or, for local ones, to take from the host that ran it).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyEntry {
    pub epoch: Epoch,
    pub position: Position,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub kind: ReadyKind,
    pub object_bytes: u64,
    pub crc32c: u32,
    pub rows: u32,
    pub batches: u32,
    pub remainder_rows: u32,
    pub skipped: u32,
    /// Its share of what its bundle cost so far.
    #[serde(default)]
    pub cost: WorkerCost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadyKind {
    Object,
    Local,
    /// Every record of the split was given up.
    Poison,
}

/// The answer to a poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Polled {
    pub job: JobView,
    /// Of the run of the trainer that was heard of last; 0 if there was none.
    pub generation: u64,
    pub ready: Vec<ReadyEntry>,
    /// Distinct workers that hold an unexpired lease in the window.
    pub active_workers: u32,
    /// Positions that may be claimed now: work waits for workers.
    pub claimable: u32,
    /// Nothing more is handed out until the trainer has taken some of what is ready.
    #[serde(default)]
    pub window_full: bool,
    /// Splits that workers may run ahead of the trainer, of as many as there are to be now; 0 where nobody has
    /// looked yet.
    #[serde(default)]
    pub window: u32,
    /// Positions handed out or ready, and not delivered.
    #[serde(default)]
    pub ahead: u32,
    /// No worker has what the trainer needs next.
    #[serde(default)]
    pub head_waits: bool,
    /// Files indexed so far, while the job is indexing.
    pub indexed_files: u32,
    pub scale: crate::wire::ScaleState,
    /// What keeps the job from going on, and what is done about it, one line.
    #[serde(default)]
    pub trouble: Option<String>,
}
