//! Every number that the default policy was tuned by, with its unit and the reason for its value.

/// Tunables of the policy. They were chosen by `gristmill simulate --all`, not by theory.
pub(super) struct CoverageTuning {
    /// Share of the workers' need that is held beyond it. Splits vary, and where nobody waits for another a worker
    /// too many costs nothing: it leaves when the window is full.
    pub margin: f64,
    /// Least saving, as a share of the dollars per batch, for which the target moves.
    pub saving: f64,
    /// Stall, as a share of the time, from which a shared bound may be its cause.
    pub bound_stall: f64,
    /// Reports of a first measurement at a target; each further one is twice as long.
    pub reports: u32,
    /// Measurements after which a trainer that waits counts as held back by what no worker changes.
    pub certain: u32,
    /// Share of the bound below which a count was not held back by it.
    pub known: f64,
    /// Fewest workers whose mean speed is that of any number.
    pub mixed: f64,
    /// Sharpness of the knee at a shared bound, for each worker there: those that collide wait for a part of a turn.
    pub knee: f64,
    /// Reduction of the squared errors, in their variances, by which a bound or a slowing is believed: three standard errors.
    pub evidence: f64,
    /// Part of a shared time at a bound that is tried as the time below it.
    pub part: f64,
    /// Deviation of a report, in standard deviations, that counts as noise.
    pub drift: f64,
    /// Sum of deviations beyond that at which a load has changed.
    pub alarm: f64,
    /// Least change of a load, as a share of it; what is less, further measurements tell.
    pub change: f64,
    /// Most that one report adds to the sum: a single pause is no change.
    pub outlier: f64,
    /// Bounds of a report's relative standard deviation, and its value while unknown.
    pub sigma: [f64; 3],
    /// Relative error of the law itself.
    pub model: f64,
    /// Reports that a mean remembers.
    pub memory: u32,
    /// Counts that the law is fitted to.
    pub points: usize,
    /// Difference of a report from what earlier jobs measured, as a share of that, and the consecutive reports of it
    /// that discard what they measured.
    pub differs: f64,
    pub differing: u32,
    /// Consecutive reports with refused invocations before the target is lowered: a single one may be the limit on the
    /// rate of starts, which passes.
    pub refusals: u32,
    /// Reports without a refusal before more are asked for again, at first and at most: four times as many after each
    /// attempt that failed.
    pub retry: [u32; 2],
}

pub(super) const TUNING: CoverageTuning = CoverageTuning {
    margin: 0.03,
    saving: 0.008,
    bound_stall: 0.02,
    reports: 4,
    certain: 3,
    known: 0.93,
    mixed: 3.0,
    knee: 2.0,
    evidence: 9.0,
    part: 0.25,
    drift: 0.5,
    alarm: 8.0,
    change: 0.15,
    outlier: 5.0,
    sigma: [0.03, 0.1, 0.4],
    model: 0.015,
    memory: 100,
    points: 6,
    differs: 0.2,
    differing: 3,
    refusals: 3,
    retry: [40, 10_000],
};
