//! Settled reports of one count, summed up: what share of the demand its workers cover.
//!
//! Capacity over demand is (1 - f)(1 + x): f the share of its time the trainer waited, x the batches
//! the queue grew by for each one delivered. x is the slope of a regression line, whose residuals say how
//! far to trust it: splits arrive in bursts.

use super::Report;
use serde::{Deserialize, Serialize};

/// Standard error of a measured duration, relative, that a decision must stand.
const NOISE: f64 = 0.1;
/// Where the queue is empty the slope's residuals are too; below this share of the demand nothing is
/// told apart by it.
const SLOPE_FLOOR: f64 = 0.003;

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
    queue: Line,
}

/// Running regression of y on x by Welford's updates.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Line {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let dx = x - self.x;
        self.x += dx / self.count;
        let dy = y - self.y;
        self.y += dy / self.count;
        self.xx += dx * (x - self.x);
        self.xy += dx * (y - self.y);
        self.yy += dy * (y - self.y);
    }

    /// Slope and its standard error; none below three points.
    fn slope(&self) -> Option<(f64, f64)> {
        if self.count < 3.0 || self.xx <= 0.0 {
            return None;
        }
        let slope = self.xy / self.xx;
        let residual = (self.yy - slope * self.xy).max(0.0) / (self.count - 2.0);
        Some((slope, (residual / self.xx).sqrt()))
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
        self.queue.add(report.batches as f64, report.queue_batches);
    }

    /// Batches delivered within it.
    pub fn batches(&self) -> u64 {
        self.to_batch.saturating_sub(self.from_batch)
    }

    /// None before there are three reports.
    pub fn capacity(&self) -> Option<Capacity> {
        let (slope, slope_error) = self.queue.slope()?;
        let reports = f64::from(self.reports);
        let stall = self.stall_s / (self.step_s + self.stall_s);
        if !stall.is_finite() {
            return None;
        }
        // Stall and step are measured apart, each with its own error.
        let stall_error = stall * (1.0 - stall) * NOISE * std::f64::consts::SQRT_2 / reports.sqrt();
        // A queue cannot grow by more than is made, nor shrink by more than is taken.
        let growth = slope.clamp(-1.0, 10.0);
        let growth_error = slope_error.max(SLOPE_FLOOR);
        let downstream = stall > 0.05 && growth > 0.02 && growth > 3.0 * growth_error;
        Some(Capacity {
            covered: ((1.0 - stall) * (1.0 + growth)).max(1e-6),
            error: stall_error.hypot(growth_error * (1.0 - stall)),
            stall,
            full: self.full / reports,
            workers: self.workers / reports,
            downstream,
        })
    }
}
