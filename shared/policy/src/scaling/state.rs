//! What the policy remembers of a job between two reports: a few hundred bytes, kept in an item.

use super::{
    Settings,
    block::{Block, Line},
    capacity::Point,
    throttle::Throttle,
    tracker::Tracker,
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

/// Standard errors from which on workers are said to slow each other: less than the 4 of other changes, as what is
/// measured at the new count corrects it.
const CROWD_CERTAIN: f64 = 3.0;
/// Reports it takes to tell.
const CROWD_REPORTS: f64 = 8.0;
/// The numbers of workers it is told by must differ by this share of their mean (standard deviation).
const CROWD_SPREAD: f64 = 0.1;

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
    pub(super) crowd: Line,
    /// Reports since `need` was estimated from times alone; counts until it is measured.
    pub(super) estimated: Option<u32>,
    /// The estimate follows a change of load, whose count was known before.
    pub(super) is_following: bool,
    /// The most workers known to be too few, the fewest known to be enough.
    pub(super) low: Option<Point>,
    pub(super) high: Option<Point>,
    /// Share of the demand that is covered at best, where workers meet.
    pub(super) plateau: Option<f64>,
    /// Steps of the search between `low` and `high`.
    pub(super) tries: u32,
    /// It has converged under this load.
    pub(super) has_converged: bool,
    /// Which way the target moved since then: +1, -1, or 0. It goes one way only.
    pub(super) direction: i8,
    pub(super) throttle: Throttle,
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
        self.block = Block::default();
        self.need = 0.0;
        self.need_step_s = 0.0;
        self.estimated = None;
        self.fresh.restart();
        self.crowd = Line::default();
        self.forget_search();
        self.phase = Phase::Starting;
    }

    /// What a batch costs a worker may change from the next splits on. Until it shows the count stays right, unless what
    /// workers share was the limit: then nothing is known.
    pub(super) fn begin_mode(&mut self) {
        let before = *self;
        self.forget_workers();
        self.is_following = true;
        if before.phase != Phase::Starting && before.plateau.is_none() && before.work.samples > 0 {
            self.need = before.need;
            self.need_step_s = before.need_step_s;
            self.need_at = before.need_at;
            self.need_work_s = before.work.mean;
            self.estimated = Some(0);
            self.phase = Phase::Scaling;
        }
    }

    /// Takes a measured count in: how many would cover the demand exactly.
    pub(super) fn learn(&mut self, here: &Point) {
        self.need = here.ray(1.0);
        self.need_at = here.workers;
        self.need_step_s = self.step.mean;
        self.estimated = None;
    }

    /// Workers that do what `workers` would at the speed they have when `at` of them work.
    pub(super) fn crowded(&self, workers: f64, at: f64) -> f64 {
        let slowing = self.slowing();
        let alone = workers / (1.0 + slowing * at);
        // Beyond four times as many every further one mostly slows the others.
        let crowded = alone / (1.0 - slowing * alone).max(0.25);
        if workers > at { crowded.max(workers) } else { crowded.min(workers) }
    }

    /// Share by which each further worker slows the others, where that is certain.
    fn slowing(&self) -> f64 {
        let Some((slope, error)) = self.crowd.slope() else { return 0.0 };
        let alone_s = self.crowd.y - slope * self.crowd.x;
        if self.crowd.count < CROWD_REPORTS {
            return 0.0;
        }
        let spread = (self.crowd.xx / self.crowd.count).sqrt();
        if spread < CROWD_SPREAD * self.crowd.x || slope < CROWD_CERTAIN * error || alone_s <= 0.0 {
            return 0.0;
        }
        // More than a half of their time would be beyond what a straight line says.
        (slope / alone_s).min(1.0 / self.crowd.x)
    }

    /// Forgets which counts were tried.
    pub(super) fn forget_search(&mut self) {
        self.low = None;
        self.high = None;
        self.plateau = None;
        self.tries = 0;
        self.direction = 0;
        self.has_converged = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports in which a worker computes for `alone_s`, and each further one slows it by a share.
    fn crowd(alone_s: f64, slowing: f64, counts: &[f64]) -> State {
        let mut state = State::default();
        for (i, workers) in counts.iter().cycle().take(24).enumerate() {
            let noise = if i % 2 == 0 { 1.02 } else { 0.98 };
            state.crowd.add(*workers, alone_s * (1.0 + slowing * workers) * noise);
        }
        state
    }

    #[test]
    fn workers_that_slow_each_other_need_more_than_in_proportion() {
        let state = crowd(2.0, 0.004, &[20.0, 100.0, 60.0]);
        // At 100 they take 1.4 times as long as alone: 142.9 without that, and 333 with it.
        let doubled = state.crowded(200.0, 100.0);
        assert!((300.0..370.0).contains(&doubled), "{doubled}");
        let halved = state.crowded(50.0, 100.0);
        assert!((40.0..43.0).contains(&halved), "{halved}");
    }

    #[test]
    fn what_is_not_certain_is_not_said() {
        for state in [crowd(2.0, 0.0, &[20.0, 100.0, 60.0]), crowd(2.0, 0.1, &[20.0, 20.1])] {
            assert_eq!(state.crowded(200.0, 100.0), 200.0);
            assert_eq!(state.crowded(50.0, 100.0), 50.0);
        }
        assert_eq!(State::default().crowded(3.0, 1.0), 3.0);
    }
}
