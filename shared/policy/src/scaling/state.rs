//! What the policy remembers of a job between two reports: a few hundred bytes, kept in an item.

use super::{
    Report, Settings, block::Block, capacity::Point, crowd::Crowd, throttle::Throttle,
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

/// Of a window's leases this share is at work at most: splits take now longer and now shorter, and the first that is
/// not done holds all behind it.
const WINDOW_USEFUL: f64 = 0.86;

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
    pub(super) crowd: Crowd,
    /// Reports since `need` was estimated from times alone; counts until it is measured.
    pub(super) estimated: Option<u32>,
    /// The estimate follows a change of load, whose count was known before.
    pub(super) is_following: bool,
    /// Everything before this batch was handed out before it.
    pub(super) before_until: u64,
    /// That load is the trainer's step alone.
    pub(super) is_step: bool,
    /// The most workers known to be too few, the fewest known to be enough.
    pub(super) low: Option<Point>,
    pub(super) high: Option<Point>,
    /// Share of the demand that is covered at best, where workers meet.
    pub(super) plateau: Option<f64>,
    /// Workers at work and what they cover, where the window is what holds the others back: how many of a count are at
    /// work is counted exactly.
    pub(super) at_work: Option<Point>,
    /// Batches that workers may be ahead, as last seen; 0 before that.
    pub(super) window_batches: f64,
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
        self.is_following = true;
        self.is_step = false;
        // What held workers back does so until the contrary shows.
        self.covered_before = before.plateau;
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
        self.covered_before = None;
    }

    /// The most workers that a window keeps busy, where it has been seen full.
    pub(super) fn window_most(&self, report: &Report) -> f64 {
        let leases = self.window_batches / f64::from(report.lease_batches.max(1));
        if leases > 0.0 { (WINDOW_USEFUL * leases).max(1.0) } else { f64::INFINITY }
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
