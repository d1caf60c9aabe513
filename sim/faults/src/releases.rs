//! Releases that are deployed: the versions of the protocol that the stack, its worker functions and the hosts
//! speak, and their replacement in mid-job, by chance or in steps that a test chooses.

use crate::{
    FaultKind, FaultSimulation, Mutant, ProcessKind, SimProcess, cloud::SimCloud,
    trainer::DeliveryLog,
};
use gristmill_model::wire::SpokenVersions;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::watch;

/// A release, by what it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimRelease {
    /// The one before: it speaks version 2 alone, and keeps no field of a job that it does not know.
    Before,
    /// This one.
    Present,
}

impl SimRelease {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Before => Self::Present,
            Self::Present => Self::Before,
        }
    }

    /// The versions that its peers speak.
    fn spoken(self, mutant: Option<Mutant>) -> SpokenVersions {
        let spoken = match self {
            Self::Before => SpokenVersions::default(),
            Self::Present => SpokenVersions::BUILD,
        };
        match mutant {
            Some(Mutant::SpeaksOneVersion) => SpokenVersions::only(spoken.newest),
            _ => spoken,
        }
    }
}

/// The longest time from one replacement to the next.
const APART_MS: u64 = 60_000;
/// The longest time from the replacement of the coordinator to that of the scaler.
const LATER_MS: u64 = 30_000;

/// The deployed functions, and the programs on hosts of trainers.
pub struct DeployedStack {
    mutant: Option<Mutant>,
    state: Mutex<State>,
    /// Whether hosts of trainers run.
    are_up: watch::Sender<bool>,
}

struct State {
    /// The release of the coordinator, which is replaced first.
    stack: SimRelease,
    /// The release of the scaler, and the worker function that it gives to jobs.
    scaler: (SimRelease, u32),
    hosts: SimRelease,
    /// The worker functions that exist, by their numbers, with what each speaks. Jobs keep the one they began with.
    workers: BTreeMap<u32, SimRelease>,
    /// Processes on hosts of trainers.
    processes: Vec<SimProcess>,
}

impl State {
    fn last_worker(&self) -> u32 {
        self.workers.last_key_value().map_or(0, |(number, _)| *number)
    }
}

impl DeployedStack {
    /// The releases with which the simulation's plan begins.
    pub fn new(sim: &FaultSimulation) -> Self {
        let (stack, hosts) = (sim.plan.stack_release, sim.plan.hosts_release);
        let workers = BTreeMap::from([(1, stack)]);
        let scaler = (stack, 1);
        let state = State { stack, scaler, hosts, workers, processes: Vec::new() };
        Self { mutant: sim.mutant, state: Mutex::new(state), are_up: watch::Sender::new(true) }
    }

    /// The versions that the scaler speaks.
    pub fn scaler(&self) -> SpokenVersions {
        self.state.lock().scaler.0.spoken(self.mutant)
    }

    /// The versions that the coordinator speaks.
    pub fn coordinator(&self) -> SpokenVersions {
        let spoken = self.state.lock().stack.spoken(self.mutant);
        match self.mutant {
            Some(Mutant::TakesNewerJobs) => {
                SpokenVersions { newest: SpokenVersions::BUILD.newest, ..spoken }
            }
            _ => spoken,
        }
    }

    /// Whether a function of that kind keeps no field of an item that it does not know.
    pub fn drops_fields(&self, kind: ProcessKind) -> bool {
        let state = self.state.lock();
        let release = if kind == ProcessKind::Scaler { state.scaler.0 } else { state.stack };
        release == SimRelease::Before && self.mutant != Some(Mutant::TakesNewerJobs)
    }

    /// The versions that programs on hosts of trainers speak.
    pub fn hosts(&self) -> SpokenVersions {
        self.state.lock().hosts.spoken(self.mutant)
    }

    /// The versions that the worker function of that number speaks; none if there is no such function.
    pub fn worker(&self, number: u32) -> Option<SpokenVersions> {
        self.state.lock().workers.get(&number).map(|release| release.spoken(self.mutant))
    }

    /// The number of the worker function that new jobs get.
    pub fn newest_worker(&self) -> u32 {
        self.state.lock().scaler.1
    }

    /// Deletes all worker functions, and deploys one.
    pub fn redeploy_workers(&self) {
        let mut state = self.state.lock();
        let number = state.last_worker() + 1;
        state.workers = BTreeMap::from([(number, state.stack)]);
        state.scaler = (state.stack, number);
    }

    /// Replaces the coordinator by that of the other release, and adds its worker function. The scaler follows with
    /// [`DeployedStack::replace_scaler`].
    pub fn replace_stack(&self, sim: &FaultSimulation) {
        let mut state = self.state.lock();
        state.stack = state.stack.other();
        let number = state.last_worker() + 1;
        let stack = state.stack;
        state.workers.insert(number, stack);
        sim.event(format_args!("the stack is replaced: {stack:?}"));
    }

    /// Replaces the scaler by that of the coordinator's release.
    pub fn replace_scaler(&self) {
        let mut state = self.state.lock();
        state.scaler = (state.stack, state.last_worker());
    }

    /// Replaces the programs on hosts of trainers by those of the other release. All that run end.
    pub fn replace_hosts(&self, sim: &FaultSimulation) {
        let mut state = self.state.lock();
        state.hosts = state.hosts.other();
        state.processes.drain(..).for_each(|process| process.kill());
        sim.event(format_args!("the hosts are replaced: {:?}", state.hosts));
    }

    /// Ends the programs on hosts of trainers. None starts until [`DeployedStack::start_hosts`].
    pub fn stop_hosts(&self) {
        self.are_up.send_replace(false);
        self.state.lock().processes.drain(..).for_each(|process| process.kill());
    }

    /// Lets trainers start again after their replacement.
    pub fn start_hosts(&self) {
        self.are_up.send_replace(true);
    }

    /// Waits until programs on hosts of trainers may start, and counts `process` among them.
    pub async fn host_starts(&self, process: &SimProcess) {
        // The sender lives as long as this.
        let _ = self.are_up.subscribe().wait_for(|are_up| *are_up).await;
        let mut state = self.state.lock();
        state.processes.retain(|process| !process.is_dead());
        state.processes.push(process.clone());
    }

    /// Replaces stack and hosts now and then, until the faults end.
    pub async fn replace_at_times(&self, sim: &FaultSimulation) {
        if [FaultKind::StackReplaced, FaultKind::HostsReplaced]
            .iter()
            .all(|of| sim.plan.probability(*of) == 0.0)
        {
            return;
        }
        while sim.time.now() < sim.plan.until {
            sim.time.sleep(sim.between_ms(1_000, APART_MS)).await;
            if sim.happens(FaultKind::StackReplaced) {
                self.replace_stack(sim);
                let later = sim.between_ms(0, LATER_MS);
                sim.unsettled_for(later);
                sim.time.sleep(later).await;
                self.replace_scaler();
            }
            if sim.happens(FaultKind::HostsReplaced) {
                self.replace_hosts(sim);
            }
        }
    }
}

/// The order in which stack and hosts of trainers are replaced by the next release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeOrder {
    StackFirst,
    TrainerFirst,
    /// Stack, then hosts; then both back, in the reverse order.
    RolledBack,
}

/// The state of the job meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeMoment {
    /// Its trainer trains.
    JobRuns,
    /// It has no trainer.
    JobWaits,
    /// Its trainer or its workers read the cache.
    CacheIsRead,
}

/// An upgrade of stack and hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpgradePlan {
    pub order: UpgradeOrder,
    pub moment: UpgradeMoment,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Stack,
    Hosts,
}

impl UpgradeOrder {
    fn steps(self) -> &'static [Step] {
        match self {
            Self::StackFirst => &[Step::Stack, Step::Hosts],
            Self::TrainerFirst => &[Step::Hosts, Step::Stack],
            Self::RolledBack => &[Step::Stack, Step::Hosts, Step::Hosts, Step::Stack],
        }
    }
}

/// Batches and reads of the cache before the upgrade begins.
const BATCHES_BEFORE: usize = 20;
const READS_BEFORE: u64 = 5;
const APART: Duration = Duration::from_secs(5);
/// How long a job waits for its trainer, before the upgrade and after it.
const WAITS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// Performs the upgrade of this simulation, if it has one.
pub async fn perform_upgrade(cloud: &Arc<SimCloud>, log: &DeliveryLog) {
    let sim = &cloud.sim;
    let Some(UpgradePlan { order, moment }) = sim.plan.upgrade else { return };
    loop {
        let is_due = match moment {
            UpgradeMoment::JobRuns | UpgradeMoment::JobWaits => {
                log.delivered().batches.len() >= BATCHES_BEFORE
            }
            UpgradeMoment::CacheIsRead => sim.counts().cache_reads >= READS_BEFORE,
        };
        if is_due {
            break;
        }
        sim.time.sleep(LOOK).await;
    }
    let waits = moment == UpgradeMoment::JobWaits;
    if waits {
        // No batch comes meanwhile.
        sim.unsettled_for(2 * WAITS + 2 * APART * order.steps().len() as u32);
        cloud.deployed.stop_hosts();
        sim.time.sleep(WAITS).await;
    }
    for step in order.steps() {
        match step {
            Step::Stack => {
                cloud.deployed.replace_stack(sim);
                sim.time.sleep(APART).await;
                cloud.deployed.replace_scaler();
            }
            Step::Hosts => cloud.deployed.replace_hosts(sim),
        }
        sim.time.sleep(APART).await;
    }
    sim.note_upgraded(log.delivered().batches.len());
    if waits {
        sim.time.sleep(WAITS).await;
        cloud.deployed.start_hosts();
    }
}
