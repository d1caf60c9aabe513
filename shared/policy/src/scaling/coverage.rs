//! `coverage`, the default policy: the number of workers at which a batch costs least.
//!
//! A waiting trainer costs more than a worker, and a worker that has nothing to do leaves and costs nothing. So the
//! policy covers the whole demand, and takes workers away only where they make each other slower. [`decide`] is pure.
//! docs/scaling.md derives it.

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

/// Difference of a report from what earlier jobs measured, as a share of that, and the consecutive reports of it that
/// discard what they measured.
const DIFFERS: f64 = 0.2;
const DIFFERING_REPORTS: u32 = 3;

/// Progress of the search for the count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchPhase {
    /// No worker's time is known.
    Estimating { reports: u32 },
    /// The target is being measured, for the `measurement`th time.
    Searching { measurement: u32 },
    /// No other count saves enough; the measurement goes on.
    Converged { measurement: u32 },
}

/// State of the policy between two reports. Unknown fields are ignored and missing ones default, so that two versions
/// can share an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CoverageState {
    /// Workers to hold; 0 before the first report.
    pub target: u32,
    pub phase: SearchPhase,
    /// Changes of the target so far.
    pub decisions: u32,
    /// Batches delivered at the last report; `None` before the first.
    batches: Option<u64>,
    mode: u32,
    /// Batches before this one were handed out under another count.
    settled_at: u64,
    /// The trainer's step, and a worker's batch at this target, in seconds.
    step: LoadTrend,
    compute: LoadTrend,
    shared: LoadTrend,
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

impl Default for CoverageState {
    fn default() -> Self {
        Self {
            target: 0,
            phase: SearchPhase::Estimating { reports: 0 },
            decisions: 0,
            batches: None,
            mode: 0,
            settled_at: 0,
            step: LoadTrend::default(),
            compute: LoadTrend::default(),
            shared: LoadTrend::default(),
            block: MeasuredBlock::default(),
            points: Vec::new(),
            stored: None,
            direction: 0,
            has_converged: false,
            throttle: Throttle::default(),
        }
    }
}

/// The policy with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Coverage(Box<CoverageState>);

impl ScalingPolicy for Coverage {
    const NAME: &'static str = "coverage";
    const ABOUT: &'static str = "the workers at which a batch costs least, from measured times";

    fn begin(settings: &Settings) -> Self {
        Self(Box::new(CoverageState::begin(settings)))
    }

    fn begin_with(settings: &Settings, metrics: &WorkerMetrics) -> Self {
        Self(Box::new(CoverageState::begin_with(settings, metrics)))
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
    let mut next = state.clone();
    if next.target == 0 {
        next.target = CoverageState::begin(settings).target;
    }
    let reason = next.observe(report, facts, settings);
    let (most, _) = settings.cap();
    if next.target > most {
        // Limits may be lowered while a job runs.
        next.target = most;
        next.block = MeasuredBlock::default();
    }
    let target = next.target;
    (next, Decision { target, reason })
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

impl CoverageState {
    /// State before the first report.
    pub fn begin(settings: &Settings) -> Self {
        let (most, _) = settings.cap();
        Self { target: settings.start.clamp(1, most), ..Self::default() }
    }

    /// State at the count that earlier jobs converged to, with their law.
    pub fn begin_with(settings: &Settings, metrics: &WorkerMetrics) -> Self {
        let (most, _) = settings.cap();
        // The cast saturates.
        let workers = (metrics.workers.mean.round() as u32).clamp(1, most);
        Self {
            target: workers,
            phase: SearchPhase::Searching { measurement: 0 },
            step: LoadTrend::known(metrics.step_s.mean, STORED_REPORTS),
            points: ThroughputLaw::stored(metrics).points(workers),
            stored: Some((*metrics, 0)),
            ..Self::default()
        }
    }

    /// Takes a report and passes it to the step of the search that it concerns.
    fn observe(
        &mut self,
        report: &TrainingReport,
        facts: &ScalerFacts,
        settings: &Settings,
    ) -> Reason {
        let workers = self.target;
        if !report.is_plausible() {
            return Reason::Implausible { workers };
        }
        let from_batch = match self.batches {
            Some(before) if report.batches <= before => return Reason::Repeated { workers },
            before => before.unwrap_or(0),
        };
        let is_first = self.batches.replace(report.batches).is_none();
        if std::mem::replace(&mut self.mode, facts.mode) != facts.mode && !is_first {
            self.begin_load(report);
            self.phase = SearchPhase::Estimating { reports: 0 };
            return Reason::ModeChanged { workers };
        }
        if is_first && self.stored.is_some() {
            self.begin_measurement(report);
        }
        let is_short = report.remote_workers < f64::from(workers);
        if facts.claimable == 0 && report.window_full < 0.05 && is_short {
            return Reason::NothingLeft { workers };
        }
        let batches = (report.batches - from_batch) as f64;
        let elapsed_s = batches / facts.clients() * report.batch_time_s();
        let is_settled = from_batch >= self.settled_at;
        let seen = Observation { report, facts, settings, batches, elapsed_s, is_settled };
        if let Some(reason) = self.observe_stored(&seen) {
            return reason;
        }
        if let Some(reason) = self.observe_account(&seen) {
            return reason;
        }
        if let Some(reason) = self.observe_load(&seen) {
            return reason;
        }
        match self.phase {
            SearchPhase::Estimating { reports } => self.estimate(&seen, reports),
            _ if !is_settled => Reason::Settling { workers },
            SearchPhase::Searching { measurement } | SearchPhase::Converged { measurement } => {
                self.measure(&seen, measurement)
            }
        }
    }

    /// The measurements of earlier jobs are discarded if this job is another.
    fn observe_stored(&mut self, seen: &Observation<'_>) -> Option<Reason> {
        // A measurement of its own confirms it.
        let is_unconfirmed = self.phase == SearchPhase::Searching { measurement: 0 };
        let (metrics, differing) = self.stored.as_mut().filter(|_| is_unconfirmed)?;
        let report = seen.report;
        let differs = |here: f64, stored: f64| (here / stored - 1.0).abs() > DIFFERS;
        let slowed = 1.0 + metrics.slowing.mean * report.remote_workers;
        let differs = differs(report.step_s, metrics.step_s.mean)
            || report.remote_batch_s().is_some()
                && differs(report.remote_compute_s, metrics.compute_s.mean * slowed);
        if !differs {
            *differing = 0;
            return None;
        }
        *differing += 1;
        if *differing < DIFFERING_REPORTS {
            return Some(Reason::Measuring { reports: self.block.reports, workers: self.target });
        }
        self.points.clear();
        self.step = LoadTrend::known(report.step_s, 1);
        self.begin_load(report);
        self.phase = SearchPhase::Estimating { reports: 0 };
        self.estimate(seen, 0);
        Some(Reason::Discarded { workers: self.target })
    }

    /// The account's limit on workers: learnt, and tried again.
    fn observe_account(&mut self, seen: &Observation<'_>) -> Option<Reason> {
        if self.throttle.observe(seen.facts, self.target) {
            let granted = self.throttle.granted.unwrap_or(1);
            self.move_to(granted, seen);
            return Some(Reason::Throttled { granted });
        }
        if self.throttle.is_over() {
            let workers = self.target.saturating_add(1 + self.target / 20);
            self.throttle.retry();
            self.move_to(workers, seen);
            return Some(Reason::Retry { workers: self.target });
        }
        None
    }

    /// Another step of the trainer, or another cost of a batch: the law gives the new count at once.
    fn observe_load(&mut self, seen: &Observation<'_>) -> Option<Reason> {
        let step_before = self.step.add(seen.report.step_s);
        let generation = seen.report.generation(f64::from(self.target));
        let part = |trend: &mut LoadTrend, time_s: f64| {
            let before_s = trend.add_part(time_s, seen.batches, generation)?;
            Some((before_s, trend.mean()?))
        };
        let (mut computing, mut sharing) = (None, None);
        if seen.is_settled && seen.report.remote_batch_s().is_some() {
            computing = part(&mut self.compute, seen.report.remote_compute_s);
            sharing = part(&mut self.shared, seen.report.remote_shared_s());
            // Workers wait for each other, so their waits vary.
            let whole_s = seen.report.remote_batch_s().unwrap_or(0.0);
            let is_free =
                || ThroughputLaw::fit(&self.points).is_none_or(|law| law.bound.is_infinite());
            let is_large =
                |before_s: f64, after_s: f64| (after_s - before_s).abs() > TUNING.change * whole_s;
            sharing =
                sharing.filter(|&(before_s, after_s)| is_large(before_s, after_s) && is_free());
        }
        if self.points.is_empty() {
            return None;
        }
        if let Some((before_s, after_s)) = computing.or(sharing) {
            self.begin_load(seen.report);
            if computing.is_some() {
                let law = ThroughputLaw::fit(&self.points);
                let slower = |law: ThroughputLaw| law.slower(after_s / before_s);
                self.seek_by(law.map(slower), seen);
                self.points.iter_mut().for_each(|point| point.is_past = true);
            } else {
                // Calls and pauses stay in proportion.
                let grown = after_s / before_s;
                let last = self.points.drain(..).next_back();
                self.points.extend(last.map(|point| LawPoint {
                    batch_s: point.compute_s + (point.batch_s - point.compute_s) * grown,
                    reported_s: point.reported_s * grown,
                    stall: 0.0,
                    reports: 1,
                    ..point
                }));
                self.seek(seen);
            }
            return Some(Reason::WorkerChanged { before_s, after_s, workers: self.target });
        }
        let (before_s, after_s) = (step_before?, self.step.mean()?);
        self.begin_load(seen.report);
        self.seek(seen);
        Some(Reason::StepChanged { before_s, after_s, workers: self.target })
    }

    /// Begins with another load: it may ask for a move in any direction.
    fn begin_load(&mut self, report: &TrainingReport) {
        (self.direction, self.has_converged, self.stored) = (0, false, None);
        self.begin_measurement(report);
    }

    /// Begins to measure anew what arrives from now on.
    fn begin_measurement(&mut self, report: &TrainingReport) {
        self.block = MeasuredBlock::default();
        // The first splits of new workers arrive together, after a wait that is not of their number.
        let first = report.generation(f64::from(self.target)) as u64;
        let ahead = report.ahead_batches.saturating_add(first);
        self.settled_at = report.batches.saturating_add(ahead);
        (self.compute, self.shared) = Default::default();
        self.phase = SearchPhase::Searching { measurement: 0 };
    }

    /// The first target, from the times of the workers that there are.
    fn estimate(&mut self, seen: &Observation<'_>, reports: u32) -> Reason {
        let report = seen.report;
        let Some(worker_batch_s) = report.remote_batch_s() else {
            self.phase = SearchPhase::Estimating { reports: reports + 1 };
            return Reason::Measuring { reports, workers: self.target };
        };
        let workers = report.remote_workers.max(1.0);
        self.points.clear();
        self.points.push(LawPoint {
            target: self.target,
            workers,
            batch_s: worker_batch_s,
            compute_s: report.remote_compute_s,
            reported_s: report.remote_shared_s(),
            stall: 0.0,
            // Calls are not in it: it was not measured by its rate.
            reports: 0,
            is_past: false,
        });
        self.phase = SearchPhase::Searching { measurement: 0 };
        match self.seek(seen) {
            limited @ Reason::Limited { .. } => limited,
            _ => Reason::Estimate { worker_batch_s, step_s: report.step_s, workers: self.target },
        }
    }

    /// Adds a report to the measurement of this target; at its end the law is fitted again.
    fn measure(&mut self, seen: &Observation<'_>, measurement: u32) -> Reason {
        let workers = self.target;
        self.block.add(seen);
        let doubled = 1 << measurement.min(16);
        // The more counts were tried, the surer the next move is to be.
        let reports = TUNING.reports * doubled * self.tried().max(1);
        let generation = seen.report.generation(f64::from(workers)) * f64::from(doubled);
        if !self.block.is_complete(reports, generation) {
            return Reason::Measuring { reports: self.block.reports, workers };
        }
        let covered = 1.0 - self.block.stall();
        if let Some(point) = self.block.point(workers) {
            // Times that many workers reported, which may have waited for each other, are no more than a first guess.
            let is_guess = |known: &LawPoint| known.reports == 0 && known.workers > 1.5;
            self.points.retain(|known| !is_guess(known));
            let here = self.points.iter().position(|known| known.target == workers);
            let known = here.map(|at| self.points.remove(at));
            // Measurements of earlier jobs here are surer at first.
            let surer = known.filter(|known| known.reports > point.reports && !known.is_past);
            self.points.push(surer.unwrap_or(point));
            if self.points.len() > TUNING.points {
                // The first tells the times of few workers.
                self.points.remove(1);
            }
        }
        let reason = self.seek(seen);
        if self.target != workers {
            return reason;
        }
        // That nothing helps a trainer that waits is to be certain.
        let is_certain = covered >= 1.0 - TUNING.bound_stall || measurement >= TUNING.certain;
        let next = measurement + 1;
        if is_certain && !self.has_converged {
            (self.direction, self.has_converged) = (0, true);
        }
        self.phase = if is_certain {
            SearchPhase::Converged { measurement: next }
        } else {
            SearchPhase::Searching { measurement: next }
        };
        match reason {
            Reason::Limited { .. } => reason,
            _ => Reason::Converged { covered, workers },
        }
    }

    /// Counts that were measured under this load.
    fn tried(&self) -> u32 {
        let is_now = |point: &&LawPoint| point.reports > 1 && !point.is_past;
        self.points.iter().filter(is_now).count() as u32
    }

    /// Moves to the count at which a batch costs least by the law, if that saves enough.
    fn seek(&mut self, seen: &Observation<'_>) -> Reason {
        self.seek_by(ThroughputLaw::fit(&self.points), seen)
    }

    fn seek_by(&mut self, law: Option<ThroughputLaw>, seen: &Observation<'_>) -> Reason {
        let (from, settings) = (self.target, seen.settings);
        let stay = Reason::Converged { covered: 1.0 - self.block.stall(), workers: from };
        let (Some(law), Some(step_s)) = (law, self.step.mean()) else {
            return stay;
        };
        // Workers cannot shorten the way of a batch that is made.
        let fetch = self.block.fetch_stall().min(0.99);
        let demand = seen.facts.clients() * (1.0 - fetch) / step_s;
        let law = law.with_stall(f64::from(from), demand, self.block.stall());
        let prices = settings.prices();
        let (most, limit) = settings.cap();
        let most = self.throttle.granted.map_or(most, |granted| most.min(granted));
        // No model of its unsteadiness is good for far more workers.
        let most_steady = if law.steady.is_finite() { from + from.div_ceil(2) } else { most };
        let best = law.cheapest(demand, most.min(most_steady), &prices);
        let usd = |workers: u32| law.usd(f64::from(workers), demand, &prices);
        let saving = 1.0 - usd(best) / usd(from);
        let covered = (law.capacity(f64::from(from)) / demand).min(1.0);
        // Each further count is to save more, and one back more than noise explains.
        let further = TUNING.saving * f64::from(self.tried().saturating_sub(1).max(1));
        let least = |way: i8| match self.phase {
            _ if self.direction != -way => further,
            SearchPhase::Searching { measurement: 0 } => f64::INFINITY,
            _ if self.has_converged => f64::INFINITY,
            _ => TUNING.turn * further,
        };
        // Workers that a full window keeps from work are not helped by more of them.
        let is_held_by_window =
            self.block.waits_while_full() && self.block.outstanding() < f64::from(from);
        let desired = (demand * law.batch_s(f64::from(most)) * (1.0 + TUNING.margin)).ceil() as u32;
        let limited = Reason::Limited { limit, desired, workers: most };
        let is_limited = best == most && desired > most && law.bound.is_infinite();
        if best > from && saving >= least(1) && !is_held_by_window {
            self.move_to(best, seen);
            return if is_limited {
                limited
            } else {
                Reason::Stalled { covered, from, workers: best }
            };
        }
        let has_surplus = self.block.is_full()
            && self.direction < 1
            && f64::from(best) <= (1.0 - TUNING.surplus) * f64::from(from);
        // A surplus costs nothing: it is lowered with care.
        let best = if saving < least(-1) { best.max(from.div_ceil(2)) } else { best };
        if best < from && (saving >= least(-1) || has_surplus && best + 1 < from) {
            self.move_to(best, seen);
            let is_held = law.bound.is_finite() || law.beta > 0.0;
            return if is_held {
                Reason::Contention { from, workers: best }
            } else {
                Reason::Surplus { covered, from, workers: best }
            };
        }
        if is_limited && from == most { limited } else { stay }
    }

    fn move_to(&mut self, workers: u32, seen: &Observation<'_>) {
        let (most, _) = seen.settings.cap();
        let workers = workers.clamp(1, most);
        if workers == self.target {
            return;
        }
        self.direction = if workers > self.target { 1 } else { -1 };
        self.target = workers;
        self.decisions += 1;
        self.begin_measurement(seen.report);
    }
}
