//! Faults and their probabilities, drawn from the seed. Some simulations have many faults of few
//! kinds.

use crate::{
    FaultSimulation,
    objects::ModelledMemory,
    releases::{SimRelease, UpgradePlan},
};
use clap::ValueEnum;
use fastrand::Rng;
use gristmill_ports::{
    limits::{KeyedRates, PARTITION_WRITES_PER_S, QUERY_PAGE_BYTES, TokenBucket},
    memory::TableLimits,
};
use parking_lot::Mutex;
use std::{ops::Range, time::Duration};

/// One kind of fault. Those from [`FaultKind::RunRestarts`] on are of training with several ranks and drawn after the
/// others, those from [`FaultKind::StackReplaced`] on of upgrades, whose occasions are a minute at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// A process dies between two operations.
    WorkerDies,
    CoordinatorDies,
    ScalerDies,
    TrainerDies,
    /// A process freezes for up to ten minutes and resumes without noticing.
    Frozen,
    /// A call does not arrive.
    CallLost,
    /// A call has its effect, but its answer is lost.
    AnswerLost,
    /// A call arrives again: up to four times, up to six hours later.
    CallRepeated,
    TableFails,
    /// A write is applied and reported as failed.
    WriteUnreported,
    /// A write is applied, retried by the client library, and then conflicts with itself.
    WriteMeetsItself,
    /// A partition accepts few writes per second.
    WriteThrottled,
    PutFails,
    /// A put is applied and reported as failed.
    PutUnreported,
    /// A put is reported as failed and applied up to an hour later.
    PutLate,
    GetFails,
    /// An object arrives with a flipped bit.
    GetCorrupt,
    /// An existing object is not found.
    GetMissing,
    DeleteHalf,
    InvokeThrottled,
    InvokeFails,
    /// An event expires and is reported.
    EventDropped,
    /// An event runs two or three times under one request id.
    EventRepeated,
    EventLate,
    /// The platform's report of a worker's death is lost, or repeated hours later.
    ReportLost,
    ReportRepeated,
    /// A trainer resumes from a checkpoint before its last.
    OldCheckpoint,
    /// A second trainer reads the job.
    SecondTrainer,
    /// A call of the coordinator is answered with 403.
    CallDenied,
    /// A call of the object store is denied.
    ObjectDenied,
    /// A call of the table is denied.
    TableDenied,
    /// A chunk, or a cached split, is deleted by an outsider.
    ObjectVanishes,
    /// The worker version that jobs have pinned is deleted, and another deployed.
    VersionDeleted,
    /// A worker's notice of leaving never arrives, even if repeated.
    LeaveLost,
    /// For up to a minute the store accepts no objects.
    StoreFull,
    /// For up to a minute the store throttles.
    StoreThrottled,
    /// For up to a minute the table throttles.
    TableThrottled,
    /// For up to a minute everything takes forty times as long, and functions time out.
    Slow,
    /// A fetcher dies between two operations.
    FetcherDies,
    /// A fetcher dies while replacing its state file: the old or the new one remains.
    DiesSaving,
    /// The state file cannot be written.
    DiskFull,
    /// A fetcher is started with another job's state file, or an invalid one.
    WrongState,
    /// A client connects that is no trainer of this job, or leaves at once.
    WrongClient,
    /// A second trainer connects to the same fetcher.
    SecondClient,
    /// A scan's hint arrives outdated, as a mixture of two, or not at all.
    HintStale,
    HintTorn,
    HintLost,
    /// A repeated claim lacks the mark that it is repeated.
    ResentLost,
    /// The service is down for up to a minute: its workers die, and nobody answers.
    ServiceDown,
    /// The account's concurrency is exhausted: 429. Counted, not drawn: it depends on the workers.
    AccountFull,
    /// A byte of a stored chunk, cached split or index is changed for good, or its end is lost.
    ObjectDamaged,
    /// A local service starts again after a power cut, and its table has lost the last writes.
    WritesLost,
    /// A program joins the job and changes an option.
    OptionChanged,
    /// A launcher ends a run of several ranks, and starts another.
    RunRestarts,
    /// Fetchers and ranks of a superseded run go on for a while.
    OldRunWakes,
    /// A rank is slower than the others.
    RankSlow,
    /// A fetcher restarts on a machine without its state file.
    DiskLost,
    /// A rank that has had everything returns with the checkpoint after its last batch.
    FinishedRankReturns,
    /// Coordinator and scaler are replaced by those of the other release, and its worker function is added.
    StackReplaced,
    /// The programs on the trainers' hosts end, and those of the other release start.
    HostsReplaced,
    /// The coordinator's URL serves no more requests in this second: 429. Counted, not drawn.
    UrlThrottled,
    /// A bucket serves no more requests in this second: 503. Counted, not drawn.
    PrefixThrottled,
}

const KINDS: usize = FaultKind::PrefixThrottled as usize + 1;

impl FaultKind {
    /// The usual probability at each occasion; 0 for what is counted and not drawn.
    fn usual(self) -> f64 {
        use FaultKind::*;
        match self {
            UrlThrottled | PrefixThrottled => 0.0,
            Slow => 0.0003,
            TableThrottled | ServiceDown => 0.0005,
            TableDenied => 0.001,
            Frozen | StoreThrottled | FetcherDies => 0.002,
            CallDenied | ObjectDenied => 0.003,
            TrainerDies => 0.004,
            WorkerDies => 0.005,
            CoordinatorDies | TableFails | GetCorrupt | GetMissing | StoreFull | DiskFull => 0.01,
            CallLost | GetFails | ObjectVanishes | VersionDeleted | DiesSaving | ObjectDamaged => {
                0.02
            }
            AnswerLost | CallRepeated | WriteUnreported | WriteMeetsItself | PutFails
            | PutUnreported | PutLate => 0.03,
            ScalerDies | EventDropped => 0.05,
            DeleteHalf | InvokeThrottled | InvokeFails | EventRepeated | EventLate | HintStale
            | HintTorn | HintLost => 0.1,
            ReportLost | ReportRepeated | WritesLost | StackReplaced | HostsReplaced => 0.2,
            OldCheckpoint | SecondTrainer | LeaveLost | WrongState | SecondClient | ResentLost
            | OptionChanged | RankSlow | DiskLost | FinishedRankReturns => 0.3,
            WriteThrottled | WrongClient | RunRestarts | OldRunWakes => 0.5,
            AccountFull => 1.0,
        }
    }

    /// Whether it keeps workers from starting, from finishing, or from reporting it.
    #[allow(
        clippy::match_like_matches_macro,
        reason = "the formatter breaks a macro after each name"
    )]
    pub(crate) fn hinders(self) -> bool {
        use FaultKind::*;
        match self {
            WorkerDies | CoordinatorDies | ScalerDies | Frozen | CallLost | AnswerLost
            | TableFails | WriteThrottled | InvokeFails | InvokeThrottled | EventDropped
            | EventRepeated | EventLate | ReportRepeated | VersionDeleted | LeaveLost
            | PutFails | PutUnreported | StoreFull | StoreThrottled | TableThrottled
            | ObjectDenied | Slow | AccountFull | ServiceDown | UrlThrottled | PrefixThrottled => {
                true
            }
            _ => false,
        }
    }
}

/// The largest budget at first, in picodollars, and error of a clock under it.
const MOST_BUDGET: u64 = 6_000_000_000;
const BUDGET_SKEW: Duration = Duration::from_secs(30);
/// Longest duration of a lasting fault.
pub const LASTING_MAX: Duration = Duration::from_secs(60);

/// Probabilities of all faults in one simulation, and their end.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    probability: [f64; KINDS],
    /// End of the faults; afterwards everything must finish.
    pub until: Duration,
    /// The largest error of a clock.
    pub skew: Duration,
    /// Write units per second that a throttled partition accepts.
    pub partition_writes: u32,
    /// Concurrency of the account, if limited: (reserved for coordinators, others).
    pub concurrency: Option<(u32, u32)>,
    pub rates: SmallRates,
    pub memory: ModelledMemory,
    /// Picodollars that each job may spend at first, if that is limited.
    pub budget: Option<u64>,
    /// The release of the stack at the beginning.
    pub stack_release: SimRelease,
    /// That of the hosts.
    pub hosts_release: SimRelease,
    /// The upgrade that a test has chosen.
    pub upgrade: Option<UpgradePlan>,
}

impl FaultPlan {
    /// No faults.
    pub fn none() -> Self {
        Self {
            probability: [0.0; KINDS],
            until: Duration::ZERO,
            skew: Duration::ZERO,
            partition_writes: PARTITION_WRITES_PER_S,
            concurrency: None,
            rates: SmallRates::default(),
            memory: ModelledMemory::usual(),
            budget: None,
            stack_release: SimRelease::Present,
            hosts_release: SimRelease::Present,
            upgrade: None,
        }
    }

    /// No faults but an upgrade from the release before.
    pub fn upgrading(upgrade: UpgradePlan) -> Self {
        let release = SimRelease::Before;
        Self {
            upgrade: Some(upgrade),
            stack_release: release,
            hosts_release: release,
            ..Self::none()
        }
    }

    /// Only these faults, each at one occasion in twenty.
    pub fn only(faults: &[FaultKind], until: Duration) -> Self {
        let mut plan = Self { until, ..Self::none() };
        for fault in faults {
            plan.probability[*fault as usize] = 0.05;
        }
        plan
    }

    /// Draws the amount of each fault: none in half of the simulations, the usual one in a quarter, much in another. One
    /// simulation in four has at most three kinds.
    pub fn draw(random: &mut Rng) -> Self {
        let few = random.u8(0..4) == 0;
        let drawn = &FaultKind::value_variants()[..FaultKind::RunRestarts as usize];
        let chosen: [usize; 3] = std::array::from_fn(|_| random.usize(0..drawn.len()));
        let mut probability = [0.0; KINDS];
        for (i, fault) in drawn.iter().enumerate() {
            let amount = random.u8(0..4);
            probability[i] = match (few, amount) {
                (true, _) if !chosen.contains(&i) => 0.0,
                (false, 0 | 1) => 0.0,
                (_, 0..=2) => fault.usual(),
                _ => (fault.usual() * 4.0).min(0.6),
            };
        }
        let plan = Self {
            probability,
            until: Duration::from_secs(random.u64(30..600)),
            skew: Duration::from_secs(if random.bool() { 0 } else { 600 }),
            partition_writes: random.u64(2..20) as u32,
            concurrency: Some((random.u32(4..9), random.u32(2..8))),
            memory: ModelledMemory::draw(random),
            ..Self::none()
        };
        if plan.probability(FaultKind::AccountFull) > 0.0 {
            plan
        } else {
            Self { concurrency: None, ..plan }
        }
    }

    /// Draws each fault of several ranks in every other simulation.
    pub fn draw_ranks(&mut self, random: &mut Rng) {
        self.draw_some(FaultKind::RunRestarts..FaultKind::StackReplaced, random);
    }

    /// Draws a budget in one simulation of four. It is as much as a few workers cost for a minute.
    pub fn draw_budget(mut self, random: &mut Rng) -> Self {
        let cap = random.u64(0..MOST_BUDGET);
        if random.u8(0..4) > 0 {
            return self;
        }
        self.budget = Some(cap);
        // A budget holds with clocks that differ by a minute, and with a table that forgets nothing.
        self.skew = self.skew.min(BUDGET_SKEW);
        self.without(&[FaultKind::WritesLost])
    }

    /// Draws any release of stack and hosts, and in every other simulation each fault of upgrades.
    pub fn draw_releases(&mut self, random: &mut Rng) {
        self.draw_some(FaultKind::StackReplaced..FaultKind::UrlThrottled, random);
        let mut release = || [SimRelease::Before, SimRelease::Present][random.usize(0..2)];
        (self.stack_release, self.hosts_release) = (release(), release());
    }

    fn draw_some(&mut self, faults: Range<FaultKind>, random: &mut Rng) {
        for fault in &FaultKind::value_variants()[faults.start as usize..faults.end as usize] {
            self.probability[*fault as usize] = if random.bool() { fault.usual() } else { 0.0 };
        }
    }

    /// The plan without these faults.
    #[must_use]
    pub fn without(mut self, faults: &[FaultKind]) -> Self {
        for fault in faults {
            self.probability[*fault as usize] = 0.0;
        }
        self
    }

    /// The plan with at least the usual amount of each of these faults.
    #[must_use]
    pub fn with(mut self, faults: &[FaultKind]) -> Self {
        for fault in faults {
            let probability = &mut self.probability[*fault as usize];
            *probability = probability.max(fault.usual());
        }
        self
    }

    /// The probability at each occasion, from 0 to 1.
    pub fn probability(&self, fault: FaultKind) -> f64 {
        self.probability[fault as usize]
    }
}

/// Requests a second of the coordinator's URL, and of one bucket.
const URL: Range<u32> = 3..40;
const PREFIX: Range<u32> = 2..40;
/// Bytes of a page of a query, so few that a window has several.
const PAGE: Range<u32> = 1_000..20_000;

/// Rates a second, and the page of a query, if limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SmallRates {
    pub url: Option<u32>,
    /// The rate of a bucket: S3 divides one that is asked much, after a while.
    pub prefix: Option<u32>,
    /// Bytes of a page of a query. Other processes write between two pages.
    pub page_bytes: Option<u32>,
}

impl SmallRates {
    /// Each is limited in one simulation of four. `random` is a source of its own.
    pub fn draw(random: &mut Rng) -> Self {
        let mut one = |rates: Range<u32>| {
            let rate = random.u32(rates);
            (random.u8(0..4) == 0).then_some(rate)
        };
        Self { url: one(URL), prefix: one(PREFIX), page_bytes: one(PAGE) }
    }

    /// The limits of a table of which each partition key is written at `writes_per_s`.
    pub fn table_limits(&self, writes_per_s: u32) -> TableLimits {
        let page_bytes = self.page_bytes.map_or(QUERY_PAGE_BYTES, u64::from);
        TableLimits { page_bytes, writes_per_s: Some(writes_per_s), ..TableLimits::none() }
    }
}

/// The rest of the rates.
pub struct RemainingRates {
    url: Mutex<TokenBucket>,
    buckets: Mutex<KeyedRates>,
}

impl RemainingRates {
    /// All of `rates`, unused.
    pub fn new(rates: SmallRates) -> Self {
        let url = Mutex::new(TokenBucket::new(rates.url.unwrap_or_default()));
        Self { url, buckets: Mutex::new(KeyedRates::new(rates.prefix.unwrap_or_default())) }
    }
}

impl FaultSimulation {
    /// Whether the coordinator's URL rejects a request now.
    pub fn is_url_crowded(&self) -> bool {
        let is_crowded = self.plan.rates.url.is_some()
            && self.is_disturbed()
            && !self.rates.url.lock().take_one(self.time.now());
        if is_crowded {
            self.suffers(FaultKind::UrlThrottled);
        }
        is_crowded
    }

    /// Whether the store answers a request to `bucket` with 503 now.
    pub fn is_bucket_crowded(&self, bucket: &str) -> bool {
        let is_crowded = self.plan.rates.prefix.is_some()
            && self.is_disturbed()
            && !self.rates.buckets.lock().take_one(bucket, self.time.now());
        if is_crowded {
            self.suffers(FaultKind::PrefixThrottled);
        }
        is_crowded
    }
}
