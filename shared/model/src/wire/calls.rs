//! The coordinator's calls: the trait of a call, and the list of all.
//!
//! To add a call: declare it, add it to [`for_each_call!`](crate::for_each_call), and implement `Handle` for it in the
//! coordinator. The wire form, the counters and the dispatch follow from the list.

use crate::{
    Attempt, BundleIndex, Compression, Epoch, ErrorPolicy, Fingerprint, InvocationId, JobName,
    Namespace, Nonce, Position, SkippedRecord, WorkerRemoval,
    splits::{
        Cursor, SplitCommit, SplitOutcome, SplitPlace, TransitionRefusal, WorkerTimes,
        readers::{RankRange, ReaderProgress, ReaderReport},
        run::{RunJoin, TrainingRun},
    },
    wire::{
        CacheOrders, Dataset, InvocationAge, JobSpec, JobView, ListedCacheEntry, RegisterCall,
        SpokenVersions, TrainingReport, WorkProfile,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{fmt::Debug, num::NonZeroU32};

/// A call of the coordinator; implemented by the list. Safe to send again: a lost answer never causes a second effect.
pub trait CoordinatorCall:
    Into<AnyCall> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    type Reply: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Name on the wire, in logs and in counters: the variant's name in snake case.
    const NAME: &'static str;

    /// Extracts this call's reply from `reply`.
    fn reply_from(reply: AnyReply) -> Result<Self::Reply, Box<AnyReply>>;
}

/// The list of all calls: passes to the macro `$then` each variant with its call, the field that names the job, the
/// call's name, and its reply.
#[macro_export]
macro_rules! for_each_call {
    ($then:ident) => {
        $then! {
            Register(RegisterCall)[job] "register" JobView
            Describe(DescribeCall)[job] "describe" JobView
            Status(StatusCall)[job] "status" JobStatus
            Stop(StopCall)[job] "stop" JobView
            Forget(ForgetCall)[job] "forget" ForgetReply
            Poll(PollCall)[job] "poll" PollReply
            Claim(ClaimCall)[job] "claim" ClaimReply
            Mark(MarkCall)[lease.job] "mark" AppliedReply
            Flush(FlushCall)[lease.job] "flush" FlushReply
            Fail(FailCall)[lease.job] "fail" AppliedReply
            Release(ReleaseCall)[job] "release" AppliedReply
            Leave(LeaveCall)[job] "leave" AppliedReply
            CacheList(CacheListCall)[] "cache_list" CacheListReply
            CacheExplain(CacheExplainCall)[] "cache_explain" CacheExplainReply
            CacheRemove(CacheRemoveCall)[] "cache_remove" CacheRemoveReply
        }
    };
}

/// The name of the job that a call is about.
macro_rules! job_of {
    ($call:ident) => {{
        let _ = $call;
        None
    }};
    ($call:ident $($field:tt)+) => {
        Some(&$call.$($field)+)
    };
}

macro_rules! enumerate {
    ($($name:ident($call:ident)[$($job:tt)*] $text:literal $reply:ident)*) => {
        /// Any call, tagged with its name.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "call")]
        pub enum AnyCall {
            $($name($call),)*
        }

        /// The reply to any call, tagged with the name of the call; or a refusal.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "reply")]
        pub enum AnyReply {
            $($name($reply),)*
            Refused(CallRefusal),
        }

        impl AnyCall {
            /// [`CoordinatorCall::NAME`].
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $text,)*
                }
            }

            /// The job that the call is about, if any.
            pub fn job(&self) -> Option<&JobName> {
                match self {
                    $(Self::$name(call) => job_of!(call $($job)*),)*
                }
            }

        }

        impl AnyReply {
            /// The name of the call it answers.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $text,)*
                    Self::Refused(_) => "refused",
                }
            }
        }

        $(
            impl From<$call> for AnyCall {
                fn from(call: $call) -> Self {
                    Self::$name(call)
                }
            }

            impl CoordinatorCall for $call {
                type Reply = $reply;
                const NAME: &'static str = $text;

                fn reply_from(reply: AnyReply) -> Result<$reply, Box<AnyReply>> {
                    match reply {
                        AnyReply::$name(reply) => Ok(reply),
                        other => Err(Box::new(other)),
                    }
                }
            }
        )*

        #[cfg(test)]
        const NAMES: &[(&str, &str)] = &[$((stringify!($name), $text)),*];
    };
}

for_each_call!(enumerate);

impl AnyCall {
    /// Records in a claim that an earlier sending got no answer: it may have taken a lease.
    pub fn note_resent(&mut self) {
        if let Self::Claim(claim) = self {
            claim.resent = true;
        }
    }
}

/// One call, as POSTed: version and tenant first, so that they are checked before all else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallEnvelope {
    pub v: u32,
    pub ns: Namespace,
    #[serde(flatten)]
    pub call: AnyCall,
}

/// The write is applied, now or by an earlier sending of the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedReply {}

/// The commits are applied, now or by an earlier sending of the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlushReply {
    /// The job has more workers than it wants: the caller ends after the split at hand, and gives the others back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leave: bool,
}

/// Why a call had no effect, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CallRefusal {
    pub kind: RefusalKind,
    pub message: String,
}

/// The kind of a refusal, by what its caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Another worker has the lease now: drop the work and claim again.
    LeaseLost,
    /// A newer generation of the trainer has registered: stop.
    Fenced,
    /// The reader joins the current run with other ranks or another beginning than it was begun with.
    RunDiffers { run: TrainingRun },
    /// The call is malformed, or differs from what is registered: fix it.
    Invalid,
    /// No such job.
    NotFound,
    /// The job is done, or its batches are visited at most once and those after the cursor were.
    Collected,
    /// A passing fault: send again.
    Busy,
    /// The coordinator's table does not answer: send again.
    TableUnavailable,
    /// The coordinator's table is missing, or denies the coordinator.
    TableRejected,
    /// The coordinator does not speak the version of the call: send it in one that it speaks. Its form never changes, and
    /// peers before version 3 get [`RefusalKind::Invalid`] instead.
    OtherVersion { spoken: SpokenVersions },
}

impl From<TransitionRefusal> for CallRefusal {
    fn from(refusal: TransitionRefusal) -> Self {
        let kind = match refusal {
            TransitionRefusal::Lost
            | TransitionRefusal::Leased { .. }
            | TransitionRefusal::NotDue { .. }
            | TransitionRefusal::Done
            | TransitionRefusal::Dead { .. }
            | TransitionRefusal::DeathUnrecorded { .. } => RefusalKind::LeaseLost,
            TransitionRefusal::Fenced { .. } | TransitionRefusal::Replaced { .. } => {
                RefusalKind::Fenced
            }
            TransitionRefusal::Collected { .. } => RefusalKind::Collected,
            TransitionRefusal::NotDone { .. } | TransitionRefusal::NotDurable { .. } => {
                RefusalKind::Busy
            }
            TransitionRefusal::RunDiffers { run, .. } => RefusalKind::RunDiffers { run },
            TransitionRefusal::Contradiction { .. }
            | TransitionRefusal::Invalid { .. }
            | TransitionRefusal::TooManySkipped { .. }
            | TransitionRefusal::Ended { .. } => RefusalKind::Invalid,
        };
        Self { kind, message: refusal.to_string() }
    }
}

impl RefusalKind {
    /// Whether sending the same call again may succeed.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Busy | Self::TableUnavailable)
    }
}

/// Reads the job of that name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DescribeCall {
    pub job: JobName,
    /// The caller is a worker of a job with a budget, with the number and age of its invocation: it is refused if it is
    /// not expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admits: Option<(u32, InvocationAge)>,
}

impl DescribeCall {
    /// Asks for the job of that name.
    pub fn new(job: JobName) -> Self {
        Self { job, admits: None }
    }
}

/// Reads the progress of a job. Read-only, unlike a poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusCall {
    pub job: JobName,
}

/// Status of a job, for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobStatus {
    pub job: JobView,
    /// The first place that the trainer's host has not taken in.
    pub delivered: SplitPlace,
    /// The next batch a restart of the trainer would need.
    pub durable: Cursor,
    /// When the trainer last reported progress, in milliseconds since the Unix epoch; 0 if never.
    pub heartbeat_ms: u64,
    /// Splits committed and not taken in.
    pub ready: u32,
    /// Splits that workers may run ahead of the trainer, for the target number of workers.
    #[serde(default)]
    pub window: u32,
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Distinct workers that hold an unexpired lease.
    pub active_workers: u32,
    /// Files indexed so far, while the job is indexing.
    pub indexed_files: u32,
    pub scale: crate::wire::ScaleState,
    /// Times and yields of operators, over the profiled splits.
    #[serde(default)]
    pub profile: WorkProfile,
    /// The reason why the job makes no progress, and the remedy under way, one line.
    #[serde(default)]
    pub trouble: Option<String>,
    /// The current run of the training program; none before the first.
    #[serde(default)]
    pub run: Option<RunStatus>,
}

/// Ends a job. One that has ended stays as it ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StopCall {
    pub job: JobName,
}

/// Deletes the items and objects of a job that has ended, which frees its name. A large job takes several calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForgetCall {
    pub job: JobName,
}

/// The answer to [`ForgetCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetReply {
    /// Items this call deleted.
    pub items: u64,
    /// Objects this call deleted.
    pub objects: u64,
    /// Nothing is left.
    pub all: bool,
}

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
    /// The age of a remote worker of a job with a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<InvocationAge>,
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
    #[serde(rename = "home")]
    pub partition: BundlePartition,
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// A bundle leased to one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    #[serde(rename = "home")]
    pub partition: BundlePartition,
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
    /// How the worker leaves once it is not wanted any more.
    #[serde(default, skip_serializing_if = "WorkerRemoval::finishes_split")]
    pub removal: WorkerRemoval,
    /// Under a budget, the time after it sent the claim at which the worker ends, unless another lease lets it go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_on_ms: Option<u64>,
}

impl Lease {
    /// The name of this lease, obtained by a claim with `nonce`.
    pub fn reference(&self, job: &JobName, nonce: Nonce) -> LeaseRef {
        let Self { partition, epoch, bundle, attempt, .. } = *self;
        LeaseRef { job: job.clone(), partition, epoch, bundle, attempt, nonce }
    }

    /// Whether each split is marked before it starts: from the second attempt on, to distinguish a
    /// split that kills its workers from a host that dies.
    pub fn marks(&self) -> bool {
        self.attempt >= 2
    }
}

/// The work of a lease.
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

/// Why there is nothing to claim.
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
    /// The age of a worker of a job with a budget: it ends now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<InvocationAge>,
}

/// A reader joins its run, asks which splits are ready, and reports the progress of its ranks and its measurements.
///
/// The reader of all ranks reports on the job's progress itself; one of several reports for its own ranks, and the
/// reports are merged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PollCall {
    pub job: JobName,
    /// When the caller's job was registered, as its description says: a late call must not reach a later job of the
    /// name. 0: unknown.
    #[serde(default)]
    pub registered_ms: u64,
    /// The first place whose split the reader does not know yet.
    pub from: SplitPlace,
    /// The ranks that it serves, and how many its run has.
    pub ranks: RankRange,
    pub of: NonZeroU32,
    /// Sent until it is answered.
    pub join: Option<RunJoin>,
    /// The progress of the ranks, sent when it is worth a write.
    pub report: Option<ReaderReport>,
    pub metrics: TrainerMetrics,
    /// The basis of the scaler's decisions, sent about every hundred batches by the reader of rank 0.
    #[serde(default)]
    pub training: Option<TrainingReport>,
}

impl PollCall {
    /// Whether the caller serves all ranks of its run.
    pub fn is_alone(&self) -> bool {
        self.ranks == RankRange::all(self.of)
    }
}

/// The trainer's measurements since the last poll.
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

/// One committed split, ready to fetch (or, for local ones, to take from the host that ran it).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadySplit {
    pub place: SplitPlace,
    pub bundle: BundleIndex,
    /// With `nonce`, names the object.
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub outcome: SplitOutcome,
    /// Its share of the times of its bundle so far.
    #[serde(default)]
    pub times: WorkerTimes,
}

/// The answer to a poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PollReply {
    pub job: JobView,
    /// Generation of the job's latest run; 0 if there was none.
    pub generation: u64,
    /// The first split that the trainer has not taken in, as the table has it.
    #[serde(default)]
    pub delivered: SplitPlace,
    pub ready: Vec<ReadySplit>,
    /// Remote workers that hold an unexpired lease in the window.
    pub remote_workers: u32,
    /// Workers in trainers' hosts that hold one.
    pub local_workers: u32,
    /// Positions that may be claimed now: work waits for workers.
    pub claimable: u32,
    /// Nothing more is handed out until the trainer has taken some of what is ready.
    #[serde(default)]
    pub window_full: bool,
    /// Splits that workers may run ahead of the trainer, for the target number of workers;
    /// 0 before the first look.
    #[serde(default)]
    pub window: u32,
    /// Positions handed out or ready, and not delivered.
    #[serde(default)]
    pub ahead: u32,
    /// No worker holds the split that the trainer needs next.
    #[serde(default)]
    pub head_of_line_blocked: bool,
    /// Files indexed so far, while the job is indexing.
    pub indexed_files: u32,
    pub scale: crate::wire::ScaleState,
    /// The reason why the job makes no progress, and the remedy under way, one line.
    #[serde(default)]
    pub trouble: Option<String>,
    /// The run, and the reader's part in it.
    pub reader: ReaderStanding,
}

impl PollReply {
    /// Workers that hold a lease.
    pub fn active_workers(&self) -> u32 {
        self.remote_workers + self.local_workers
    }
}

/// Lists the cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheListCall {}

/// The answer to [`CacheListCall`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheListReply {
    pub entries: Vec<ListedCacheEntry>,
    /// Fingerprints of unfinished removals.
    #[serde(default)]
    pub removing: Vec<Fingerprint>,
}

/// Looks up a job's pipeline in the cache; registers nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheExplainCall {
    pub spec: JobSpec,
    pub dataset: Dataset,
}

/// The answer to [`CacheExplainCall`]: one look-up for each `autocache` point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheExplainReply {
    pub points: Vec<ExplainedCachePoint>,
}

/// The look-up of one `autocache` point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedCachePoint {
    /// The operator before the point.
    pub after: String,
    pub fingerprint: Fingerprint,
    pub hit: bool,
    /// The entry of a hit; for a miss, the differences from cached entries, one line each.
    pub why: Vec<String>,
}

/// Removes what is cached under a fingerprint, unless a living job reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheRemoveCall {
    pub fingerprint: Fingerprint,
}

/// The answer to [`CacheRemoveCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRemoveReply {
    /// Objects deleted.
    pub objects: u64,
}

/// The part of a reader in the job's current run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReaderStanding {
    /// None before the first run.
    pub run: Option<TrainingRun>,
    /// The number of the reader that serves these ranks as far as is known, 0 if none does.
    pub number: u64,
    /// Least time until the next poll.
    pub next_poll_ms: u64,
    /// Least time until the next report.
    pub next_report_ms: u64,
    /// The rank that keeps the job from moving on, one line; known to a poll that leads.
    #[serde(default)]
    pub uncovered: Option<String>,
}

/// The current run of a job's training program, and its readers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    pub run: TrainingRun,
    /// In order of rank.
    pub readers: Vec<ReaderStatus>,
    /// The ranks that the job waits for, and why, one line.
    #[serde(default)]
    pub uncovered: Option<String>,
    /// As [`JobProgress::ended`](crate::splits::JobProgress::ended).
    #[serde(default)]
    pub ended: Option<Cursor>,
}

/// One reader of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderStatus {
    pub progress: ReaderProgress,
    /// Batches that the furthest reader has taken in and this one has not.
    pub lag_batches: u64,
    /// Time since its latest report.
    pub silent_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ClaimReply, IdleReason, IdleReply};

    #[test]
    fn a_call_is_named_like_its_type() {
        for (name, on_wire) in NAMES {
            let mut snake = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            assert_eq!(snake, *on_wire);
        }
    }

    #[test]
    fn calls_and_replies_are_tagged_with_the_name_of_the_call() {
        let job: JobName = "j".parse().unwrap();
        let call = AnyCall::from(StatusCall { job });
        let request = CallEnvelope { v: 7, ns: "a".parse().unwrap(), call };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"v":7,"ns":"a","call":"status","job":"j"}"#);
        assert!(matches!(
            serde_json::from_str::<CallEnvelope>(&text).unwrap().call,
            AnyCall::Status(StatusCall { job }) if job.as_str() == "j"
        ));
        let text = r#"{"v":7,"ns":"a","call":"mark","job":"j","home":{"registered_ms":9,"partition":1},"epoch":2,"bundle":3,"attempt":4,"nonce":"0101010101010101","split_index":5}"#;
        let request = serde_json::from_str::<CallEnvelope>(text).unwrap();
        assert_eq!(request.call.job().map(JobName::as_str), Some("j"));
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        let list = serde_json::from_str::<CallEnvelope>(r#"{"v":7,"ns":"a","call":"cache_list"}"#);
        assert!(matches!(list.unwrap().call, AnyCall::CacheList(_)));
        let reply = AnyReply::Claim(ClaimReply::Idle(IdleReply { reason: IdleReason::Surplus }));
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(text, r#"{"reply":"claim","outcome":"idle","reason":"surplus"}"#);
        let reply = serde_json::from_str::<AnyReply>(&text).unwrap();
        let reply = *MarkCall::reply_from(reply).unwrap_err();
        assert!(matches!(ClaimCall::reply_from(reply), Ok(ClaimReply::Idle(_))));
        let forms = [(false, r#"{"reply":"flush"}"#), (true, r#"{"reply":"flush","leave":true}"#)];
        for (leave, form) in forms {
            let text = serde_json::to_string(&AnyReply::Flush(FlushReply { leave })).unwrap();
            assert_eq!(text, form);
            let read = serde_json::from_str(&text).unwrap();
            assert!(matches!(read, AnyReply::Flush(reply) if reply.leave == leave));
        }
    }
}
