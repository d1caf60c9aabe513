//! State of the policy between two reports: a few hundred bytes, kept in an item.

use super::{
    ScalerFacts, Settings, TrainingReport, block::Block, capacity::Point, crowd::Crowd,
    thresholds::BACKPRESSURE, throttle::Throttle, tracker::Tracker,
};
use serde::{Deserialize, Serialize};

/// Progress of the search for the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No worker's time is known.
    #[default]
    Starting,
    /// The count is being refined.
    Scaling,
    /// The count is good; it is checked periodically.
    Converged,
}

/// The kind of a change of load.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Following {
    #[default]
    Nothing,
    /// Only the trainer's step changed.
    Step,
    /// A worker's time per batch changed. Splits begun before may still arrive for `before_s` seconds.
    Work { before_s: f64 },
}

impl Following {
    pub fn is_any(&self) -> bool {
        *self != Self::Nothing
    }

    /// Seconds for which earlier splits of another cost may still arrive, after a change of work.
    pub fn work(&self) -> Option<f64> {
        match self {
            Self::Work { before_s } => Some(*before_s),
            _ => None,
        }
    }
}

/// Largest share of a window's leases that is worked on: split times vary, and the first split that is not done blocks
/// all behind it.
const WINDOW_USEFUL: f64 = 0.86;

/// Two measurements of the need within this factor are of one load.
const SIMILAR: f64 = 1.1;

/// Unknown fields are ignored and missing ones default, so that two versions can share an item.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Workers to hold; 0 before the first report.
    pub target: u32,
    pub phase: Phase,
    /// Changes of the target so far.
    pub decisions: u32,
    /// Batches delivered at the last report; `None` before the first.
    pub(super) batches: Option<u64>,
    pub(super) mode: u32,
    /// The trainer's step, in seconds.
    pub(super) step: Tracker,
    /// One worker's time per batch at this target, in seconds.
    pub(super) work: Tracker,
    /// One worker's time per batch since the load changed, without waiting for others, in seconds; and the value
    /// from which `need` was computed.
    pub(super) fresh: Tracker,
    pub(super) need_work_s: f64,
    /// Batches before this one were handed out under another count.
    pub(super) settled_at: u64,
    /// State under this load when it last converged: `need`, the count at which it was measured, and the target.
    /// While it is known, a change of load is detected in `work` across moves of the target.
    pub(super) of_load: Option<OfLoad>,
    /// Workers' times have changed by less than a certain change of load.
    pub(super) doubt: Option<Doubt>,
    /// Before this batch, samples of `work` would be of another count.
    pub(super) work_settled_at: u64,
    /// Seconds of reports since the target changed.
    pub(super) since_move_s: f64,
    /// Consecutive reports with missing workers.
    pub(super) short_handed: u32,
    /// Measurement at this target.
    pub(super) block: Block,
    /// A single worker's seconds per batch at shared resources; `None` before it is known.
    pub(super) alone_shared_s: Option<f64>,
    /// Workers that would cover the demand exactly without contention; 0 if unknown.
    pub(super) need: f64,
    /// The step from which `need` was computed, in seconds, and the count at which it was measured.
    pub(super) need_step_s: f64,
    pub(super) need_at: f64,
    /// Compute times at different counts: whether workers slow each other.
    pub(super) crowd: Crowd,
    /// Reports since `need` was estimated from times alone; `None` once it is measured.
    pub(super) estimated: Option<u32>,
    /// The change of load that the estimate follows from a known count.
    pub(super) following: Following,
    /// The highest count known to be too low, and the lowest known to be enough.
    pub(super) low: Option<Point>,
    pub(super) high: Option<Point>,
    /// The best coverage under contention, and the count that reached it.
    pub(super) plateau: Option<Point>,
    /// Workers at work and their coverage, if the window limits the others. The number at work is counted
    /// exactly.
    pub(super) at_work: Option<Point>,
    /// Size of the window in batches, as last observed; 0 before that.
    pub(super) window_batches: f64,
    /// Whether more workers were at work than the window has leases. A window of leases of several splits hands out its
    /// rest in smaller parts the more workers ask, so its size does not limit how many it keeps busy.
    pub(super) has_parts_of_leases: bool,
    /// The best coverage before a batch's cost changed.
    pub(super) covered_before: Option<f64>,
    /// Workers whose work the shared resources let through, since the load changed.
    pub(super) knee: Tracker,
    /// Steps of the search between `low` and `high`.
    pub(super) tries: u32,
    /// Whether it has converged under this load.
    pub(super) has_converged: bool,
    /// Direction of the target's moves since then: +1, -1, or 0. It moves in one direction only.
    pub(super) direction: i8,
    pub(super) throttle: Throttle,
}

/// Need of a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct OfLoad {
    pub need: f64,
    pub need_at: f64,
    pub target: u32,
}

/// Workers' time before it changed, and the remaining reports that may confirm a change of load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Doubt {
    pub before_s: f64,
    pub reports: u32,
}

impl State {
    /// State before the first report.
    pub fn begin(settings: &Settings) -> Self {
        let (most, _) = settings.cap();
        let target = settings.start.clamp(1, most);
        Self { target, ..Self::default() }
    }

    /// Forgets measurements of workers.
    pub(super) fn forget_workers(&mut self) {
        self.work.restart();
        self.doubt = None;
        self.of_load = None;
        self.block = Block::default();
        self.need = 0.0;
        self.need_step_s = 0.0;
        self.estimated = None;
        self.fresh.restart();
        self.knee = Tracker::default();
        self.crowd = Crowd::default();
        self.forget_search();
        self.phase = Phase::Starting;
    }

    /// Starts a new mode: the cost of a batch may change from the next splits on. Until then the count stays, unless a
    /// shared resource was the limit: then nothing is known.
    pub(super) fn begin_mode(&mut self) {
        let before = *self;
        self.since_move_s = 0.0;
        self.forget_workers();
        // Reports contain only splits of the new mode.
        self.following = Following::Work { before_s: 0.0 };
        // The former limit applies until measurements differ.
        self.covered_before = before.plateau_of_source();
        if before.phase != Phase::Starting && before.plateau.is_none() && before.work.samples > 0 {
            self.need = before.need;
            self.need_step_s = before.need_step_s;
            self.need_at = before.need_at;
            self.need_work_s = before.work.mean;
            self.estimated = Some(0);
            self.phase = Phase::Scaling;
        }
    }

    /// Advances time after a change of load. Once no earlier split can arrive, times are averaged anew.
    pub(super) fn pass_before(&mut self, seconds: f64) {
        let Following::Work { before_s } = &mut self.following else { return };
        let had_before = *before_s > 0.0;
        *before_s = (*before_s - seconds).max(0.0);
        if had_before && *before_s == 0.0 {
            self.fresh.restart();
        }
    }

    /// Coverage that shared resources allow. `None` if the window is the limit: that limits workers, at any cost of a batch.
    pub(super) fn plateau_of_source(&self) -> Option<f64> {
        self.plateau.filter(|_| self.at_work.is_none()).map(|best| best.covered)
    }

    /// Starts a search for the fewest workers that cover as much as `best`; `high` are known to do.
    pub(super) fn begin_search(&mut self, best: Point, high: Point) {
        self.plateau = Some(best);
        self.high = Some(high);
        self.low = None;
        self.tries = 0;
        self.estimated = None;
    }

    /// Observes the size of the window: nothing is ever further ahead, and a full one reaches it. A report follows a
    /// delivery, which may just have made room for one lease.
    pub(super) fn observe_window(&mut self, report: &TrainingReport, facts: &ScalerFacts) {
        if report.window_full > BACKPRESSURE || self.window_batches > 0.0 {
            let room = report.lease() * f64::from(facts.claimable.min(1));
            self.window_batches = self.window_batches.max(report.ahead_batches as f64 + room);
            self.has_parts_of_leases |= report.workers() > self.window_leases(report) + 0.5;
        }
    }

    fn window_leases(&self, report: &TrainingReport) -> f64 {
        self.window_batches / report.lease()
    }

    /// Learns the need from a measured count.
    pub(super) fn learn(&mut self, here: &Point) {
        self.need = here.ray(1.0);
        self.need_at = here.workers;
        self.need_step_s = self.step.mean;
        self.estimated = None;
        self.covered_before = None;
    }

    /// Lower bound of the need from a count measured as too low, unless the two differ so much that the load has changed.
    /// That count is not tried again even if its workers are busy: with fewer workers the parts of leases may be
    /// larger, or the fastest workers gone.
    pub(super) fn above_low(&self, needed: f64, settings: &Settings) -> f64 {
        let tells = |low: &Point| self.has_parts_of_leases || low.ray(1.0) < SIMILAR * needed;
        self.low.filter(tells).map_or(0.0, |low| low.ray(settings.goal()))
    }

    /// Whether the splits in the next report's times were begun under this count: true after each worker has completed a
    /// whole lease since the change. Their batches may not have arrived yet.
    pub(super) fn times_are_new(&self, report: &TrainingReport) -> bool {
        let lease_s = report.remote_batch_s().unwrap_or(f64::INFINITY) * report.lease();
        self.since_move_s > lease_s
    }

    /// The most workers that the window keeps busy, if it has been observed full.
    pub(super) fn window_most(&self, report: &TrainingReport) -> f64 {
        let leases = self.window_leases(report);
        if leases > 0.0 && !self.has_parts_of_leases {
            (WINDOW_USEFUL * leases).max(1.0)
        } else {
            f64::INFINITY
        }
    }

    /// Workers that do what `workers` would at the speed observed with `at` workers.
    pub(super) fn crowded(&self, workers: f64, at: f64) -> f64 {
        self.crowd.as_many(workers, at)
    }

    /// Forgets the counts that were tried.
    pub(super) fn forget_search(&mut self) {
        self.low = None;
        self.high = None;
        self.plateau = None;
        self.at_work = None;
        self.tries = 0;
        self.direction = 0;
        self.has_converged = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_before_a_change_are_averaged_only_while_they_come() {
        let mut state = State { following: Following::Work { before_s: 25.0 }, ..State::default() };
        state.fresh.add(3.0);
        state.pass_before(20.0);
        assert_eq!(state.fresh.samples, 1, "some are still at splits of before");
        state.pass_before(20.0);
        assert_eq!(state.fresh.samples, 0);
        state.fresh.add(1.0);
        state.pass_before(20.0);
        assert_eq!(state.fresh.samples, 1, "once");
    }

    #[test]
    fn a_window_is_no_limit_of_the_source() {
        let best = Point { workers: 20.0, covered: 0.7 };
        let mut state = State { plateau: Some(best), ..State::default() };
        assert_eq!(state.plateau_of_source(), Some(0.7));
        state.at_work = Some(Point { workers: 20.0, covered: 0.7 });
        assert_eq!(state.plateau_of_source(), None);
    }

    #[test]
    fn times_are_of_a_count_once_a_lease_under_it_can_have_been_done() {
        let report =
            TrainingReport { lease_batches: 8, remote_compute_s: 2.0, ..TrainingReport::default() };
        let mut state = State { since_move_s: 15.0, ..State::default() };
        assert!(!state.times_are_new(&report));
        state.since_move_s = 17.0;
        assert!(state.times_are_new(&report));
        assert!(!state.times_are_new(&TrainingReport { remote_compute_s: 0.0, ..report }));
    }

    #[test]
    fn a_place_that_was_just_freed_is_of_the_window() {
        // Room for nine leases; reports coincide with the ends of leases, so one is always free.
        let report = TrainingReport {
            window_full: 0.9,
            ahead_batches: 160,
            lease_batches: 20,
            ..TrainingReport::default()
        };
        let facts = ScalerFacts { claimable: 1, ..ScalerFacts::default() };
        let mut state = State::default();
        state.observe_window(&report, &facts);
        assert!((state.window_most(&report) - 0.86 * 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_window_that_keeps_more_at_work_than_it_has_leases_hands_out_parts() {
        // Room for 12.5 leases of 24 batches.
        let report = |workers: f64| TrainingReport {
            window_full: 0.9,
            ahead_batches: 300,
            lease_batches: 24,
            remote_workers: workers,
            ..TrainingReport::default()
        };
        let (mut state, facts) = (State::default(), ScalerFacts::default());
        state.observe_window(&report(12.4), &facts);
        assert!((state.window_most(&report(12.4)) - 0.86 * 12.5).abs() < 1e-9);
        state.observe_window(&report(14.2), &facts);
        assert_eq!(state.window_most(&report(14.2)), f64::INFINITY);
    }

    #[test]
    fn a_count_that_was_too_few_is_not_enough_in_proportion() {
        let settings = Settings::default();
        let low = Some(Point { workers: 6.0, covered: 0.94 });
        let state = State { low, ..State::default() };
        // Seven cover 113 %: in proportion 6.2 are needed, but six were tried and covered 94 %.
        assert!(state.above_low(6.2, &settings) > 6.0);
        assert_eq!(state.above_low(4.0, &settings), 0.0, "another load");
    }
}
