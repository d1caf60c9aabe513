//! Thresholds shared by several steps of the policy.

/// Reports at one count after which it is judged even if the measurement is vague.
pub(super) const REPORTS_MOST: u32 = 60;
/// Reports that suffice for a count that looks right.
pub(super) const REPORTS_GOOD: u32 = 8;
/// Standard errors of a significant difference while scaling. Tested at each of many reports.
pub(super) const CERTAIN: f64 = 3.0;
/// The same once converged, where reports never end.
pub(super) const CERTAIN_CONVERGED: f64 = 4.0;
/// Share of polls with a full window from which backpressure is assumed.
pub(super) const BACKPRESSURE: f64 = 0.25;
/// Largest step up under contention, as a factor.
pub(super) const STEP_CONTENDED: f64 = 1.5;
/// Share of the expected gain below which added workers bring nothing.
pub(super) const GAIN_NONE: f64 = 0.15;
/// Share of the expected gain above which there is no contention.
pub(super) const GAIN_FULL: f64 = 0.75;
/// Share of a worker's time spent waiting for others from which it counts as contention.
pub(super) const WAITING: f64 = 0.04;
/// Ratio of the time at shared resources to that of a single worker from which it counts as waiting.
pub(super) const ALONE: f64 = 1.25;
/// A converged count with coverage outside this range is under another load.
pub(super) const LOAD_CHANGE: std::ops::Range<f64> = 0.7..1.6;
/// Expected gain, in standard errors, that is needed to conclude that added workers brought none.
pub(super) const GAIN_CLEAR: f64 = 3.0;
/// Share of the trainer's waiting with the batch in transit from which the transport is the cause.
pub(super) const FETCHING: f64 = 0.5;
