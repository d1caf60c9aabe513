//! Policies that place workers on the trainer's host, too: ours, Pecan's AutoPlacement and FastFlow's smart offloading.

use crate::{ModelConditions, ScalingScenario};
use gristmill_model::wire::TrainingReport;
use gristmill_policy::{
    cost::{EpochWork, FunctionShape, PriceList, SplitWork, TrainerDemand},
    placement::{
        HostWork, LocalPart, PlacedHost, PlacementObservation, PlacementSettings, PlacementState,
        PlacementTerms, WorkerTarget, place, place_epoch,
    },
    plan::PlanLimits,
    scaling::{Decision, Policy, Reason, ScalerFacts, Settings},
};

/// Policy for local workers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum HostPlacement {
    /// No local worker.
    #[default]
    Remote,
    /// Ours: begins as planned, and tries other counts.
    Auto,
    /// The same without a plan.
    Unplanned,
    /// As a job whose like ended with these workers.
    Reloaded { remote: u32, local: u32 },
    /// So many local workers, by no report.
    Held { local: u32 },
    /// Pecan's Algorithm 1, with its threshold `T` and window of `X` batches.
    Pecan { threshold: f64, batches: f64 },
    /// FastFlow's Algorithm 1: the number of workers by a profile, which is then held.
    FastFlow,
}

impl HostPlacement {
    /// The policy of this name; Pecan's with the parameters that it recommends.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "remote" => Some(Self::Remote),
            "auto" => Some(Self::Auto),
            "unplanned" => Some(Self::Unplanned),
            "pecan" => Some(Self::Pecan { threshold: 0.03, batches: 500.0 }),
            "fastflow" => Some(Self::FastFlow),
            _ => None,
        }
    }
}

/// A placement policy with its state.
#[derive(Debug, Clone)]
pub(crate) enum HostPlacer {
    Held { local: u32, part: LocalPart },
    Auto(Box<PlacementState>),
    Pecan(PecanPlacer),
    FastFlow(FastFlowPlacer),
}

/// A report, and what else a placement policy sees.
pub(crate) struct PlacerInput<'r> {
    pub report: TrainingReport,
    pub facts: ScalerFacts,
    pub settings: &'r Settings,
    pub conditions: &'r ModelConditions,
    pub max_local: u32,
    pub batches_left: u64,
}

impl HostPlacer {
    /// The policy of a scenario, and the workers that it begins with.
    pub fn begin(scenario: &ScalingScenario, remote: u32) -> (Self, WorkerTarget) {
        let conditions = &scenario.phases[0].conditions;
        let most = most_local(conditions, scenario.max_local);
        let target = WorkerTarget { remote, local: 0 };
        match scenario.placement {
            HostPlacement::Remote => (Self::held(0), target),
            HostPlacement::Held { local } => (Self::held(local), WorkerTarget { local, ..target }),
            HostPlacement::Reloaded { remote, local } => {
                let target = WorkerTarget { remote, local: local.min(most) };
                (Self::Auto(Box::new(PlacementState::begin_with(target))), target)
            }
            HostPlacement::Unplanned => {
                (Self::Auto(Box::new(PlacementState::begin(target))), target)
            }
            HostPlacement::Auto => {
                let target = planned(scenario, most);
                (Self::Auto(Box::new(PlacementState::begin(target))), target)
            }
            HostPlacement::Pecan { threshold, batches } => {
                (Self::Pecan(PecanPlacer::new(threshold, batches, target)), target)
            }
            HostPlacement::FastFlow => {
                let target = WorkerTarget { remote: 0, local: most };
                (Self::FastFlow(FastFlowPlacer { target, step: ProfileStep::Local }), target)
            }
        }
    }

    fn held(local: u32) -> Self {
        Self::Held { local, part: LocalPart::default() }
    }

    /// Takes a report. `policy` is the scaling policy, which decides on the remote workers where this one does not.
    pub fn decide(
        &mut self,
        input: &PlacerInput<'_>,
        policy: &mut Policy,
    ) -> (WorkerTarget, Reason) {
        let PlacerInput { report, facts, settings, .. } = input;
        match self {
            Self::Held { local, part } => {
                let left = part.remote_part(report, report.local_workers, facts);
                part.add(report, report.local_workers, facts, true);
                let Decision { target, reason } = policy.decide(&left, facts, settings);
                (WorkerTarget { remote: target, local: *local }, reason)
            }
            Self::Auto(state) => {
                let part = state.remote_part(report, facts);
                let decision = policy.decide(&part, facts, settings);
                let seen = PlacementObservation {
                    report,
                    facts,
                    remote: decision.target,
                    has_converged: policy.has_converged(settings),
                    lasts: true,
                    host_cores: input.conditions.host.cores,
                    batches_left: input.batches_left,
                };
                let terms = PlacementSettings {
                    max_local: most_local(input.conditions, input.max_local),
                    usd_per_worker_hour: settings.usd_per_worker_hour,
                    usd_per_trainer_hour: settings.usd_per_trainer_hour,
                };
                let (next, placed) = place(&seen, state, &terms);
                **state = next;
                (placed.target, decision.reason)
            }
            Self::Pecan(pecan) => moved(pecan.target.remote, pecan.decide(input)),
            Self::FastFlow(fastflow) => moved(fastflow.target.remote, fastflow.decide(input)),
        }
    }

    pub fn has_converged(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Auto(state) => state.has_converged,
            Self::Pecan(pecan) => pecan.step == PecanStep::Converged,
            Self::FastFlow(fastflow) => fastflow.step == ProfileStep::Done,
        }
    }
}

fn moved(from: u32, target: WorkerTarget) -> (WorkerTarget, Reason) {
    (target, Reason::Moved { from })
}

/// Local workers for which the host has processors.
fn most_local(conditions: &ModelConditions, max_local: u32) -> u32 {
    (conditions.host.cores as u32).min(max_local)
}

/// The workers of a plan, which knows the times of the scenario, and assumes the knee.
fn planned(scenario: &ScalingScenario, most: u32) -> WorkerTarget {
    let conditions = &scenario.phases[0].conditions;
    let host = &conditions.host;
    let (splits, batches) = (1_000, 1_000 * u64::from(conditions.split_batches));
    let part = f64::from(conditions.split_batches);
    let split = SplitWork {
        cpu_s: conditions.compute_s * part / conditions.vcpus,
        bytes_in: conditions.source_bytes * part,
        bytes_out: conditions.batch_bytes * part,
        overhead_s: 2.0 * conditions.call_s,
        wait_s: 0.0,
    };
    let work = EpochWork { splits, batches, split, ..EpochWork::default() };
    let host_work = HostWork {
        local_s: conditions.compute_s / host.local_speed,
        remote_s: host.decoding_s(conditions.batch_bytes),
    };
    let (limits, prices) = (PlanLimits::default(), PriceList::default());
    let known = PlacedHost {
        cores: host.cores,
        trainer_cores: host.trainer_cores,
        ..PlacedHost::default()
    };
    let step_s = conditions.step_s / f64::from(conditions.clients.max(1));
    let terms = PlacementTerms {
        shape: FunctionShape {
            network_bytes_per_s: conditions.network_per_s,
            ..FunctionShape::default()
        },
        trainer: TrainerDemand { step_s, ingest_bytes_per_s: 0.0 },
        host: known,
        limits: &limits,
        prices: &prices,
    };
    let needed = (host_work.local_s / step_s).ceil() as u32;
    let local = (known.idle() as u32).min(needed).min(most);
    let placed = place_epoch(&work, &host_work, local, &terms);
    WorkerTarget { remote: placed.remote, local }
}

/// The step of Pecan's algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PecanStep {
    AddRemote,
    AddLocal,
    RemoveRemote,
    Converged,
}

/// Pecan's AutoPlacement (Graur et al., ATC 2024, Algorithm 1).
#[derive(Debug, Clone)]
pub(crate) struct PecanPlacer {
    threshold: f64,
    window: f64,
    target: WorkerTarget,
    step: PecanStep,
    /// Workers at the beginning of this iteration.
    start: WorkerTarget,
    batches: u64,
    settled_at: u64,
    seconds: f64,
    measured: f64,
    /// Batch time without stalls, and the one of the last workers that stayed.
    converged_s: f64,
    before_s: Option<f64>,
}

impl PecanPlacer {
    fn new(threshold: f64, window: f64, target: WorkerTarget) -> Self {
        Self {
            threshold,
            window,
            target,
            step: PecanStep::AddRemote,
            start: target,
            batches: 0,
            settled_at: 0,
            seconds: 0.0,
            measured: 0.0,
            converged_s: 0.0,
            before_s: None,
        }
    }

    fn decide(&mut self, input: &PlacerInput<'_>) -> WorkerTarget {
        let report = &input.report;
        let before = std::mem::replace(&mut self.batches, report.batches);
        if before < self.settled_at {
            return self.target;
        }
        let batches = (report.batches - before) as f64;
        self.measured += batches;
        self.seconds += batches * report.batch_time_s();
        if self.measured < self.window || self.step == PecanStep::Converged {
            return self.target;
        }
        let batch_s = self.seconds / self.measured;
        (self.seconds, self.measured) = (0.0, 0.0);
        let held = self.target;
        self.advance(batch_s, input);
        if self.target != held {
            // Leases that are out come from the workers before.
            self.settled_at = report.batches.saturating_add(report.ahead_batches);
        }
        self.target
    }

    /// A whole window is measured: the next step of the algorithm.
    fn advance(&mut self, batch_s: f64, input: &PlacerInput<'_>) {
        let most = most_local(input.conditions, input.max_local);
        let worse = |than_s: f64| batch_s / than_s - 1.0 >= self.threshold;
        match (self.step, self.before_s) {
            (PecanStep::AddRemote, Some(before_s))
                if batch_s > before_s * (1.0 - self.threshold) =>
            {
                self.target.remote -= 1;
                self.converged_s = before_s.min(batch_s);
                self.add_local(most);
            }
            (PecanStep::AddRemote, _) => {
                self.before_s = Some(batch_s);
                self.target.remote += 1;
            }
            (PecanStep::AddLocal, _) if worse(self.converged_s) => {
                self.target.local -= 1;
                self.remove_remote(most);
            }
            (PecanStep::AddLocal, _) => {
                self.before_s = Some(batch_s);
                if self.target.local < most {
                    self.target.local += 1;
                } else {
                    self.remove_remote(most);
                }
            }
            (PecanStep::RemoveRemote, Some(before_s))
                if self.usd(batch_s, self.target.remote, input)
                    > self.usd(before_s, self.target.remote + 1, input) =>
            {
                self.target.remote += 1;
                self.iterate(most);
            }
            (PecanStep::RemoveRemote, _) => {
                self.before_s = Some(batch_s);
                self.remove_remote(most);
            }
            (PecanStep::Converged, _) => {}
        }
    }

    fn usd(&self, batch_s: f64, remote: u32, input: &PlacerInput<'_>) -> f64 {
        let Settings { usd_per_trainer_hour, usd_per_worker_hour, .. } = input.settings;
        batch_s * (usd_per_trainer_hour + usd_per_worker_hour * f64::from(remote))
    }

    fn add_local(&mut self, most: u32) {
        self.start = self.target;
        self.step = PecanStep::AddLocal;
        self.target.local = (self.target.local + 1).min(most);
    }

    fn remove_remote(&mut self, most: u32) {
        self.step = PecanStep::RemoveRemote;
        if self.target.remote == 0 {
            self.iterate(most);
        } else {
            self.target.remote -= 1;
        }
    }

    /// The end of an iteration: the last one if it changed nothing.
    fn iterate(&mut self, most: u32) {
        if self.target == self.start {
            self.step = PecanStep::Converged;
        } else {
            self.add_local(most);
        }
    }
}

/// The step of FastFlow's profile.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ProfileStep {
    /// Local workers alone are measured.
    Local,
    /// One remote worker is measured.
    Remote {
        local_per_s: f64,
    },
    Done,
}

/// FastFlow's smart offloading (Um et al., VLDB 2023, Algorithm 1 and section 9).
#[derive(Debug, Clone)]
pub(crate) struct FastFlowPlacer {
    target: WorkerTarget,
    step: ProfileStep,
}

/// It offloads nothing if that makes training faster by less than this.
const SPEED_UP: f64 = 1.1;

impl FastFlowPlacer {
    fn decide(&mut self, input: &PlacerInput<'_>) -> WorkerTarget {
        let (report, conditions) = (&input.report, input.conditions);
        let most_per_s = 1.0 / report.step_s;
        match self.step {
            ProfileStep::Local => {
                let local_per_s = 1.0 / report.batch_time_s();
                if most_per_s / local_per_s < SPEED_UP {
                    self.step = ProfileStep::Done;
                } else {
                    self.step = ProfileStep::Remote { local_per_s };
                    self.target.remote = 1;
                }
            }
            ProfileStep::Remote { local_per_s } => {
                let Some(worker_s) = report.remote_batch_s() else { return self.target };
                let host = &conditions.host;
                let overhead = host.decoding_s(conditions.batch_bytes)
                    / (conditions.compute_s / host.local_speed);
                let lower = (most_per_s - local_per_s).max(0.0) * (1.0 + overhead);
                self.target.remote = (lower * worker_s).ceil() as u32;
                self.step = ProfileStep::Done;
            }
            ProfileStep::Done => {}
        }
        self.target
    }
}
