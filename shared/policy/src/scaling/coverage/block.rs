//! Settled reports at one count, summarised as the share of the demand that its workers cover.
//!
//! Coverage (capacity over demand) is the number of batches handed out for each batch that the trainer would have taken
//! without waiting. The number of batches in workers' hands is constant, so batches handed out equal batches made, and
//! they are counted exactly. The demand is the batches taken, plus a small correction for the share of time that the
//! trainer waited. Coverage is the slope of a regression line, whose residuals give its error: splits arrive in bursts,
//! and after a change all workers finish together. Batches are handed out even while the trainer waits for one slow or
//! dead worker, so such a wait has no effect.
//!
//! The times of a step and of a worker's batch give a second, less direct estimate. The two are averaged, weighted by
//! their errors, unless they contradict each other: then the measured slope counts.

use super::{TrainingReport, thresholds::FETCHING};
use serde::{Deserialize, Serialize};

/// Share of the demand that times do not account for: claims, flushes, deaths.
const UNSEEN: f64 = 0.01;
/// Error of the slope caused by splits that arrive in waves: per wave within the block, and for several waves, per wave
/// to the power of 1.5 (a pure saw tooth would fall with the square).
const WAVE: f64 = 0.25;
const WAVES: f64 = 0.4;
/// Least error as a share of the demand. Without variation the residuals are zero; smaller differences are not
/// significant.
const SLOPE_FLOOR: f64 = 0.003;

/// Share of time that a trainer must wait before the cause matters.
const STALL_TELLS: f64 = 0.05;
/// Share by which batches made must exceed batches taken to be a pile-up.
const PILE: f64 = 0.02;
/// Upper bound of the coverage: a higher one is too high in any case.
const MADE_MOST: f64 = 11.0;
/// Standard error, relative to the value, of a count that others are compared with: a third of the tolerance.
const EXACT: f64 = 0.01;

/// Sums over the reports of one count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Block {
    pub reports: u32,
    /// Batches delivered before the first report's interval and after the last.
    pub from_batch: u64,
    pub to_batch: u64,
    step_s: f64,
    stall_s: f64,
    fetch_stall_s: f64,
    workers: f64,
    full: f64,
    /// Batches that the trainer would have taken without waiting; and, over these, all that were handed out.
    desired: f64,
    made: Line,
    work_s: f64,
    shared_s: f64,
    work_reports: u32,
}

/// Inputs of the estimate by times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub clients: f64,
    /// Batches that all workers make in one lease each.
    pub generation: f64,
    /// Relative deviations of one report's step and worker times.
    pub step_sigma: f64,
    pub work_sigma: f64,
    /// Means over all reports under this load, at any count.
    pub step: Typical,
    pub compute: Option<Typical>,
}

/// A mean and its standard error, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Typical {
    pub mean_s: f64,
    pub error_s: f64,
}

/// Running regression of y on x by Welford's updates.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Line {
    pub count: f64,
    pub x: f64,
    pub y: f64,
    pub xx: f64,
    xy: f64,
    yy: f64,
}

impl Line {
    pub fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let dx = x - self.x;
        self.x += dx / self.count;
        let dy = y - self.y;
        self.y += dy / self.count;
        self.xx += dx * (x - self.x);
        self.xy += dx * (y - self.y);
        self.yy += dy * (y - self.y);
    }

    /// Discards the weight of old points beyond `most`, approximately.
    pub fn forget(&mut self, most: f64) {
        if self.count > most {
            let kept = most / self.count;
            for sum in [&mut self.count, &mut self.xx, &mut self.xy, &mut self.yy] {
                *sum *= kept;
            }
        }
    }

    /// Variance of the points about the line; `None` below three points.
    pub fn residual(&self) -> Option<f64> {
        let is_line = self.count >= 3.0 && self.xx > 0.0;
        is_line.then(|| (self.yy - self.xy * self.xy / self.xx).max(0.0) / (self.count - 2.0))
    }

    /// Slope and its standard error; `None` below three points.
    pub fn slope(&self) -> Option<(f64, f64)> {
        let residual = self.residual()?;
        let slope = self.xy / self.xx;
        // Few points underestimate their own scatter (Student's t).
        let few = 1.0 + 3.0 / (self.count - 2.0);
        Some((slope, few * (residual / self.xx).sqrt()))
    }
}

/// Coverage of a count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Capacity {
    /// Capacity over demand; 1: the workers exactly keep up.
    pub covered: f64,
    /// Its standard error.
    pub error: f64,
    /// Share of time the trainer waited.
    pub stall: f64,
    /// Share of time with a full window.
    pub full: f64,
    /// Mean workers at work.
    pub workers: f64,
    /// Batches pile up although the trainer waits: the transport between them is the limit.
    pub downstream: bool,
    /// `downstream` is likely but not certain.
    pub may_be_downstream: bool,
    /// The times of workers and trainer agree.
    pub is_explained: bool,
    /// The trainer waits mostly for batches that are made and in transit.
    pub is_fetch: bool,
}

impl Capacity {
    /// Whether other counts can be compared with it.
    pub fn is_exact(&self) -> bool {
        self.error <= EXACT * self.covered
    }
}

impl Block {
    /// Adds a report on batches delivered since `from_batch`, or since the report before. A step takes `step_s`.
    pub fn add(&mut self, report: &TrainingReport, from_batch: u64, step_s: f64) {
        if self.reports == 0 {
            self.from_batch = from_batch;
            self.to_batch = from_batch;
        }
        let taken = report.batches.saturating_sub(self.to_batch) as f64;
        self.desired += taken * (1.0 + report.stall_s / step_s.max(1e-9));
        let delivered = report.batches.saturating_sub(self.from_batch);
        self.made.add(self.desired, delivered as f64 + report.ahead_batches as f64);
        self.reports += 1;
        self.to_batch = report.batches;
        self.step_s += report.step_s;
        self.stall_s += report.stall_s;
        self.fetch_stall_s += report.fetch_stall_s;
        self.workers += report.remote_workers;
        self.full += report.window_full;
        if let Some(work_s) = report.remote_batch_s() {
            self.work_s += work_s;
            self.shared_s += report.remote_shared_s();
            self.work_reports += 1;
        }
    }

    /// Whether the window was full for moments at most.
    pub fn is_never_full(&self) -> bool {
        self.full < 0.05 * f64::from(self.reports)
    }

    /// Mean workers at work.
    pub fn workers(&self) -> f64 {
        self.workers / f64::from(self.reports.max(1))
    }

    /// Batches delivered within the block.
    pub fn batches(&self) -> u64 {
        self.to_batch.saturating_sub(self.from_batch)
    }

    /// Coverage; `None` before there are three reports.
    pub fn capacity(&self, times: &Times) -> Option<Capacity> {
        let (made, made_error) = self.made.slope()?;
        let reports = f64::from(self.reports);
        let stall = self.stall_s / (self.step_s + self.stall_s);
        if !stall.is_finite() {
            return None;
        }
        let measured = made.clamp(1e-6, MADE_MOST);
        // Stall and step are measured separately, each with its own error.
        let noise = times.step_sigma * std::f64::consts::SQRT_2 / reports.sqrt();
        let waves = self.batches() as f64 / times.generation.max(1.0);
        let wave = (WAVE / waves).min(WAVES / waves.powf(1.5));
        let taken = 1.0 - stall;
        let error =
            (stall * taken * noise).hypot(made_error.max(SLOPE_FLOOR * taken)).hypot(wave * taken);
        // More is made than taken. This also happens behind a dead worker, but then the awaited batch is not in transit.
        let is_fetch = stall > STALL_TELLS && self.fetch_stall_s > FETCHING * self.stall_s;
        let piles_up =
            |certain: f64| is_fetch && measured - taken > (certain * error).max(PILE * taken);
        let by_times = self.by_times(times).filter(|(timed, timed_error)| {
            (timed - measured).abs() < 2.5 * timed_error.hypot(error)
        });
        let (covered, error) = match by_times {
            Some((timed, timed_error)) => {
                let (a, b) = (error.powi(-2), timed_error.powi(-2));
                ((measured * a + timed * b) / (a + b), (a + b).powf(-0.5))
            }
            None => (measured, error),
        };
        Some(Capacity {
            covered,
            error,
            stall,
            full: self.full / reports,
            workers: self.workers / reports,
            downstream: piles_up(3.0),
            may_be_downstream: piles_up(1.0),
            is_explained: by_times.is_some(),
            is_fetch,
        })
    }

    /// Mean seconds of one worker per batch; `None` without three reports of it.
    pub fn worker_batch_s(&self) -> Option<f64> {
        (self.work_reports >= 3).then(|| self.work_s / f64::from(self.work_reports))
    }

    /// Mean seconds per batch spent on shared resources, and the mean total; `None` without three reports.
    pub fn shared_s(&self) -> Option<(f64, f64)> {
        let reports = f64::from(self.work_reports);
        (self.work_reports >= 3).then(|| (self.shared_s / reports, self.work_s / reports))
    }

    /// Coverage by the times of workers and trainer, and its error.
    fn by_times(&self, times: &Times) -> Option<(f64, f64)> {
        let reports = f64::from(self.reports);
        let mut work_s = self.worker_batch_s()?;
        let mut work_error = times.work_sigma / f64::from(self.work_reports).sqrt();
        if let (Some(compute), Some((shared_s, _))) = (times.compute, self.shared_s()) {
            let typical_s = compute.mean_s + shared_s;
            let shared_error = work_error * shared_s / typical_s;
            let typical_error = (compute.error_s / typical_s).hypot(shared_error);
            if typical_error < work_error {
                (work_s, work_error) = (typical_s, typical_error);
            }
        }
        let mut step_s = self.step_s / reports;
        let mut step_error = times.step_sigma / reports.sqrt();
        if times.step.error_s < step_error * times.step.mean_s {
            (step_s, step_error) = (times.step.mean_s, times.step.error_s / times.step.mean_s);
        }
        // Only workers at work count: others wait for the window, or died.
        let covered = self.workers / reports * step_s / (work_s * times.clients);
        let error = covered * step_error.hypot(work_error).hypot(UNSEEN);
        (covered.is_finite() && covered > 0.0).then_some((covered, error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const STEP_S: f64 = 0.1;

    /// Coverage of reports of 100 batches each: the trainer's wait per batch, and the batches ahead after it.
    fn capacity(reports: &[(f64, u64)], fetch_share: f64) -> Capacity {
        let mut block = Block::default();
        let mut batches = 0;
        for &(stall_s, ahead_batches) in reports {
            let from_batch = batches;
            batches += 100;
            let report = TrainingReport {
                batches,
                step_s: STEP_S,
                stall_s,
                fetch_stall_s: stall_s * fetch_share,
                ahead_batches,
                remote_workers: 20.0,
                lease_batches: 8,
                ..TrainingReport::default()
            };
            block.add(&report, from_batch, STEP_S);
        }
        let typical = Typical { mean_s: STEP_S, error_s: 0.001 };
        let times = Times {
            clients: 1.0,
            generation: 160.0,
            step_sigma: 0.05,
            work_sigma: 0.1,
            step: typical,
            compute: None,
        };
        block.capacity(&times).unwrap()
    }

    #[test]
    fn a_wait_for_one_worker_says_nothing_of_the_others() {
        // 20 workers exactly meet the demand. One dies: nothing is delivered for 15 s while the others continue.
        let mut reports = [(0.0, 160); 20];
        reports[19] = (0.15, 310);
        let seen = capacity(&reports, 0.0);
        assert!((seen.covered - 1.0).abs() < 0.02, "{seen:?}");
        assert!(!seen.downstream && !seen.may_be_downstream, "{seen:?}");
    }

    #[test]
    fn what_piles_up_on_its_way_to_a_trainer_that_waits_is_not_for_want_of_workers() {
        // A third of the time is spent waiting, and a quarter more is made than taken.
        let reports: Vec<(f64, u64)> = (1..=20).map(|i| (0.05, 160 + 25 * i)).collect();
        let seen = capacity(&reports, 0.9);
        assert!(seen.downstream, "{seen:?}");
        assert!((seen.covered - 1.25 / 1.5).abs() < 0.01, "{seen:?}");
        assert!(!capacity(&reports, 0.1).downstream, "it waits for workers");
    }
}
