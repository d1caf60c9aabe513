//! The throughput law: what so many workers make, fitted to the counts that were measured.
//!
//! A worker computes a batch in `c (1 + beta n)` and waits `m` for what all share. `n` workers make
//! `X(n) = min(demand, n / (c (1 + beta n) + m), bound)` batches a second.

use super::tuning::TUNING;
use serde::{Deserialize, Serialize};

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
}

impl LawPoint {
    fn shared_s(&self) -> f64 {
        (self.batch_s - self.compute_s).max(0.0)
    }

    /// The share that two standard errors of a time of so many reports are of it.
    fn error(&self) -> f64 {
        let [_, sigma, _] = TUNING.sigma;
        2.0 * sigma / f64::from(self.reports.max(1)).sqrt()
    }

    /// Whether `time` of this count has grown beyond that of `free` by more than noise, while the trainer waited.
    fn is_bound(&self, free: &Self, time: fn(&Self) -> f64) -> bool {
        let more_s = time(self) * (1.0 - self.error()) - time(free) * (1.0 + free.error());
        self.stall > TUNING.bound_stall && more_s > TUNING.contention * self.batch_s
    }

    fn rate(&self) -> f64 {
        self.workers / self.batch_s
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
}

impl ThroughputLaw {
    /// Fits the points, by least squares weighted by their reports; none without any.
    pub fn fit(points: &[LawPoint]) -> Option<Self> {
        let here = points.last()?;
        let mixed = |point: &&LawPoint| point.workers >= TUNING.mixed;
        let beta = slowing(points.iter().filter(mixed)).unwrap_or(0.0);
        let compute_s = here.compute_s / (1.0 + beta * here.workers);
        // At its limit a resource only takes longer: of what is known, the least.
        let least = |time: fn(&LawPoint) -> f64, of: &[&LawPoint]| -> Option<LawPoint> {
            let surely_s = |point: &LawPoint| time(point) * (1.0 + point.error());
            of.iter()
                .copied()
                .copied()
                .min_by(|one, other| surely_s(one).total_cmp(&surely_s(other)))
        };
        let reported_s = |point: &LawPoint| point.reported_s;
        let all: Vec<&LawPoint> = points.iter().collect();
        let measured: Vec<&LawPoint> = points.iter().filter(|point| point.reports > 0).collect();
        let by_reports = least(reported_s, &all)?;
        let by_rate = least(LawPoint::shared_s, &measured);
        let is_bound = |point: &&LawPoint| {
            point.is_bound(&by_reports, reported_s)
                || by_rate.is_some_and(|free| point.is_bound(&free, LawPoint::shared_s))
        };
        let bound = points.iter().filter(is_bound).map(LawPoint::rate).fold(0.0, f64::max);
        let calls_s = (here.shared_s() - here.reported_s).max(0.0);
        let least_s = by_rate.map_or(f64::INFINITY, |free| free.shared_s());
        let least_s = least_s.min(calls_s + by_reports.reported_s);
        // If even the least was measured at the bound, it may be any part of that.
        let is_known = by_reports.rate() < TUNING.known * bound;
        let (bound, shared_s) = match bound {
            0.0 => (f64::INFINITY, here.shared_s()),
            _ if is_known => (bound, least_s),
            _ => (bound, least_s / 2.0),
        };
        Some(Self { compute_s, beta, shared_s, bound })
    }

    /// A worker's time for a batch among `workers`, while no bound is reached.
    pub fn batch_s(&self, workers: f64) -> f64 {
        self.compute_s * (1.0 + self.beta * workers) + self.shared_s
    }

    /// Batches per second that `workers` make if nothing holds them back.
    pub fn capacity(&self, workers: f64) -> f64 {
        let free = workers / self.batch_s(workers);
        if self.bound.is_infinite() {
            return free;
        }
        let sum = free.powf(-TUNING.knee) + self.bound.powf(-TUNING.knee);
        sum.powf(-1.0 / TUNING.knee)
    }

    /// Dollars per batch with `workers` and a trainer that wants `demand` batches per second. Prices are per second.
    /// Workers that have nothing to do leave, and cost nothing.
    pub fn usd(&self, workers: f64, demand: f64, prices: &LawPrices) -> f64 {
        let capacity = self.capacity(workers).max(1e-300);
        let made = capacity.min(demand);
        let at_work = workers * (made / capacity);
        (prices.trainer + at_work * prices.worker) / made
    }

    /// The number of workers, at most `most`, at which a batch costs least; of equal ones the fewest.
    pub fn cheapest(&self, demand: f64, most: u32, prices: &LawPrices) -> u32 {
        let demand_and_margin = demand * (1.0 + TUNING.margin);
        let usd = |workers: u32| self.usd(f64::from(workers), demand_and_margin, prices);
        let mut best = (1, usd(1));
        for workers in 2..=most {
            let here = usd(workers);
            if here < best.1 * (1.0 - 1e-9) {
                best = (workers, here);
            }
            if self.capacity(f64::from(workers)) >= demand_and_margin {
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
    let slope = nc / nn;
    let alone = mean_c - slope * mean_n;
    // Two standard errors of the difference, if half of the reports are at each end.
    let [_, sigma, _] = TUNING.sigma;
    let noise = 4.0 * sigma / total.sqrt();
    let grows = slope * (most - least) > (TUNING.slowing + noise) * mean_c && alone > 0.0;
    grows.then(|| slope / alone)
}
