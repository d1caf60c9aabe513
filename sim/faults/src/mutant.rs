//! Deliberate bugs, some of them put into what a coordinator reads or what a fetcher sends. A simulation that does not detect
//! them proves nothing.

use crate::FaultKind;
use bytes::Bytes;
use clap::ValueEnum;
use gristmill_model::{
    splits::{
        JobProgress, SplitPlace,
        ranks::TailPolicy,
        readers::ReaderProgress,
        run::{PastRuns, TrainingRun},
    },
    stored::keys,
    wire::{AnyCall, FIRST_MS, PollCall, ScaleState},
};
use gristmill_ports::{ItemKey, TableItem};
use serde::{Serialize, de::DeserializeOwned};
use std::num::NonZeroU32;

/// One bug in the protocol or below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
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
    /// A step is durable once one of the ranks that take the same batch has saved it.
    DurableForOneReplica,
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
    /// The ledger of a budget forgets the time of workers that it has paid for beyond the first.
    ForgetsPaidTime,
}

impl Mutant {
    /// Bugs that only training with several ranks can show.
    pub const OF_RANKS: [Self; 7] = [
        Self::MergesAnyGeneration,
        Self::MissingReaderIsDone,
        Self::GreatestForLeast,
        Self::DurableForOneReplica,
        Self::PastTokenLetIn,
        Self::TailPerRank,
        Self::JudgedBySlowest,
    ];

    /// Bugs that a trainer of one rank shows.
    pub fn single_rank() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|bug| !Self::OF_RANKS.contains(bug))
    }

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

    /// Whether it is a bug of budgets: simulations with it have one.
    pub fn is_of_budgets(self) -> bool {
        self == Self::ForgetsPaidTime
    }

    /// Whether it is a bug of the fetcher's server.
    pub fn is_of_serving(self) -> bool {
        matches!(self, Self::TakesAnyState | Self::SavesUnsynced)
    }
}

/// The items that a coordinator with the bug believes to have read.
pub fn read(
    mutant: Option<Mutant>,
    keys: &[ItemKey],
    mut items: Vec<Option<TableItem>>,
) -> Vec<Option<TableItem>> {
    if mutant == Some(Mutant::PastTokenLetIn) {
        for (key, item) in keys.iter().zip(&mut items) {
            if let Some(item) = item.as_mut().filter(|_| key.sk.starts_with("C#")) {
                change(item, |job: &mut JobProgress| job.past = PastRuns::default());
            }
        }
    }
    items
}

/// The reports of readers that a coordinator with the bug believes to have read; `job` is the stored
/// progress.
pub fn ranged(
    mutant: Option<Mutant>,
    job: Option<&TableItem>,
    mut found: Vec<(String, TableItem)>,
) -> Vec<(String, TableItem)> {
    let of_merge = [
        Mutant::MergesAnyGeneration,
        Mutant::MissingReaderIsDone,
        Mutant::GreatestForLeast,
        Mutant::DurableForOneReplica,
    ];
    if mutant.is_none_or(|mutant| !of_merge.contains(&mutant)) {
        return found;
    }
    let Some(job) = job.and_then(|job| serde_json::from_slice::<JobProgress>(&job.body).ok())
    else {
        return found;
    };
    let reports = || {
        let of = |(_, item): &(String, TableItem)| serde_json::from_slice(&item.body).ok();
        found.iter().filter_map(of).collect::<Vec<ReaderProgress>>()
    };
    let of_run = reports().into_iter().filter(|report| report.generation == job.generation);
    let (greatest, delivered) =
        of_run.fold((None, SplitPlace::default()), |(cursor, place), report| {
            let of = (report.durable, report.durable_place);
            (cursor.max(Some(of)), place.max(report.delivered))
        });
    let end = job.run.map_or(1, |run| run.ranks.count.get());
    let reports = reports();
    let firsts: Vec<u32> = reports.iter().map(|report| report.ranks.first).collect();
    for (sk, item) in &mut found {
        if !sk.starts_with("R#") {
            continue;
        }
        change(item, |report: &mut ReaderProgress| match mutant {
            Some(Mutant::MergesAnyGeneration) => report.generation = job.generation,
            Some(Mutant::MissingReaderIsDone) => {
                let first = report.ranks.first;
                let next = firsts.iter().copied().filter(|other| *other > first).min();
                let count = next.unwrap_or(end).saturating_sub(first);
                report.ranks.count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
            }
            Some(Mutant::GreatestForLeast) if report.generation == job.generation => {
                if let Some((durable, place)) = greatest {
                    (report.durable, report.durable_place) = (durable, place);
                    report.delivered = delivered;
                }
            }
            Some(Mutant::DurableForOneReplica) if report.generation == job.generation => {
                let Some(TrainingRun { ranks, .. }) = job.run else { return };
                let has = |other: &ReaderProgress, data_rank| ranks.takes(other.ranks, data_rank);
                let is_peer = |other: &&ReaderProgress| {
                    let mut all = 0..ranks.data_ranks();
                    let is_current = other.generation == job.generation;
                    is_current && all.all(|rank| has(other, rank) || !has(report, rank))
                };
                let furthest = reports.iter().filter(is_peer).max_by_key(|other| other.durable);
                if let Some(furthest) = furthest.copied() {
                    (report.durable, report.durable_place) =
                        (furthest.durable, furthest.durable_place);
                    report.delivered = furthest.delivered;
                }
            }
            _ => {}
        });
    }
    found
}

/// The item as a function with the bug writes it.
pub fn written(mutant: Option<Mutant>, key: &ItemKey, body: Bytes) -> Bytes {
    if mutant != Some(Mutant::ForgetsPaidTime) || key.sk != keys::SCALE {
        return body;
    }
    let Ok(mut state) = serde_json::from_slice::<ScaleState>(&body) else { return body };
    let paid = state.spending.iter_mut().flat_map(|ledger| ledger.workers.values_mut());
    paid.for_each(|worker| worker.limit_ms = FIRST_MS);
    serde_json::to_vec(&state).map_or(body, Bytes::from)
}

/// The call as a fetcher sends it that lets each rank decide on its last batches.
pub fn called(mutant: Option<Mutant>, call: &mut AnyCall) {
    if let (Some(Mutant::TailPerRank), AnyCall::Poll(PollCall { join: Some(join), .. })) =
        (mutant, call)
    {
        join.run.ranks.tail = TailPolicy::Drop;
    }
}

fn change<T: Serialize + DeserializeOwned>(item: &mut TableItem, with: impl FnOnce(&mut T)) {
    if let Ok(mut decoded) = serde_json::from_slice::<T>(&item.body) {
        with(&mut decoded);
        if let Ok(body) = serde_json::to_vec(&decoded) {
            item.body = Bytes::from(body);
        }
    }
}
