//! What the policy remembers of a job between two reports: a few hundred bytes, kept in an item.

use super::{
    Report, Settings, block::Block, capacity::Point, crowd::Crowd, thresholds::BACKPRESSURE,
    throttle::Throttle, tracker::Tracker,
};
use serde::{Deserialize, Serialize};

/// How far the search for the count has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No worker's time is known.
    #[default]
    Starting,
    /// The count is being refined.
    Scaling,
    /// The count is good, and looked at now and then.
    Converged,
}

/// What changed, of a load.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Following {
    #[default]
    Nothing,
    /// The trainer's step alone.
    Step,
    /// What a batch costs a worker. For so many seconds splits begun before may still come.
    Work { before_s: f64 },
}

impl Following {
    pub fn is_any(&self) -> bool {
        *self != Self::Nothing
    }

    /// Seconds for which splits of another cost may still come, where that is what changed.
    pub fn work(&self) -> Option<f64> {
        match self {
            Self::Work { before_s } => Some(*before_s),
            _ => None,
        }
    }
}

/// Of a window's leases this share is at work at most: splits take now longer and now shorter, and the first that is
/// not done holds all behind it.
const WINDOW_USEFUL: f64 = 0.86;

/// Two measurements of what is needed that differ by less are of one load.
const SIMILAR: f64 = 1.1;

/// Unknown fields are ignored and missing ones begin empty, so that two versions can share an item.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Workers to hold; 0 before the first report.
    pub target: u32,
    pub phase: Phase,
    /// Changes of the target so far.
    pub decisions: u32,
    /// Batches delivered at the latest report; none before the first.
    pub(super) batches: Option<u64>,
    pub(super) mode: u32,
    /// The trainer's own step, seconds.
    pub(super) step: Tracker,
    /// One worker's batch at this target, seconds.
    pub(super) work: Tracker,
    /// One worker's batch since the load changed, without waiting for others, seconds; and what `need` was
    /// computed with.
    pub(super) fresh: Tracker,
    pub(super) need_work_s: f64,
    /// Everything before this batch was handed out under another count.
    pub(super) settled_at: u64,
    /// What had been learnt under this load when it last converged: `need`, the count it was measured at, and the target.
    /// While it is known a change of load shows in `work`, whatever the target is moved to.
    pub(super) of_load: Option<OfLoad>,
    /// Workers' times have moved, by less than a change of load for certain.
    pub(super) doubt: Option<Doubt>,
    /// Before this batch `work` would be of another count.
    pub(super) work_settled_at: u64,
    /// Seconds of reports since the target changed.
    pub(super) since_move_s: f64,
    /// Reports in a row in which workers were missing.
    pub(super) short_handed: u32,
    /// What was measured at this target.
    pub(super) block: Block,
    /// Seconds a batch takes a worker at what workers share, when it was alone; none before that is known.
    pub(super) alone_shared_s: Option<f64>,
    /// Workers that would cover the demand exactly if they did not meet; 0 unknown.
    pub(super) need: f64,
    /// The step `need` was computed with, seconds, and the count it was measured at.
    pub(super) need_step_s: f64,
    pub(super) need_at: f64,
    /// A worker's computing time over the workers at work: whether they slow each other.
    pub(super) crowd: Crowd,
    /// Reports since `need` was estimated from times alone; counts until it is measured.
    pub(super) estimated: Option<u32>,
    /// The change of load that the estimate follows, whose count was known before.
    pub(super) following: Following,
    /// The most workers known to be too few, the fewest known to be enough.
    pub(super) low: Option<Point>,
    pub(super) high: Option<Point>,
    /// Share of the demand that is covered at best, where workers meet, and the count it was seen at.
    pub(super) plateau: Option<Point>,
    /// Workers at work and what they cover, where the window is what holds the others back: how many of a count are at
    /// work is counted exactly.
    pub(super) at_work: Option<Point>,
    /// Batches that workers may be ahead, as last seen; 0 before that.
    pub(super) window_batches: f64,
    /// More were at work in it than it has leases: a window of leases of several splits hands out what is left of it, the
    /// smaller the more workers ask, and its size does not say how many it keeps busy.
    pub(super) has_parts_of_leases: bool,
    /// Share of the demand that could be covered at best before what a batch costs changed.
    pub(super) covered_before: Option<f64>,
    /// Workers whose work what they share lets through, since the load changed.
    pub(super) knee: Tracker,
    /// Steps of the search between `low` and `high`.
    pub(super) tries: u32,
    /// It has converged under this load.
    pub(super) has_converged: bool,
    /// Which way the target moved since then: +1, -1, or 0. It goes one way only.
    pub(super) direction: i8,
    pub(super) throttle: Throttle,
}

/// What a load needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct OfLoad {
    pub need: f64,
    pub need_at: f64,
    pub target: u32,
}

/// What workers took before their times moved, and for how many more reports that may be a change of load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Doubt {
    pub before_s: f64,
    pub reports: u32,
}

impl State {
    /// Before the first report.
    pub fn begin(settings: &Settings) -> Self {
        let (most, _) = settings.cap();
        let target = settings.fixed.unwrap_or(settings.start).clamp(1, most);
        Self { target, ..Self::default() }
    }

    /// Forgets what was learnt about workers.
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

    /// What a batch costs a worker may change from the next splits on. Until it shows the count stays right, unless what
    /// workers share was the limit: then nothing is known.
    pub(super) fn begin_mode(&mut self) {
        let before = *self;
        self.forget_workers();
        // Reports tell of splits of the new mode only.
        self.following = Following::Work { before_s: 0.0 };
        // What held workers back does so until the contrary shows.
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

    /// Lets time pass after a change of load. Once no split of before it can come any more, its times are averaged anew.
    pub(super) fn pass_before(&mut self, seconds: f64) {
        let Following::Work { before_s } = &mut self.following else { return };
        let had_before = *before_s > 0.0;
        *before_s = (*before_s - seconds).max(0.0);
        if had_before && *before_s == 0.0 {
            self.fresh.restart();
        }
    }

    /// The most that what workers share lets through; a window holds back so many workers, whatever a batch costs them.
    pub(super) fn plateau_of_source(&self) -> Option<f64> {
        self.plateau.filter(|_| self.at_work.is_none()).map(|best| best.covered)
    }

    /// Looks from here on for the fewest workers that cover what `best` does, of which `high` do.
    pub(super) fn begin_search(&mut self, best: Point, high: Point) {
        self.plateau = Some(best);
        self.high = Some(high);
        self.low = None;
        self.tries = 0;
        self.estimated = None;
    }

    /// Takes in how far workers may be ahead, where that shows: nothing is ever further ahead than the window, and where it
    /// is full something is. A report comes right after a delivery, which may just have made room for one lease.
    pub(super) fn observe_window(&mut self, report: &Report) {
        if report.window_full > BACKPRESSURE || self.window_batches > 0.0 {
            let room = report.lease() * f64::from(report.claimable.min(1));
            self.window_batches = self.window_batches.max(report.ahead_batches as f64 + room);
            self.has_parts_of_leases |= report.workers > self.window_leases(report) + 0.5;
        }
    }

    fn window_leases(&self, report: &Report) -> f64 {
        self.window_batches / report.lease()
    }

    /// Takes a measured count in: how many would cover the demand exactly.
    pub(super) fn learn(&mut self, here: &Point) {
        self.need = here.ray(1.0);
        self.need_at = here.workers;
        self.need_step_s = self.step.mean;
        self.estimated = None;
        self.covered_before = None;
    }

    /// What a count measured as too few says is enough, where so many would do in proportion: it is not tried again though
    /// these are busy. Fewer workers may find larger parts of leases, or have lost the fastest of them. Where the two differ
    /// by more the load has changed.
    pub(super) fn above_low(&self, needed: f64, settings: &Settings) -> f64 {
        let tells = |low: &Point| self.has_parts_of_leases || low.ray(1.0) < SIMILAR * needed;
        self.low.filter(tells).map_or(0.0, |low| low.ray(settings.goal()))
    }

    /// Whether the splits whose times come with the next report were begun under this count: a worker that has been at
    /// work for a whole lease since it changed has done so. What it made may have yet to arrive.
    pub(super) fn times_are_new(&self, report: &Report) -> bool {
        let lease_s = report.worker_batch_s().unwrap_or(f64::INFINITY) * report.lease();
        self.since_move_s > lease_s
    }

    /// The most workers that a window keeps busy, where it has been seen full.
    pub(super) fn window_most(&self, report: &Report) -> f64 {
        let leases = self.window_leases(report);
        if leases > 0.0 && !self.has_parts_of_leases {
            (WINDOW_USEFUL * leases).max(1.0)
        } else {
            f64::INFINITY
        }
    }

    /// Workers that do what `workers` would at the speed they have when `at` of them work.
    pub(super) fn crowded(&self, workers: f64, at: f64) -> f64 {
        self.crowd.as_many(workers, at)
    }

    /// Forgets which counts were tried.
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
    use super::{super::WorkerTimes, *};

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
        let times = WorkerTimes { compute_s: 2.0, ..WorkerTimes::default() };
        let report = Report { lease_batches: 8, worker: Some(times), ..Report::default() };
        let mut state = State { since_move_s: 15.0, ..State::default() };
        assert!(!state.times_are_new(&report));
        state.since_move_s = 17.0;
        assert!(state.times_are_new(&report));
        assert!(!state.times_are_new(&Report { worker: None, ..report }));
    }

    #[test]
    fn a_place_that_was_just_freed_is_of_the_window() {
        // Room for nine leases; where reports and leases end together one of them is free at every report.
        let report = Report {
            window_full: 0.9,
            ahead_batches: 160,
            claimable: 1,
            lease_batches: 20,
            ..Report::default()
        };
        let mut state = State::default();
        state.observe_window(&report);
        assert!((state.window_most(&report) - 0.86 * 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_window_that_keeps_more_at_work_than_it_has_leases_hands_out_parts() {
        // Room for 12.5 leases of 24 batches.
        let report = |workers: f64| Report {
            window_full: 0.9,
            ahead_batches: 300,
            lease_batches: 24,
            workers,
            ..Report::default()
        };
        let mut state = State::default();
        state.observe_window(&report(12.4));
        assert!((state.window_most(&report(12.4)) - 0.86 * 12.5).abs() < 1e-9);
        state.observe_window(&report(14.2));
        assert_eq!(state.window_most(&report(14.2)), f64::INFINITY);
    }

    #[test]
    fn a_count_that_was_too_few_is_not_enough_in_proportion() {
        let settings = Settings::default();
        let low = Some(Point { workers: 6.0, covered: 0.94 });
        let state = State { low, ..State::default() };
        // Seven cover 113 %: by proportion 6.2 are needed, and the six that were tried covered 94 %.
        assert!(state.above_low(6.2, &settings) > 6.0);
        assert_eq!(state.above_low(4.0, &settings), 0.0, "another load");
    }
}
