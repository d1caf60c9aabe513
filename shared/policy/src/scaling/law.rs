//! The throughput law: what so many workers make, fitted to the counts that were measured.
//!
//! A worker computes a batch in `c (1 + beta n)` and waits `m` for what all share. `n` workers make
//! `X(n) = min(demand, n / (c (1 + beta n) + m), bound)` batches a second.

use super::{TrainingReport, WorkerMetrics, tuning::TUNING};
use gristmill_model::wire::MeasuredValue;
use serde::{Deserialize, Serialize};

/// Reports that stand behind what earlier jobs measured: about those of three measurements.
pub(super) const STORED_REPORTS: u32 = 24;

/// A count of workers, as measured over whole generations of their splits. Times are in seconds for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct LawPoint {
    /// The target that was measured.
    pub target: u32,
    /// Workers that were at work.
    pub workers: f64,
    /// A worker's time for a batch, with its calls, its waits and its pauses: by what came out.
    pub batch_s: f64,
    /// The part in which it computed.
    pub compute_s: f64,
    /// The part that it reported of what all share: without calls and pauses.
    pub reported_s: f64,
    /// Share of the time in which the trainer waited for them.
    pub stall: f64,
    pub reports: u32,
    /// Whether the computing time has changed since.
    pub is_past: bool,
}

impl LawPoint {
    /// A first guess, by what workers report of themselves: calls and pauses are not in it.
    pub fn guess(target: u32, report: &TrainingReport) -> Self {
        Self {
            target,
            workers: report.remote_workers.max(1.0),
            batch_s: report.remote_compute_s + report.remote_shared_s(),
            compute_s: report.remote_compute_s,
            reported_s: report.remote_shared_s(),
            stall: 0.0,
            reports: 0,
            is_past: false,
        }
    }

    fn shared_s(&self) -> f64 {
        (self.batch_s - self.compute_s).max(0.0)
    }

    fn rate(&self) -> f64 {
        self.workers / self.batch_s
    }

    /// The variance of the logarithm of a time that so many reports have.
    fn variance(&self) -> f64 {
        let [_, sigma, _] = TUNING.sigma;
        let noise = match self.reports {
            0 => sigma * self.reported_s / self.batch_s,
            reports => {
                sigma * 1.0_f64.hypot(self.compute_s / self.batch_s) / f64::from(reports).sqrt()
            }
        };
        noise * noise + TUNING.model * TUNING.model
    }
}

/// The law with its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ThroughputLaw {
    /// Time of one worker for a batch, in seconds, if it is alone.
    pub compute_s: f64,
    /// Slowing by each further worker.
    pub beta: f64,
    /// Time at shared resources while they are not at their limit, in seconds.
    pub shared_s: f64,
    /// Batches per second that the shared resources allow.
    pub bound: f64,
    /// Sharpness of the knee at the demand: workers that die, or whose splits arrive in waves, make it soft.
    pub steady: f64,
}

/// The less of two rates, rounded where they are equal.
fn soft_min(one: f64, other: f64, sharpness: f64) -> f64 {
    let (least, most) = (one.min(other), one.max(other));
    least * (1.0 + (least / most).powf(sharpness)).powf(-1.0 / sharpness)
}

impl ThroughputLaw {
    /// Fits the points by least squares of the logarithms of their times, weighted by their reports; none without any.
    pub fn fit(points: &[LawPoint]) -> Option<Self> {
        let here = points.last()?;
        let mixed = |point: &&LawPoint| point.workers >= TUNING.mixed && !point.is_past;
        let beta = slowing(points.iter().filter(mixed)).unwrap_or(0.0);
        let compute_s = here.compute_s / (1.0 + beta * here.workers);
        let unbound =
            Self { compute_s, beta, shared_s: 0.0, bound: f64::INFINITY, steady: f64::INFINITY };
        let points = Self::with_calls(points);
        let free = unbound.fit_shared(&points);
        let fastest = points.iter().filter(|point| point.stall > TUNING.bound_stall);
        let fastest = fastest.map(LawPoint::rate).fold(0.0, f64::max);
        let bounds = (0..=24)
            .map(|step| Self { bound: fastest * (0.8 + 0.015 * f64::from(step)), ..unbound });
        let bounds = bounds.map(|law| law.fit_shared(&points));
        let error = |law: &Self| law.error(&points);
        let bound = bounds.min_by(|one, other| error(one).total_cmp(&error(other)))?;
        let is_bound = fastest > 0.0 && error(&free) - error(&bound) > TUNING.evidence;
        if !is_bound {
            return Some(free);
        }
        let fewest = points.iter().min_by(|one, other| one.workers.total_cmp(&other.workers))?;
        let is_known = fewest.rate() < TUNING.known * bound.bound;
        // Time that was seen at the bound alone may be any part of it.
        let part_s = TUNING.part * fewest.shared_s();
        Some(if is_known { bound } else { Self { shared_s: bound.shared_s.min(part_s), ..bound } })
    }

    /// The points, with the calls and pauses in the times of those that were not measured by their rate.
    fn with_calls(points: &[LawPoint]) -> Vec<LawPoint> {
        let (mut calls_s, mut reports) = (0.0, 0.0);
        for point in points {
            calls_s += f64::from(point.reports) * (point.shared_s() - point.reported_s);
            reports += f64::from(point.reports);
        }
        let calls_s = if reports > 0.0 { (calls_s / reports).max(0.0) } else { 0.0 };
        let complete = |point: &LawPoint| match point.reports {
            0 => LawPoint { batch_s: point.compute_s + calls_s + point.reported_s, ..*point },
            _ => *point,
        };
        points.iter().map(complete).collect()
    }

    /// Sum of the squared errors, in their variances. Each point has its own computing time.
    fn error(&self, points: &[LawPoint]) -> f64 {
        let error = |point: &LawPoint| {
            let law = Self { compute_s: point.compute_s, beta: 0.0, ..*self };
            let batch_s = point.workers / law.capacity(point.workers);
            (batch_s / point.batch_s).ln().powi(2) / point.variance()
        };
        points.iter().map(error).sum()
    }

    /// The law with the shared time that fits best.
    fn fit_shared(self, points: &[LawPoint]) -> Self {
        let most_s = points.iter().map(LawPoint::shared_s).fold(0.0, f64::max);
        let error = |shared_s: f64| Self { shared_s, ..self }.error(points);
        let (mut low, mut high) = (0.01_f64, 1.0_f64);
        for _ in 0..24 {
            let third = (high / low).cbrt();
            if error(most_s * low * third) < error(most_s * high / third) {
                high /= third;
            } else {
                low *= third;
            }
        }
        Self { shared_s: most_s * (low * high).sqrt(), ..self }
    }

    /// The law with the unsteadiness of production by which a trainer waits for `stall` of the time, although `workers`
    /// make what it takes.
    pub fn with_stall(self, workers: f64, demand: f64, stall: f64) -> Self {
        let lost = |steady: f64| 1.0 - Self { steady, ..self }.made(workers, demand) / demand;
        if lost(f64::INFINITY) > stall - TUNING.saving {
            return self;
        }
        let (mut least, mut most) = (2.0_f64, 1e3_f64);
        if lost(least) < stall {
            return self;
        }
        for _ in 0..40 {
            let middle = (least * most).sqrt();
            if lost(middle) > stall { least = middle } else { most = middle }
        }
        Self { steady: most, ..self }
    }

    /// The law of workers that take so many times as long to compute a batch.
    pub fn slower(self, times: f64) -> Self {
        Self { compute_s: self.compute_s * times, ..self }
    }

    /// The law that earlier jobs measured.
    pub fn stored(metrics: &WorkerMetrics) -> Self {
        Self {
            compute_s: metrics.compute_s.mean,
            beta: metrics.slowing.mean,
            shared_s: metrics.shared_s.mean,
            bound: metrics.bound.map_or(f64::INFINITY, |bound| bound.mean),
            steady: f64::INFINITY,
        }
    }

    /// Points from which the law is found again: few workers, `workers`, and as many as the bound holds back.
    pub fn points(&self, workers: u32) -> Vec<LawPoint> {
        let at_bound = 3.0 * self.bound * self.batch_s(f64::from(workers));
        let many = at_bound.is_finite().then_some(at_bound.ceil().max(2.0) as u32);
        let half = (workers > 3).then_some(workers.div_ceil(2));
        let counts = [Some(1), half, many, Some(workers)].into_iter().flatten();
        let point = |target: u32| {
            let workers = f64::from(target);
            let compute_s = self.compute_s * (1.0 + self.beta * workers);
            let batch_s = workers / self.capacity(workers);
            LawPoint {
                target,
                workers,
                batch_s,
                compute_s,
                reported_s: batch_s - compute_s,
                stall: if Some(target) == many { 1.0 } else { 0.0 },
                reports: STORED_REPORTS,
                is_past: false,
            }
        };
        counts.map(point).collect()
    }

    /// The law as later jobs find it, with the trainer's step and the count that it led to.
    pub fn metrics(&self, step_s: f64, workers: u32) -> WorkerMetrics {
        let one = MeasuredValue::one;
        WorkerMetrics {
            step_s: one(step_s),
            compute_s: one(self.compute_s),
            slowing: one(self.beta),
            shared_s: one(self.shared_s),
            bound: self.bound.is_finite().then(|| one(self.bound)),
            workers: one(f64::from(workers)),
            local: None,
        }
    }

    /// A worker's time for a batch among `workers`, while no bound is reached.
    pub fn batch_s(&self, workers: f64) -> f64 {
        self.compute_s * (1.0 + self.beta * workers) + self.shared_s
    }

    /// Batches per second that `workers` make if no trainer holds them back.
    pub fn capacity(&self, workers: f64) -> f64 {
        // At the bound a worker waits for a part of another's turn, however many there are.
        let at_bound = self.bound * (self.compute_s + self.shared_s);
        soft_min(workers / self.batch_s(workers), self.bound, TUNING.knee * at_bound.max(1.0))
    }

    /// Batches per second that they make for a trainer that wants `demand`.
    fn made(&self, workers: f64, demand: f64) -> f64 {
        soft_min(self.capacity(workers).max(1e-300), demand, self.steady)
    }

    /// Dollars per batch with `workers` and a trainer that wants `demand` batches per second. Prices are per second.
    /// Workers that have nothing to do leave, and cost nothing.
    pub fn usd(&self, workers: f64, demand: f64, prices: &LawPrices) -> f64 {
        let worker_s = workers / self.capacity(workers).max(1e-300);
        prices.trainer / self.made(workers, demand) + prices.worker * worker_s
    }

    /// The fewest workers, at most `most`, at which a batch costs hardly more than the least.
    pub fn cheapest(&self, demand: f64, most: u32, prices: &LawPrices) -> u32 {
        let demand = demand * (1.0 + TUNING.margin);
        let usd = |workers: u32| self.usd(f64::from(workers), demand, prices);
        let mut best = (1, usd(1));
        for workers in 2..=most {
            let here = usd(workers);
            if here < best.1 * (1.0 - 1e-9) {
                best = (workers, here);
            }
            if self.steady.is_infinite() && self.capacity(f64::from(workers)) >= demand {
                break;
            }
        }
        best.0
    }
}

/// Dollars per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LawPrices {
    /// The trainer with its accelerators.
    pub trainer: f64,
    pub worker: f64,
}

/// `beta` by least squares, if the counts are apart and the compute time grows by more than noise.
fn slowing<'p>(points: impl Iterator<Item = &'p LawPoint> + Clone) -> Option<f64> {
    let workers = points.clone().map(|point| point.workers);
    let (least, most) = workers.fold((f64::INFINITY, 0.0_f64), |(a, b), n| (a.min(n), b.max(n)));
    if most < TUNING.apart * least {
        return None;
    }
    let weight = |point: &LawPoint| f64::from(point.reports);
    let total: f64 = points.clone().map(weight).sum();
    let mean = |of: fn(&LawPoint) -> f64| {
        points.clone().map(|point| weight(point) * of(point)).sum::<f64>() / total
    };
    let (mean_n, mean_c) = (mean(|point| point.workers), mean(|point| point.compute_s));
    let (mut nn, mut nc) = (0.0, 0.0);
    for point in points {
        nn += weight(point) * (point.workers - mean_n).powi(2);
        nc += weight(point) * (point.workers - mean_n) * (point.compute_s - mean_c);
    }
    // Two standard errors of the difference, if half of the reports are at each end.
    let [_, sigma, _] = TUNING.sigma;
    let noise = 4.0 * sigma / total.sqrt();
    let slope = nc / nn;
    let grown = slope * (most - least) / mean_c;
    let alone = mean_c - slope * mean_n;
    let grows = grown > TUNING.slowing + noise && alone > 0.0;
    grows.then(|| slope / alone)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const PRICES: LawPrices = LawPrices { trainer: 60.0, worker: 1.0 };

    fn law(bound: f64, beta: f64) -> ThroughputLaw {
        ThroughputLaw { compute_s: 1.5, beta, shared_s: 0.5, bound, steady: f64::INFINITY }
    }

    #[test]
    fn a_law_is_found_again_from_its_points() {
        for (bound, beta) in [(f64::INFINITY, 0.0), (5.0, 0.0), (12.0, 0.0), (f64::INFINITY, 0.02)]
        {
            let truth = law(bound, beta);
            let found = ThroughputLaw::fit(&truth.points(20)).unwrap();
            assert_eq!(found.bound.is_finite(), bound.is_finite(), "{found:?}");
            for workers in [4.0, 10.0, 20.0] {
                let off = found.capacity(workers) / truth.capacity(workers) - 1.0;
                assert!(off.abs() < 0.06, "{workers}: {off}, {found:?} for {truth:?}");
            }
        }
    }

    #[test]
    fn a_bound_is_believed_only_on_evidence() {
        let truth = law(5.0, 0.0);
        let points = truth.points(30);
        let [first, .., at_bound] = points[..] else { panic!() };
        // One report at few workers, and few of a trainer that waited.
        let few = |point: LawPoint, reports| LawPoint { reports, stall: 0.5, ..point };
        let found = ThroughputLaw::fit(&[few(first, 0), few(at_bound, 4)]).unwrap();
        assert!(
            (found.bound / 5.0 - 1.0).abs() < 0.1,
            "three times the time is evidence: {found:?}"
        );
        let near = LawPoint { batch_s: first.batch_s * 1.05, workers: 5.0, ..at_bound };
        let found = ThroughputLaw::fit(&[few(first, 0), few(near, 4)]).unwrap();
        assert!(found.bound.is_infinite(), "5 % is none: {found:?}");
    }

    #[test]
    fn a_trainer_that_waits_although_enough_is_made_gets_more_workers_up_to_the_bound() {
        let steady = law(f64::INFINITY, 0.0);
        let demand = 1.0;
        assert_eq!(steady.cheapest(demand, 100, &PRICES), 3, "2 s a batch, and 3 % to spare");
        assert_eq!(steady.with_stall(3.0, demand, 0.0), steady);
        let unsteady = steady.with_stall(3.0, demand, 0.1);
        let lost = 1.0 - unsteady.made(3.0, demand) / demand;
        assert!((lost - 0.1).abs() < 1e-3, "{lost}");
        assert!(unsteady.cheapest(demand, 100, &PRICES) > 4);
        // A wait that the law explains is no unsteadiness.
        assert_eq!(steady.with_stall(1.0, demand, 0.5), steady);
    }
}
