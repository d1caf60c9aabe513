//! Thresholds that more than one step of the policy keeps to.

/// Reports at one count after which it is judged by what is known, however little.
pub(super) const REPORTS_MOST: u32 = 60;
/// Reports that are enough for a count that looks right.
pub(super) const REPORTS_GOOD: u32 = 8;
/// Standard errors a difference must exceed while scaling. It is asked at each of many reports.
pub(super) const CERTAIN: f64 = 3.0;
/// The same once converged, where reports come for ever.
pub(super) const CERTAIN_CONVERGED: f64 = 4.0;
/// Share of polls with a full window from which workers run ahead as far as they may.
pub(super) const BACKPRESSURE: f64 = 0.25;
/// Most workers to go to at once where some already stand in each other's way.
pub(super) const STEP_CONTENDED: f64 = 1.5;
/// Share of what added workers should bring below which they bring nothing.
pub(super) const GAIN_NONE: f64 = 0.15;
/// Gain of added workers above which they do not meet at all.
pub(super) const GAIN_FULL: f64 = 0.75;
/// Share of a worker's time spent waiting for the others, above which it is waiting for them.
pub(super) const WAITING: f64 = 0.04;
/// What workers share may take this much longer than when one was alone before it counts as waiting.
pub(super) const ALONE: f64 = 1.25;
/// A converged count that covers this much less or more has met another load, whatever changed.
pub(super) const LOAD_CHANGE: std::ops::Range<f64> = 0.7..1.6;
/// Gain that more workers should have brought, in standard errors, to say that they brought none.
pub(super) const GAIN_CLEAR: f64 = 3.0;
/// Share of the trainer's waiting in which its batch must have been on the way for that to be what it waits for.
pub(super) const FETCHING: f64 = 0.5;
