//! What goes wrong, and how often: drawn from the seed, so that some worlds see one kind of fault
//! only, and much of it.

use fastrand::Rng;
use std::time::Duration;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process dies between two lines.
    WorkerDies,
    CoordinatorDies,
    ScalerDies,
    TrainerDies,
    /// A process stands still for up to ten minutes and then goes on, not knowing.
    Frozen,
    /// A call does not arrive.
    CallLost,
    /// A call has its effect, its answer is lost.
    AnswerLost,
    /// A call arrives again: up to four times, up to six hours later.
    CallRepeated,
    TableFails,
    /// A write is applied and reported as failed.
    WriteUnreported,
    /// A write is applied, sent again by the client library, and then meets itself.
    WriteMeetsItself,
    /// A partition takes few writes a second.
    WriteThrottled,
    PutFails,
    /// A put is applied and reported as failed.
    PutUnreported,
    /// A put is reported as failed and applied up to an hour later.
    PutLate,
    GetFails,
    /// An object arrives with a flipped bit.
    GetCorrupt,
    /// An object that is there is not found.
    GetMissing,
    DeleteHalf,
    InvokeThrottled,
    InvokeFails,
    /// An event is dropped for its age and reported.
    EventDropped,
    /// An event runs two or three times under one name.
    EventRepeated,
    EventLate,
    /// The platform's report of a worker's death does not come, or comes again hours later.
    ReportLost,
    ReportRepeated,
    /// A trainer goes back to a checkpoint before its last.
    OldCheckpoint,
    /// A second trainer reads the job.
    SecondTrainer,
    /// One call of the coordinator is answered with 403.
    CallDenied,
    /// One call of the object store is.
    ObjectDenied,
    /// One call of the table is.
    TableDenied,
    /// A chunk, or what is cached of a split, is deleted behind everybody's back.
    ObjectVanishes,
    /// The worker version that jobs have kept is deleted, and another deployed.
    VersionDeleted,
    /// A worker's word that it leaves never arrives, however often it is sent.
    LeaveLost,
    /// For up to a minute the store takes no object.
    StoreFull,
    /// For up to a minute the store asks everybody to slow down.
    StoreThrottled,
    /// For up to a minute the table does.
    TableThrottled,
    /// For up to a minute all takes forty times as long, and functions end at their time limits.
    Slow,
    /// A fetcher dies between two lines.
    FetcherDies,
    /// It dies while it replaces its state file: the old one is there then, or the new one.
    DiesSaving,
    /// The state file cannot be written.
    DiskFull,
    /// A fetcher is started with a state file that is of another job, or of none.
    WrongState,
    /// Somebody connects who is no trainer of this job, or leaves at once.
    WrongClient,
    /// A second trainer connects to the same fetcher.
    SecondClient,
    /// The hint that a look left behind arrives as it was some time ago, as of two times at once, or not at all.
    HintStale,
    HintTorn,
    HintLost,
    /// A claim that is sent again does not say so.
    ResentLost,
    /// The account runs as many functions as it may: 429. Counted, not drawn: workers take what there is.
    AccountFull,
}

/// Every fault with its usual probability at each occasion.
const USUAL: [(Fault, f64); 49] = [
    (Fault::WorkerDies, 0.005),
    (Fault::CoordinatorDies, 0.01),
    (Fault::ScalerDies, 0.05),
    (Fault::TrainerDies, 0.004),
    (Fault::Frozen, 0.002),
    (Fault::CallLost, 0.02),
    (Fault::AnswerLost, 0.03),
    (Fault::CallRepeated, 0.03),
    (Fault::TableFails, 0.01),
    (Fault::WriteUnreported, 0.03),
    (Fault::WriteMeetsItself, 0.03),
    (Fault::WriteThrottled, 0.5),
    (Fault::PutFails, 0.03),
    (Fault::PutUnreported, 0.03),
    (Fault::PutLate, 0.03),
    (Fault::GetFails, 0.02),
    (Fault::GetCorrupt, 0.01),
    (Fault::GetMissing, 0.01),
    (Fault::DeleteHalf, 0.1),
    (Fault::InvokeThrottled, 0.1),
    (Fault::InvokeFails, 0.1),
    (Fault::EventDropped, 0.05),
    (Fault::EventRepeated, 0.1),
    (Fault::EventLate, 0.1),
    (Fault::ReportLost, 0.2),
    (Fault::ReportRepeated, 0.2),
    (Fault::OldCheckpoint, 0.3),
    (Fault::SecondTrainer, 0.3),
    (Fault::CallDenied, 0.003),
    (Fault::ObjectDenied, 0.003),
    (Fault::TableDenied, 0.001),
    (Fault::ObjectVanishes, 0.02),
    (Fault::VersionDeleted, 0.02),
    (Fault::LeaveLost, 0.3),
    (Fault::StoreFull, 0.01),
    (Fault::StoreThrottled, 0.002),
    (Fault::TableThrottled, 0.0005),
    (Fault::Slow, 0.0003),
    (Fault::FetcherDies, 0.002),
    (Fault::DiesSaving, 0.02),
    (Fault::DiskFull, 0.01),
    (Fault::WrongState, 0.3),
    (Fault::WrongClient, 0.5),
    (Fault::SecondClient, 0.3),
    (Fault::HintStale, 0.1),
    (Fault::HintTorn, 0.1),
    (Fault::HintLost, 0.1),
    (Fault::ResentLost, 0.3),
    (Fault::AccountFull, 1.0),
];

/// Longest spell of what lasts.
pub const SPELL: Duration = Duration::from_secs(60);

/// How often each fault happens in one world, and until when.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    probability: [f64; USUAL.len()],
    /// Nothing goes wrong after this: then everything must come to an end.
    pub until: Duration,
    /// The largest error of a clock.
    pub skew: Duration,
    /// Writes a second that a partition of the table takes, where it is throttled.
    pub partition_writes: u64,
    /// Functions the account runs at a time, if that is few: (coordinators, which are reserved; others).
    pub concurrency: Option<(u32, u32)>,
}

impl FaultPlan {
    /// Nothing ever goes wrong.
    pub fn none() -> Self {
        Self {
            probability: [0.0; USUAL.len()],
            until: Duration::ZERO,
            skew: Duration::ZERO,
            partition_writes: 1000,
            concurrency: None,
        }
    }

    /// One occasion in twenty brings each of these, and nothing else goes wrong.
    pub fn only(faults: &[Fault], until: Duration) -> Self {
        let mut plan = Self { until, ..Self::none() };
        for fault in faults {
            plan.probability[*fault as usize] = 0.05;
        }
        plan
    }

    /// Of every fault, none in half of the worlds, the usual amount in a quarter, much in another. One
    /// world in four sees three kinds at most.
    pub fn draw(random: &mut Rng) -> Self {
        let few = random.u8(0..4) == 0;
        let chosen: [usize; 3] = std::array::from_fn(|_| random.usize(0..USUAL.len()));
        let probability = std::array::from_fn(|i| {
            let usual = USUAL[i].1;
            let amount = random.u8(0..4);
            match (few, amount) {
                (true, _) if !chosen.contains(&i) => 0.0,
                (false, 0 | 1) => 0.0,
                (_, 0..=2) => usual,
                _ => (usual * 4.0).min(0.6),
            }
        });
        let plan = Self {
            probability,
            until: Duration::from_secs(random.u64(30..600)),
            skew: Duration::from_secs(if random.bool() { 0 } else { 600 }),
            partition_writes: random.u64(2..20),
            concurrency: Some((random.u32(4..9), random.u32(2..8))),
        };
        match plan.probability(Fault::AccountFull) > 0.0 {
            true => plan,
            false => Self { concurrency: None, ..plan },
        }
    }

    /// The same without these.
    #[must_use]
    pub fn without(mut self, faults: &[Fault]) -> Self {
        for fault in faults {
            self.probability[*fault as usize] = 0.0;
        }
        self
    }

    /// The same with each of these happening, as often as is usual at least.
    #[must_use]
    pub fn with(mut self, faults: &[Fault]) -> Self {
        for fault in faults {
            let (_, usual) = USUAL[*fault as usize];
            let probability = &mut self.probability[*fault as usize];
            *probability = probability.max(usual);
        }
        self
    }

    pub fn probability(&self, fault: Fault) -> f64 {
        self.probability[fault as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_listed_in_order() {
        for (i, (fault, usual)) in USUAL.iter().enumerate() {
            assert_eq!((*fault as usize, *usual > 0.0), (i, true));
        }
    }
}
