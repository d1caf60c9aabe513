//! Whether workers slow each other's computing, from compute times at different counts.

use super::{
    block::{Line, Typical},
    tracker::Tracker,
};
use serde::{Deserialize, Serialize};

/// Standard errors from which workers are known to slow each other. Below the 4 of other changes, because measurements at
/// the new count correct a mistake.
const CERTAIN: f64 = 3.0;
/// Least reports.
const REPORTS: f64 = 8.0;
/// Least relative spread (standard deviation) of the counts.
const SPREAD: f64 = 0.1;
/// A change of compute time (in logarithm) that is another load: workers never slow each other by as much at once.
const CHANGED: f64 = 0.3;
/// Reports remembered.
const MEMORY: f64 = 250.0;

/// A worker's compute time as a function of the workers at work.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Crowd {
    /// All reports, including the first worker, alone: a long lever, but it may have been atypical.
    all: Line,
    /// All reports but the first worker's.
    rest: Line,
    /// Latest compute times relative to the prediction.
    level: Tracker,
}

impl Crowd {
    pub fn add(&mut self, workers: f64, compute_s: f64) {
        let said_s = self.compute_at(workers).map(|said| said.mean_s);
        if let Some(before) = said_s.and_then(|said_s| self.level.add(compute_s / said_s))
            && (self.level.mean / before).ln().abs() > CHANGED
        {
            // Another load: earlier reports do not apply.
            *self = Self::default();
        }
        self.all.add(workers, compute_s);
        if workers > 1.5 {
            self.rest.add(workers, compute_s);
        }
        self.all.forget(MEMORY);
        self.rest.forget(MEMORY);
    }

    /// Workers that would do without slowdown what `workers` do.
    pub fn alone(&self, workers: f64) -> f64 {
        workers / (1.0 + self.slowing() * workers)
    }

    /// Workers that do what `workers` would at the speed observed with `at` workers.
    pub fn as_many(&self, workers: f64, at: f64) -> f64 {
        let slowing = self.slowing();
        let alone = workers / (1.0 + slowing * at);
        // Beyond four times as many, each further worker mostly slows the others.
        let crowded = alone / (1.0 - slowing * alone).max(0.25);
        if workers > at { crowded.max(workers) } else { crowded.min(workers) }
    }

    /// Compute time of a batch with so many workers, from all reports since it changed.
    pub fn compute_at(&self, workers: f64) -> Option<Typical> {
        let variance = self.rest.residual().filter(|_| self.rest.count >= REPORTS)?;
        let (slope, slope_error) = self.slope().unwrap_or_default();
        let further = workers - self.rest.x;
        let mean_s = self.rest.y + slope * further;
        let error_s = (variance / self.rest.count).sqrt().hypot(slope_error * further);
        (mean_s > 0.0).then_some(Typical { mean_s, error_s })
    }

    /// Slowdown in seconds per further worker, if certain, and its error.
    fn slope(&self) -> Option<(f64, f64)> {
        let certain = |line: &Line| {
            let (slope, error) = line.slope()?;
            let spread = (line.xx / line.count).sqrt();
            let is_certain = line.count >= REPORTS
                && spread >= SPREAD * line.x
                && slope >= CERTAIN * error
                && line.y > slope * line.x;
            is_certain.then_some((slope, error))
        };
        let with_first = || {
            let (all, (rest, error)) = (certain(&self.all)?, self.rest.slope()?);
            // The other reports agree, if less clearly.
            let is_same = rest > error && (all.0 - rest).abs() < 2.0 * all.1.hypot(error);
            is_same.then_some(all)
        };
        certain(&self.rest).or_else(with_first)
    }

    /// Relative slowdown per further worker, if certain.
    fn slowing(&self) -> f64 {
        let Some((slope, _)) = self.slope() else { return 0.0 };
        let alone_s = self.rest.y - slope * self.rest.x;
        if alone_s <= 0.0 {
            return 0.0;
        }
        // Above a half the linear model does not hold.
        (slope / alone_s).min(1.0 / self.rest.x.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports in which a worker computes for `alone_s`, and each further one slows it by a share.
    fn crowd(alone_s: f64, slowing: f64, counts: &[f64]) -> Crowd {
        let mut crowd = Crowd::default();
        for (i, workers) in counts.iter().cycle().take(24).enumerate() {
            let noise = if i % 2 == 0 { 1.02 } else { 0.98 };
            crowd.add(*workers, alone_s * (1.0 + slowing * workers) * noise);
        }
        crowd
    }

    #[test]
    fn workers_that_slow_each_other_need_more_than_in_proportion() {
        let crowd = crowd(2.0, 0.004, &[20.0, 100.0, 60.0]);
        // At 100 they take 1.4 times as long as alone: 142.9 without that, and 333 with it.
        let doubled = crowd.as_many(200.0, 100.0);
        assert!((300.0..370.0).contains(&doubled), "{doubled}");
        let halved = crowd.as_many(50.0, 100.0);
        assert!((40.0..43.0).contains(&halved), "{halved}");
    }

    #[test]
    fn what_is_not_certain_is_not_said() {
        for crowd in [crowd(2.0, 0.0, &[20.0, 100.0, 60.0]), crowd(2.0, 0.1, &[20.0, 20.1])] {
            assert_eq!(crowd.as_many(200.0, 100.0), 200.0);
            assert_eq!(crowd.as_many(50.0, 100.0), 50.0);
        }
        assert_eq!(Crowd::default().as_many(3.0, 1.0), 3.0);
    }

    #[test]
    fn another_load_ends_what_was_learnt() {
        let mut crowd = crowd(2.0, 0.0, &[20.0, 22.0]);
        [20.0, 22.0].iter().cycle().take(16).for_each(|workers| crowd.add(*workers, 3.4));
        let said_s = crowd.compute_at(21.0).map(|said| said.mean_s);
        assert!(said_s.is_some_and(|said_s| (said_s - 3.4).abs() < 0.01), "{said_s:?}");
    }

    #[test]
    fn one_fast_worker_at_the_start_does_not_make_a_crowd() {
        let mut crowd = Crowd::default();
        crowd.add(1.0, 1.0);
        let noise = |i: u32| if i.is_multiple_of(2) { 1.05 } else { 0.95 };
        (0..40).for_each(|i| crowd.add(if i % 4 < 2 { 80.0 } else { 110.0 }, 1.5 * noise(i)));
        assert_eq!(crowd.as_many(60.0, 100.0), 60.0);
    }
}
