//! What the policy remembers of a job between two reports: a few hundred bytes, kept in an item.

use super::{Settings, block::Block, capacity::Point, throttle::Throttle, tracker::Tracker};
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
    /// The step `need` was computed with, seconds.
    pub(super) need_step_s: f64,
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
        self.is_following = false;
        self.alone_shared_s = None;
        self.forget_search();
        self.phase = Phase::Starting;
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
