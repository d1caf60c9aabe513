//! The throughput law: what so many workers make, fitted to the counts that were measured.
//!
//! A worker computes a batch in `c (1 + beta n)` and waits `m` for what all share. `n` workers make
//! `X(n) = min(demand, n / (c (1 + beta n) + m), bound)` batches a second.

use super::{Settings, WorkerMetrics, measurement::Measurement, tuning::TUNING};
use gristmill_model::wire::MeasuredValue;

/// Reports that stand behind what earlier jobs measured: about those of three measurements.
pub(super) const STORED_REPORTS: u32 = 24;

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

/// The positive number between two at which an error with one minimum is least.
fn least_at(mut low: f64, mut high: f64, error: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..40 {
        let third = (high / low).cbrt();
        if error(low * third) < error(high / third) {
            high /= third;
        } else {
            low *= third;
        }
    }
    (low * high).sqrt()
}

impl ThroughputLaw {
    /// Fits the measurements by least squares of the logarithms of their times, weighted by their reports; the last is of
    /// the present. None without any.
    pub fn fit(measured: &[Measurement]) -> Option<Self> {
        let here = measured.last()?;
        let beta = slowing(measured);
        let compute_s = here.compute_s() / (1.0 + beta * here.workers());
        let unbound =
            Self { compute_s, beta, shared_s: 0.0, bound: f64::INFINITY, steady: f64::INFINITY };
        let points = with_calls(measured);
        let free = unbound.fit_shared(&points);
        let fastest = points.iter().filter(|point| point.stall() > TUNING.bound_stall);
        let fastest = fastest.map(Measurement::rate).fold(0.0, f64::max);
        let bounds = (0..=24).map(|step| fastest * (0.8 + 0.015 * f64::from(step)));
        let bounds = bounds.map(|bound| Self { bound, ..unbound }.fit_shared(&points));
        let error = |law: &Self| law.error(&points);
        let bound = bounds.min_by(|one, other| error(one).total_cmp(&error(other)))?;
        if fastest == 0.0 || error(&free) - error(&bound) < TUNING.evidence {
            return Some(free);
        }
        let fewest = points.iter().min_by(|a, b| a.workers().total_cmp(&b.workers()))?;
        if fewest.rate() < TUNING.known * bound.bound {
            return Some(bound);
        }
        // Time that was seen at the bound alone may be any part of it.
        let part_s = TUNING.part * fewest.shared_s();
        Some(Self { shared_s: bound.shared_s.min(part_s), ..bound })
    }

    /// Sum of the squared errors, in their variances. Each measurement has its own computing time.
    fn error(&self, points: &[Measurement]) -> f64 {
        let error = |point: &Measurement| {
            let law = Self { compute_s: point.compute_s(), beta: 0.0, ..*self };
            let batch_s = point.workers() / law.capacity(point.workers());
            (batch_s / point.batch_s()).ln().powi(2) / point.variance()
        };
        points.iter().map(error).sum()
    }

    /// The law with the shared time that fits best.
    fn fit_shared(self, points: &[Measurement]) -> Self {
        let most_s = points.iter().map(Measurement::shared_s).fold(f64::MIN_POSITIVE, f64::max);
        let error = |shared_s: f64| Self { shared_s, ..self }.error(points);
        Self { shared_s: least_at(0.01 * most_s, most_s, error), ..self }
    }

    /// The law with the unsteadiness of production by which a trainer waits for `stall` of the time, although `workers`
    /// make what it takes.
    pub fn with_stall(self, workers: f64, demand: f64, stall: f64) -> Self {
        let lost = |steady: f64| 1.0 - Self { steady, ..self }.made(workers, demand) / demand;
        let [sharp, soft] = [1e3, 2.0];
        if lost(f64::INFINITY) > stall - TUNING.saving || lost(soft) < stall {
            return self;
        }
        Self { steady: least_at(soft, sharp, |steady| (lost(steady) - stall).abs()), ..self }
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

    /// Measurements in which the law is found again: few workers, as many as the bound holds back, and `workers`.
    pub fn measurements(&self, workers: u32) -> Vec<Measurement> {
        let workers = f64::from(workers);
        let at_bound = 3.0 * self.bound * self.batch_s(workers);
        let counts = [(1.0, 0.0), (workers / 2.0, 0.0), (at_bound, 1.0), (workers, 0.0)];
        let counts = counts.into_iter().filter(|(workers, _)| workers.is_finite());
        let measured = |(workers, stall): (f64, f64)| {
            let compute_s = self.compute_s * (1.0 + self.beta * workers);
            let batch_s = workers / self.capacity(workers);
            Measurement::known(STORED_REPORTS, workers, batch_s, compute_s, stall)
        };
        counts.map(measured).collect()
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

    /// Dollars per batch, times the seconds of an hour, with `workers` and a trainer that wants `demand` batches per second.
    /// Workers that have nothing to do leave, and cost nothing.
    pub fn usd(&self, workers: u32, demand: f64, prices: &Settings) -> f64 {
        let workers = f64::from(workers);
        let worker_s = workers / self.capacity(workers).max(1e-300);
        prices.usd_per_trainer_hour / self.made(workers, demand) + prices.usd_per_worker_hour * worker_s
    }

    /// The fewest workers, at most `most`, at which a batch costs hardly more than the least.
    pub fn cheapest(&self, demand: f64, most: u32, prices: &Settings) -> u32 {
        let demand = demand * (1.0 + TUNING.margin);
        let mut best = (1, self.usd(1, demand, prices));
        for workers in 2..=most {
            let here = self.usd(workers, demand, prices);
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

/// The measurements, with the calls and pauses in the times of those that were not measured by their rate.
fn with_calls(measured: &[Measurement]) -> Vec<Measurement> {
    let reports: f64 = measured.iter().map(|point| f64::from(point.reports)).sum();
    let calls = |point: &Measurement| {
        f64::from(point.reports) * (point.shared_s() - point.reported_s()) / reports.max(1.0)
    };
    let calls_s = measured.iter().map(calls).sum::<f64>().max(0.0);
    let complete = |point: &Measurement| match point.reports {
        0 => Measurement::known(0, point.workers(), point.batch_s() + calls_s, point.compute_s(), 0.0),
        _ => *point,
    };
    measured.iter().map(complete).collect()
}

/// `beta` by least squares of the logarithms of the computing times; 0 unless it explains them better.
fn slowing(measured: &[Measurement]) -> f64 {
    let mixed = |point: &&Measurement| point.workers() >= TUNING.mixed && !point.is_past;
    let points: Vec<_> = measured.iter().filter(mixed).collect();
    let error = |beta: f64| {
        let alone = |point: &Measurement| (point.compute_s() / (1.0 + beta * point.workers())).ln();
        let weight = |point: &Measurement| 1.0 / point.variance();
        let total: f64 = points.iter().map(|point| weight(point)).sum();
        let mean = points.iter().map(|point| weight(point) * alone(point)).sum::<f64>() / total;
        points.iter().map(|point| weight(point) * (alone(point) - mean).powi(2)).sum::<f64>()
    };
    let beta = least_at(1e-5, 1.0, error);
    if error(0.0) - error(beta) > TUNING.evidence { beta } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;


    fn law(bound: f64, beta: f64) -> ThroughputLaw {
        ThroughputLaw { compute_s: 1.5, beta, shared_s: 0.5, bound, steady: f64::INFINITY }
    }

    #[test]
    fn a_law_is_found_again_from_its_points() {
        for (bound, beta) in [(f64::INFINITY, 0.0), (5.0, 0.0), (12.0, 0.0), (f64::INFINITY, 0.02)]
        {
            let truth = law(bound, beta);
            let found = ThroughputLaw::fit(&truth.measurements(20)).unwrap();
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
        // One report at few workers, and few of a trainer that waited.
        let first = Measurement::known(0, 1.0, 2.0, 1.5, 0.5);
        let at_bound = Measurement::known(4, 30.0, 30.0 / 5.0, 1.5, 0.5);
        let found = ThroughputLaw::fit(&[first, at_bound]).unwrap();
        assert!(
            (found.bound / 5.0 - 1.0).abs() < 0.1,
            "three times the time is evidence: {found:?}"
        );
        let near = Measurement::known(4, 5.0, 2.1, 1.5, 0.5);
        let found = ThroughputLaw::fit(&[first, near]).unwrap();
        assert!(found.bound.is_infinite(), "5 % is none: {found:?}");
    }

    #[test]
    fn a_trainer_that_waits_although_enough_is_made_gets_more_workers_up_to_the_bound() {
        let steady = law(f64::INFINITY, 0.0);
        let demand = 1.0;
        assert_eq!(steady.cheapest(demand, 100, &Settings::default()), 3, "2 s a batch, and 3 % to spare");
        assert_eq!(steady.with_stall(3.0, demand, 0.0), steady);
        let unsteady = steady.with_stall(3.0, demand, 0.1);
        let lost = 1.0 - unsteady.made(3.0, demand) / demand;
        assert!((lost - 0.1).abs() < 1e-3, "{lost}");
        assert!(unsteady.cheapest(demand, 100, &Settings::default()) > 4);
        // A wait that the law explains is no unsteadiness.
        assert_eq!(steady.with_stall(1.0, demand, 0.5), steady);
    }
}
