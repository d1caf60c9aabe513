//! Results of one run.

use crate::scenario::ScenarioPrices;
use gristmill_model::wire::WorkerMetrics;
use gristmill_policy::scaling::{Decision, Reason};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// A run of one policy with one seed.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SimulatedRun {
    pub seed: u64,
    /// Workers before the first report.
    pub start: u32,
    /// One for each report.
    pub ticks: Vec<ScalingTick>,
    pub elapsed_s: f64,
    pub batches: u64,
    pub splits: u64,
    pub invocations: u64,
    pub deaths: u64,
    /// Seconds of all workers, from invocation to end.
    pub worker_s: f64,
    pub cost: SimulatedCost,
    /// Measurements that a later job may begin with.
    pub metrics: Option<WorkerMetrics>,
}

/// Dollars of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct SimulatedCost {
    pub workers_usd: f64,
    pub requests_usd: f64,
    pub accelerator_usd: f64,
}

/// One report and its decision. Means are over the report's batches, without measurement noise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScalingTick {
    pub at_s: f64,
    pub batches: u64,
    pub phase: usize,
    pub mode: u32,
    pub batch_time_s: f64,
    pub stall_s: f64,
    pub queue_batches: f64,
    /// Workers at work.
    pub workers: f64,
    /// Seconds of all workers so far, and the batches that they made in them.
    pub worker_s: f64,
    pub made: u64,
    /// The target before, and the decision.
    pub before: u32,
    #[serde(flatten, serialize_with = "as_text")]
    pub decision: Decision,
    /// Local workers to hold from now on.
    pub local: u32,
    pub has_converged: bool,
}

/// The target, and the line for people as the reason.
fn as_text<S: Serializer>(decision: &Decision, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("target", &decision.target)?;
    map.serialize_entry("reason", &decision.to_string())?;
    map.end()
}

/// Reports within which a change of load must be followed.
pub(crate) const FOLLOWED_REPORTS: usize = 10;

/// Requests of a split: a put, two gets, four writes and four reads of the table.
const REQUESTS_PER_SPLIT: f64 = 11.0;

impl SimulatedRun {
    pub(crate) fn finish(&mut self, now_s: f64, batches: u64, prices: &ScenarioPrices) {
        self.elapsed_s = now_s;
        self.batches = batches;
        let requests = self.splits as f64 * REQUESTS_PER_SPLIT + self.invocations as f64;
        self.cost = SimulatedCost {
            workers_usd: self.worker_s / 3_600.0 * prices.usd_per_worker_hour,
            requests_usd: requests / 1e6 * prices.usd_per_million_requests,
            accelerator_usd: now_s / 3_600.0 * prices.accelerator_usd_per_hour,
        };
    }

    /// The reports of a phase.
    pub fn phase(&self, phase: usize) -> impl Iterator<Item = &ScalingTick> {
        self.ticks.iter().filter(move |tick| tick.phase == phase)
    }

    /// Dollars of workers and trainer for a batch, over the last third of a phase.
    pub fn usd_at_end(&self, phase: usize, prices: &ScenarioPrices) -> f64 {
        let ticks: Vec<_> = self.phase(phase).collect();
        let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else { return f64::INFINITY };
        let from = first.batches + (last.batches - first.batches) / 3 * 2;
        let from = ticks.iter().find(|tick| tick.batches >= from).unwrap_or(last);
        // Batches that were made and not taken yet are paid for, too.
        let (batches, made) = (last.batches - from.batches, last.made - from.made);
        let (trainer_s, worker_s) = (last.at_s - from.at_s, last.worker_s - from.worker_s);
        prices.usd(trainer_s / batches as f64, worker_s / made.max(1) as f64)
    }

    /// Changes of the target in a phase, but for those that the account makes.
    pub fn moves(&self, phase: usize) -> usize {
        let is_move = |tick: &&ScalingTick| {
            tick.decision.target != tick.before
                && !matches!(tick.decision.reason, Reason::Throttled | Reason::Retry)
        };
        self.phase(phase).filter(is_move).count()
    }

    /// The target at the end of a phase.
    pub fn chosen(&self, phase: usize) -> u32 {
        self.phase(phase).last().map_or(self.start, |tick| tick.decision.target)
    }

    /// Changes of the target until it first converged. Lowering the target to what the account granted does not count: it
    /// has no effect.
    pub fn decisions(&self) -> usize {
        let is_decision = |tick: &&ScalingTick| {
            tick.decision.target != tick.before
                && !matches!(tick.decision.reason, Reason::Throttled)
        };
        self.phase(0).take(self.reports_to_convergence()).filter(is_decision).count()
    }

    /// Reports until it first converged in the first phase; all if it did not.
    pub fn reports_to_convergence(&self) -> usize {
        let converged = self.phase(0).position(|tick| tick.has_converged);
        converged.map_or(self.ticks.len(), |index| index + 1)
    }

    /// Reversals of the target's direction since it first converged in a phase. Reductions by the account's limit do not
    /// count.
    pub fn reversals(&self, phase: usize) -> u32 {
        let mut last = 0;
        let mut turns = 0;
        let mut follows = false;
        // A change of load is detected with a delay, and following it is no reversal.
        let followed = if phase == 0 { 0 } else { FOLLOWED_REPORTS };
        let ticks = self.phase(phase).skip(followed);
        for tick in ticks.skip_while(|tick| !tick.has_converged).skip(1) {
            // A load change detected later starts later.
            follows = phase > 0
                && (follows && !tick.has_converged || names_a_change(&tick.decision.reason));
            let way = (i64::from(tick.decision.target) - i64::from(tick.before)).signum();
            if follows {
                last = 0;
                continue;
            }
            if way == 0 || matches!(tick.decision.reason, Reason::Throttled | Reason::Retry) {
                continue;
            }
            turns += u32::from(last != 0 && way != last);
            last = way;
        }
        turns
    }
}

/// Whether the policy says that the load changed.
fn names_a_change(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::StepChanged { .. } | Reason::WorkerChanged { .. } | Reason::ModeChanged
    )
}
