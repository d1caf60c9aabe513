//! `coverage`, the default policy: the number of workers at which a batch costs least.
//!
//! A waiting trainer costs more than a worker, and a worker that has nothing to do leaves and costs nothing. So the
//! policy covers the whole demand, and takes workers away only where they make each other slower. [`decide`] and each of
//! its steps are pure. docs/scaling.md derives them.

use super::{
    Decision, MetricsOrigin, Reason, ScalerFacts, ScalingPolicy, Settings, TrainingReport,
    WorkerMetrics,
    block::MeasuredBlock,
    law::{LawPoint, STORED_REPORTS, ThroughputLaw},
    throttle::Throttle,
    trend::LoadTrend,
    tuning::TUNING,
};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow::{self, Break, Continue};

/// Difference of a report from what earlier jobs measured, as a share of that, and the consecutive reports of it that
/// discard what they measured.
const DIFFERS: f64 = 0.2;
const DIFFERING_REPORTS: u32 = 3;

/// Progress of the search for the count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchPhase {
    /// No worker's time is known.
    #[default]
    Estimating,
    /// The target is being measured, for the `measurement`th time.
    Searching { measurement: u32 },
    /// No other count saves enough; the measurement goes on.
    Converged { measurement: u32 },
}

/// State of the policy between two reports. Unknown fields are ignored and missing ones default, so that two versions
/// can share an item.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CoverageState {
    /// Workers to hold.
    pub target: u32,
    pub phase: SearchPhase,
    /// Batches delivered at the last report; `None` before the first.
    batches: Option<u64>,
    mode: u32,
    /// Batches before this one were handed out under another count.
    settled_at: u64,
    /// The trainer's step, and a worker's computing at this target, in seconds.
    step: LoadTrend,
    compute: LoadTrend,
    block: MeasuredBlock,
    /// Measurements under this load, the latest last.
    points: Vec<LawPoint>,
    /// The measurements of earlier jobs, and the consecutive reports that differ from it.
    stored: Option<(WorkerMetrics, u32)>,
    /// Direction of the last move under this load: 1, -1, or 0; and whether it had converged before: then it never
    /// turns.
    direction: i8,
    has_converged: bool,
    throttle: Throttle,
}

/// The policy with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Coverage(Box<CoverageState>);

impl ScalingPolicy for Coverage {
    fn begin(settings: &Settings, stored: Option<&WorkerMetrics>) -> Self {
        Self(Box::new(CoverageState::begin(settings, stored)))
    }

    fn metrics(&self) -> Option<WorkerMetrics> {
        let law = ThroughputLaw::fit(&self.0.points).filter(|_| self.has_converged())?;
        Some(law.metrics(self.0.step.mean()?, self.0.target))
    }

    fn origin(&self) -> MetricsOrigin {
        self.0.stored.map_or(MetricsOrigin::Measured, |_| MetricsOrigin::Stored)
    }

    fn target(&self) -> u32 {
        self.0.target
    }

    fn decide(
        &mut self,
        report: &TrainingReport,
        facts: &ScalerFacts,
        settings: &Settings,
    ) -> Decision {
        let (next, decision) = decide(report, facts, &self.0, settings);
        *self.0 = next;
        decision
    }

    fn has_converged(&self) -> bool {
        matches!(self.0.phase, SearchPhase::Converged { .. })
    }
}

/// The next state, and the target with its reason, within the limits.
pub fn decide(
    report: &TrainingReport,
    facts: &ScalerFacts,
    state: &CoverageState,
    settings: &Settings,
) -> (CoverageState, Decision) {
    let from = state.batches.unwrap_or(0);
    let delivered = report.batches.saturating_sub(from) as f64;
    let elapsed_s = delivered / facts.clients() * report.batch_time_s();
    let is_settled = from >= state.settled_at;
    let seen = Observation { report, facts, settings, batches: delivered, elapsed_s, is_settled };
    let (next, reason) = match state.clone().observe(&seen) {
        Continue(state) => state.search(&seen),
        Break(decided) => decided,
    };
    let decision = Decision { target: next.target, reason };
    (next, decision)
}

/// One report, with what the steps below need of it.
pub(super) struct Observation<'r> {
    pub report: &'r TrainingReport,
    pub facts: &'r ScalerFacts,
    settings: &'r Settings,
    /// Batches since the report before, and the seconds that they took.
    pub batches: f64,
    pub elapsed_s: f64,
    /// Whether the trainer is past what was handed out under another count.
    is_settled: bool,
}

/// The next state, with the reason for its target.
type DecidedStep = (CoverageState, Reason);
/// A step that may leave the decision to the next one.
type MaybeStep = ControlFlow<DecidedStep, CoverageState>;

impl CoverageState {
    /// State before the first report: at the count that earlier jobs converged to, with their law, if there is one.
    pub fn begin(settings: &Settings, stored: Option<&WorkerMetrics>) -> Self {
        let (most, _) = settings.cap();
        let Some(metrics) = stored else {
            return Self { target: settings.start.clamp(1, most), ..Self::default() };
        };
        // The cast saturates.
        let target = (metrics.workers.mean.round() as u32).clamp(1, most);
        Self {
            target,
            phase: SearchPhase::Searching { measurement: 0 },
            step: LoadTrend::known(metrics.step_s.mean, STORED_REPORTS),
            points: ThroughputLaw::stored(metrics).points(target),
            stored: Some((*metrics, 0)),
            ..Self::default()
        }
    }

    /// Reports that say nothing of this count, and those that say that something else has changed.
    fn observe(mut self, seen: &Observation<'_>) -> MaybeStep {
        let Observation { report, facts, .. } = *seen;
        let target = self.target.clamp(1, seen.settings.cap().0);
        if target != self.target {
            // Limits may be lowered while a job runs.
            self = Self { target, block: MeasuredBlock::default(), ..self };
        }
        if !report.is_plausible() {
            return Break((self, Reason::Held("the report's numbers are impossible")));
        }
        if self.batches.is_some_and(|before| report.batches <= before) {
            return Break((self, Reason::Held("no batch since the report before")));
        }
        let is_first = self.batches.is_none();
        let is_other_mode = facts.mode != self.mode && !is_first;
        self = Self { batches: Some(report.batches), mode: facts.mode, ..self };
        if is_other_mode {
            let next = Self { phase: SearchPhase::Estimating, ..self.begin_load(report) };
            return Break((next, Reason::ModeChanged));
        }
        if is_first && self.stored.is_some() {
            self = self.begin_measurement(report);
        }
        let is_short = report.remote_workers < f64::from(target);
        if facts.claimable == 0 && report.window_full < 0.05 && is_short {
            return Break((self, Reason::Held("nothing left to hand out")));
        }
        self.compare_with_stored(seen)?.follow_account(seen)?.follow_load(seen)
    }

    /// The measurements of earlier jobs are discarded if this job is another.
    fn compare_with_stored(mut self, seen: &Observation<'_>) -> MaybeStep {
        // A measurement of its own confirms them.
        let is_confirmed = self.phase != SearchPhase::Searching { measurement: 0 };
        let Some((metrics, differing)) = self.stored.as_mut().filter(|_| !is_confirmed) else {
            return Continue(self);
        };
        let report = seen.report;
        let differs = |here: f64, stored: f64| (here / stored - 1.0).abs() > DIFFERS;
        let slowed = 1.0 + metrics.slowing.mean * report.remote_workers;
        let differs = differs(report.step_s, metrics.step_s.mean)
            || report.remote_batch_s().is_some()
                && differs(report.remote_compute_s, metrics.compute_s.mean * slowed);
        *differing = if differs { *differing + 1 } else { 0 };
        match *differing {
            0 => Continue(self),
            DIFFERING_REPORTS => {
                self.step = LoadTrend::known(report.step_s, 1);
                let (next, _) = self.begin_load(report).estimate(seen);
                Break((next, Reason::Discarded))
            }
            _ => Break((self, Reason::Held("it differs from what earlier jobs measured"))),
        }
    }

    /// The account's limit on workers: learnt, and tried again.
    fn follow_account(mut self, seen: &Observation<'_>) -> MaybeStep {
        match self.throttle.observe(seen.facts, self.target) {
            Some((workers, reason)) => Break((self.move_to(workers, seen), reason)),
            None => Continue(self),
        }
    }

    /// Another step of the trainer, or another computing time of a batch: the law gives the new count at once.
    fn follow_load(mut self, seen: &Observation<'_>) -> MaybeStep {
        let report = seen.report;
        let step_before = self.step.add(report.step_s);
        let mut compute_before = None;
        if seen.is_settled && report.remote_batch_s().is_some() {
            let generation = report.generation(f64::from(self.target));
            compute_before =
                self.compute.add_part(report.remote_compute_s, seen.batches, generation);
        }
        let slower = (compute_before, self.compute.mean());
        let (reason, times) = match (slower, (step_before, self.step.mean())) {
            _ if self.points.is_empty() => return Continue(self),
            ((Some(before_s), Some(after_s)), _) => {
                (Reason::WorkerChanged { before_s, after_s }, after_s / before_s)
            }
            (_, (Some(before_s), Some(after_s))) => {
                (Reason::StepChanged { before_s, after_s }, 1.0)
            }
            _ => return Continue(self),
        };
        let law = ThroughputLaw::fit(&self.points).map(|law| law.slower(times));
        if matches!(reason, Reason::WorkerChanged { .. }) {
            self.points.iter_mut().for_each(|point| point.is_past = true);
        }
        let (next, _) = self.begin_load(report).seek(law, seen, TUNING.saving);
        Break((next, reason))
    }

    /// Begins with another load: it may ask for a move in any direction.
    fn begin_load(self, report: &TrainingReport) -> Self {
        Self { direction: 0, has_converged: false, stored: None, ..self }.begin_measurement(report)
    }

    /// Begins to measure anew what arrives from now on.
    fn begin_measurement(self, report: &TrainingReport) -> Self {
        // The first splits of new workers arrive together, after a wait that is not of their number.
        let first = report.generation(f64::from(self.target)) as u64;
        let ahead = report.ahead_batches.saturating_add(first);
        Self {
            phase: SearchPhase::Searching { measurement: 0 },
            settled_at: report.batches.saturating_add(ahead),
            compute: LoadTrend::default(),
            block: MeasuredBlock::default(),
            ..self
        }
    }

    /// The step of the search that the phase asks for.
    fn search(self, seen: &Observation<'_>) -> DecidedStep {
        match self.phase {
            SearchPhase::Estimating => self.estimate(seen),
            _ if !seen.is_settled => (self, Reason::Held("their batches have yet to arrive")),
            SearchPhase::Searching { measurement } | SearchPhase::Converged { measurement } => {
                self.measure(seen, measurement)
            }
        }
    }

    /// The first target, from the times of the workers that there are.
    fn estimate(self, seen: &Observation<'_>) -> DecidedStep {
        let report = seen.report;
        let Some(worker_batch_s) = report.remote_batch_s() else {
            return (self, Reason::Measuring { reports: 0 });
        };
        let phase = SearchPhase::Searching { measurement: 0 };
        let points = vec![LawPoint::guess(self.target, report)];
        let law = ThroughputLaw::fit(&points);
        match (Self { phase, points, ..self }).seek(law, seen, f64::NEG_INFINITY) {
            (next, limited @ Reason::Limited { .. }) => (next, limited),
            (next, _) => {
                // One that was too low is turned by the first measurement.
                let next = Self { direction: next.direction.max(0), ..next };
                (next, Reason::Estimate { worker_batch_s, step_s: report.step_s })
            }
        }
    }

    /// Adds a report to the measurement of this target; at its end the law is fitted again.
    fn measure(mut self, seen: &Observation<'_>, measurement: u32) -> DecidedStep {
        self.block = self.block.with(seen);
        let doubled = 1 << measurement.min(16);
        let reports = TUNING.reports * doubled * self.tried().max(1);
        let generation = seen.report.generation(f64::from(self.target)) * f64::from(doubled);
        if !self.block.is_complete(reports, generation) {
            let reports = self.block.reports;
            return (self, Reason::Measuring { reports });
        }
        let stall = self.block.stall();
        if let Some(point) = self.block.point(self.target) {
            let here = self.points.iter().position(|known| known.target == point.target);
            let known = here.map(|at| self.points.remove(at));
            // Measurements of earlier jobs here are surer at first.
            let surer = known.filter(|known| known.reports > point.reports && !known.is_past);
            self.points.push(surer.unwrap_or(point));
            if self.points.len() > TUNING.points {
                // The first tells the times of few workers.
                self.points.remove(1);
            }
        }
        let from = self.target;
        let law = ThroughputLaw::fit(&self.points);
        // The more counts were tried, the more a further one is to save.
        let worthwhile = TUNING.saving * f64::from(self.tried().saturating_sub(1).max(1));
        let (next, reason) = self.seek(law, seen, worthwhile);
        if next.target != from {
            return (next, reason);
        }
        // That nothing helps a trainer that waits is to be certain.
        let is_certain = stall <= TUNING.bound_stall || measurement >= TUNING.certain;
        let measurement = measurement + 1;
        let next = if is_certain {
            next.converge(measurement)
        } else {
            Self { phase: SearchPhase::Searching { measurement }, ..next }
        };
        (next, reason)
    }

    fn converge(self, measurement: u32) -> Self {
        let direction = if self.has_converged { self.direction } else { 0 };
        let phase = SearchPhase::Converged { measurement };
        Self { phase, direction, has_converged: true, ..self }
    }

    /// Counts that were measured under this load.
    fn tried(&self) -> u32 {
        self.points.iter().filter(|point| point.reports > 1 && !point.is_past).count() as u32
    }

    /// Moves to the count at which a batch costs least by the law, if that saves `worthwhile` of it.
    fn seek(
        self,
        law: Option<ThroughputLaw>,
        seen: &Observation<'_>,
        worthwhile: f64,
    ) -> DecidedStep {
        let (from, settings) = (self.target, seen.settings);
        let stay = Reason::Converged { covered: 1.0 - self.block.stall() };
        let (Some(law), Some(step_s)) = (law, self.step.mean()) else {
            return (self, stay);
        };
        let demand = seen.facts.clients() / step_s;
        let law = law.with_stall(f64::from(from), demand, self.block.stall());
        let covered = (law.capacity(f64::from(from)) / demand).min(1.0);
        let prices = settings.prices();
        let (most, limit) = settings.cap();
        let most = self.throttle.granted.map_or(most, |granted| most.min(granted));
        // No model of unsteady production is good for far more workers.
        let most_steady = if law.steady.is_finite() { from + from.div_ceil(2) } else { most };
        let best = law.cheapest(demand, most.min(most_steady), &prices);
        let usd = |workers: u32| law.usd(f64::from(workers), demand, &prices);
        let saving = 1.0 - usd(best) / usd(from);
        let desired = (demand * law.batch_s(f64::from(most)) * (1.0 + TUNING.margin)).ceil() as u32;
        let is_limited = best == most && desired > most && law.bound.is_infinite();
        let reason = if is_limited {
            Reason::Limited { limit, desired }
        } else if best < from {
            Reason::Contention { from }
        } else {
            Reason::Stalled { covered, from }
        };
        // A second measurement is to ask for a move back.
        let is_back = self.direction != 0 && (best > from) != (self.direction > 0);
        let is_barred = is_back
            && (self.has_converged || self.phase == SearchPhase::Searching { measurement: 0 });
        // Workers that a full window keeps from work are not helped by more of them.
        let is_held = best > from
            && self.block.waits_while_full()
            && self.block.outstanding() < f64::from(from);
        if best == from || saving < worthwhile || is_barred || is_held {
            return (self, if is_limited && best == from { reason } else { stay });
        }
        (self.move_to(best, seen), reason)
    }

    fn move_to(self, workers: u32, seen: &Observation<'_>) -> Self {
        let (most, _) = seen.settings.cap();
        let target = workers.clamp(1, most);
        if target == self.target {
            return self;
        }
        let direction = if target > self.target { 1 } else { -1 };
        Self { target, direction, ..self }.begin_measurement(seen.report)
    }
}
