//! Settled reports of one count, summed up: what share of the demand its workers cover.
//!
//! Capacity over demand is (1 - f)(1 + x): f the share of its time the trainer waited, x the batches that
//! more were handed out for each one delivered: what workers hold stays the same, so it is what the
//! queue grew by, and it is counted exactly. x is the slope of a regression line, whose residuals say how far to
//! trust it: splits arrive in bursts, and all workers of a count at first together.
//!
//! The times of a step and of a worker's batch say the same less directly. Both are averaged, each
//! with the weight its error allows, unless they contradict each other: then what was measured counts.

use super::Report;
use serde::{Deserialize, Serialize};

/// What times may miss: claims, flushes, deaths, as a share of the demand.
const UNSEEN: f64 = 0.01;
/// Error of the slope through a count that moves up and down by a wave of splits, for each wave within the
/// block; and of several waves, for that to the power of 1.5: a saw tooth alone would fall with the square.
const WAVE: f64 = 0.25;
const WAVES: f64 = 0.4;
/// Where the queue is empty the slope's residuals are too; below this share of the demand nothing is
/// told apart by it.
const SLOPE_FLOOR: f64 = 0.003;

/// Standard error of what others are compared with, relative to it: a third of the tolerance.
const EXACT: f64 = 0.01;

/// Sums over the reports of one count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Block {
    pub reports: u32,
    /// Batches delivered before the first report's interval and after the latest.
    pub from_batch: u64,
    pub to_batch: u64,
    step_s: f64,
    stall_s: f64,
    workers: f64,
    full: f64,
    ahead: Line,
    work_s: f64,
    shared_s: f64,
    work_reports: u32,
}

/// What the estimate by times needs beside the block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub clients: f64,
    /// Batches all workers make in one lease each.
    pub generation: f64,
    /// Relative deviations of one report's step and worker times.
    pub step_sigma: f64,
    pub work_sigma: f64,
    /// What all reports under this load say, at whatever count.
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

    /// Forgets as many of the oldest points as there are more than `most`, about.
    pub fn forget(&mut self, most: f64) {
        if self.count > most {
            let kept = most / self.count;
            for sum in [&mut self.count, &mut self.xx, &mut self.xy, &mut self.yy] {
                *sum *= kept;
            }
        }
    }

    /// Variance of the points about the line through them; none below three.
    pub fn residual(&self) -> Option<f64> {
        let is_line = self.count >= 3.0 && self.xx > 0.0;
        is_line.then(|| (self.yy - self.xy * self.xy / self.xx).max(0.0) / (self.count - 2.0))
    }

    /// Slope and its standard error; none below three points.
    pub fn slope(&self) -> Option<(f64, f64)> {
        let residual = self.residual()?;
        let slope = self.xy / self.xx;
        // Few points say little about their own scatter (Student's t).
        let few = 1.0 + 3.0 / (self.count - 2.0);
        Some((slope, few * (residual / self.xx).sqrt()))
    }
}

/// What a count turned out to be worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Capacity {
    /// Capacity over demand; 1: the workers exactly keep up.
    pub covered: f64,
    /// Its standard error.
    pub error: f64,
    /// Share of time the trainer waited.
    pub stall: f64,
    /// Share of time nothing might be claimed.
    pub full: f64,
    /// Mean workers at work.
    pub workers: f64,
    /// Batches pile up although the trainer waits: what lies between them is the limit.
    pub downstream: bool,
    /// It looks so, but is not certain.
    pub may_be_downstream: bool,
    /// The times of workers and trainer say the same.
    pub is_explained: bool,
}

impl Capacity {
    /// Whether others can be compared with it.
    pub fn is_exact(&self) -> bool {
        self.error <= EXACT * self.covered
    }
}

impl Block {
    pub fn add(&mut self, report: &Report, from_batch: u64) {
        if self.reports == 0 {
            self.from_batch = from_batch;
        }
        self.reports += 1;
        self.to_batch = report.batches;
        self.step_s += report.step_s;
        self.stall_s += report.stall_s;
        self.workers += report.workers;
        self.full += report.window_full;
        // Counted where the queue's length is measured; what is at work is the same all the time.
        self.ahead.add(report.batches as f64, report.ahead_batches as f64);
        if let Some(work_s) = report.worker_batch_s() {
            self.work_s += work_s;
            self.shared_s += report.worker_times().map_or(0.0, |times| times.shared_s());
            self.work_reports += 1;
        }
    }

    /// The window was not full in it, but for moments.
    pub fn is_never_full(&self) -> bool {
        self.full < 0.05 * f64::from(self.reports)
    }

    /// Mean workers at work.
    pub fn workers(&self) -> f64 {
        self.workers / f64::from(self.reports.max(1))
    }

    /// Batches delivered within it.
    pub fn batches(&self) -> u64 {
        self.to_batch.saturating_sub(self.from_batch)
    }

    /// None before there are three reports.
    pub fn capacity(&self, times: &Times) -> Option<Capacity> {
        let (slope, slope_error) = self.ahead.slope()?;
        let reports = f64::from(self.reports);
        let stall = self.stall_s / (self.step_s + self.stall_s);
        if !stall.is_finite() {
            return None;
        }
        // Stall and step are measured apart, each with its own error.
        let noise = times.step_sigma * std::f64::consts::SQRT_2 / reports.sqrt();
        let waves = self.batches() as f64 / times.generation.max(1.0);
        let wave = (WAVE / waves).min(WAVES / waves.powf(1.5));
        // The trainer eats and waits once a wave; the last one may have been cut anywhere.
        let stall_error = stall * (1.0 - stall) * noise.hypot(wave);
        // A queue cannot grow by more than is made, nor shrink by more than is taken.
        let growth = slope.clamp(-1.0, 10.0);
        let growth_error = slope_error.max(SLOPE_FLOOR).hypot(wave);
        let piles_up = |certain: f64| stall > 0.05 && growth > (certain * growth_error).max(0.02);
        let measured = ((1.0 - stall) * (1.0 + growth)).max(1e-6);
        let error = stall_error.hypot(growth_error * (1.0 - stall));
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
        })
    }

    /// Mean seconds of one worker for one batch; none without three reports of it.
    pub fn worker_batch_s(&self) -> Option<f64> {
        (self.work_reports >= 3).then(|| self.work_s / f64::from(self.work_reports))
    }

    /// Mean seconds of a batch that go to what workers share, of how many; none without three reports.
    pub fn shared_s(&self) -> Option<(f64, f64)> {
        let reports = f64::from(self.work_reports);
        (self.work_reports >= 3).then(|| (self.shared_s / reports, self.work_s / reports))
    }

    /// Capacity over demand by the times of workers and trainer, and its error.
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
        // Those at work: others wait for the window, or died.
        let covered = self.workers / reports * step_s / (work_s * times.clients);
        let error = covered * step_error.hypot(work_error).hypot(UNSEEN);
        (covered.is_finite() && covered > 0.0).then_some((covered, error))
    }
}
