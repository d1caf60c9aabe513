//! The true optimum of a scenario, by trial: separate runs with every count held fixed.
//!
//! A mean batch time is the slope of time over batches, so that the end of the measurement within a wave of splits does
//! not matter. Every count is tried with one seed, those near the optimum with several; remaining noise is removed by
//! the known shape of the curve: it falls, and then may rise.

use crate::{ModelConditions, ScalingScenario, engine::ScalingEngine, scenario::ScenarioPhase};
use gristmill_policy::scaling::{PolicyName, Settings};
use serde::Serialize;

/// Mean batch time of a count, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SweptCount {
    pub workers: u32,
    pub batch_time_s: f64,
}

/// Batch times over counts in one phase, and the count to choose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseSweep {
    pub phase: usize,
    pub counts: Vec<SweptCount>,
    pub best_batch_time_s: f64,
    /// The fewest workers whose batch time is within the tolerance of the best.
    pub optimum: u32,
    /// The lowest and highest optimum within the sweep's error.
    pub optima: (u32, u32),
}

/// Seed of all sweeps: counts are compared with the same draws.
const SEED: u64 = 0x5eed;
/// Seeds for counts near the optimum: this halves the error, which is compared with the policies' tolerance of 3 %.
const SEEDS: u64 = 4;
/// Up to here every count is tried; beyond, every 3 %, and every 0.5 % around the optimum.
const EVERY: u32 = 48;
const SPARSE: f64 = 1.03;
const DENSE: f64 = 0.005;
/// Relative distance around the optimum: more than the noise of one run.
const AROUND: f64 = 0.04;
/// Least batches measured: 10 % of noise become 0.2 %.
const MEASURED_BATCHES: u64 = 2_500;
/// Least waves of splits measured, and near the optimum: splits of 10 % noise that begin together take 25 waves to
/// spread out. Fewer for waves of many batches, so that a scenario of thousands of workers takes seconds: its curve is
/// smooth there.
const WAVES: u64 = 4;
const WAVES_DECIDING: u64 = 32;
const WAVES_LONG: u64 = 6;
const DECIDING_BATCHES: u64 = 100_000;
/// Rounds of long measurements: each ends with another lowest count, or is the last.
const ROUNDS_MOST: usize = 16;
/// Gain of half as many more workers below which higher counts are not tried: an unlimited number would gain three
/// times that.
const GAIN_LEAST: f64 = 0.003;
/// Bounds of the sweep's assumed error, in logarithm.
const ERROR_LEAST: f64 = 0.002;
const ERROR_MOST: f64 = 0.01;

/// A count, and the logarithms of its batch times with one seed or several.
#[derive(Debug)]
struct Tried {
    workers: u32,
    logs: Vec<f64>,
}

impl Tried {
    fn new(workers: u32) -> Self {
        Self { workers, logs: Vec::new() }
    }

    fn log(&self) -> f64 {
        mean(&self.logs)
    }

    /// Variance of one seed; `None` with a single seed.
    fn variance(&self) -> Option<f64> {
        let squares: f64 = self.logs.iter().map(|log| (log - self.log()).powi(2)).sum();
        (self.logs.len() > 1).then(|| squares / (self.logs.len() - 1) as f64)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Tries the counts of every phase.
pub fn sweeps(scenario: &ScalingScenario) -> Vec<PhaseSweep> {
    (0..scenario.phases.len()).map(|phase| sweep(scenario, phase)).collect()
}

/// Tries the counts of a phase.
pub fn sweep(scenario: &ScalingScenario, phase: usize) -> PhaseSweep {
    let conditions = &scenario.phases[phase].conditions;
    let try_count = |tried: &mut Tried, waves: u64| {
        let seed = SEED + tried.logs.len() as u64;
        let time_s = batch_time_s(scenario, conditions, tried.workers, seed, waves);
        tried.logs.push(time_s.max(1e-12).ln());
    };
    let useful = useful(scenario, conditions);
    let mut tried: Vec<Tried> = grid(useful).into_iter().map(Tried::new).collect();
    tried.iter_mut().for_each(|tried| try_count(tried, WAVES));
    let tolerance = scenario.settings.tolerance.ln_1p();
    // A count that looks best after one short measurement may be lucky: repeat until the lowest was measured at length.
    for _ in 0..ROUNDS_MOST {
        let mut is_done = true;
        let curve = fit(&tried);
        let about = tried[first_below(&curve, best(&curve) + tolerance)].workers;
        let reach = (AROUND * f64::from(about)).ceil().max(2.0) as u32;
        let dense = ((DENSE * f64::from(about)) as usize).max(1);
        let around = about.saturating_sub(reach).max(1)..=(about + reach).min(useful);
        for workers in around.step_by(dense) {
            if let Err(at) = tried.binary_search_by_key(&workers, |tried| tried.workers) {
                tried.insert(at, Tried::new(workers));
            }
        }
        let best = best(&curve);
        let is_best: Vec<u32> = (tried.iter().filter(|tried| !tried.logs.is_empty()).zip(&curve))
            .filter(|(_, log)| **log <= best + 1e-9)
            .map(|(tried, _)| tried.workers)
            .take(4)
            .collect();
        for tried in &mut tried {
            let decides =
                tried.workers.abs_diff(about) <= reach || is_best.contains(&tried.workers);
            if !decides || tried.logs.len() > 1 {
                continue;
            }
            // Short measurements are replaced by long ones.
            *tried = Tried::new(tried.workers);
            is_done = false;
            let waves = (DECIDING_BATCHES / wave(conditions, tried.workers))
                .clamp(WAVES_LONG, WAVES_DECIDING);
            let seeds = if waves == WAVES_LONG { SEEDS / 2 } else { SEEDS };
            (0..seeds).for_each(|_| try_count(tried, waves));
        }
        if is_done {
            break;
        }
    }
    conclude(phase, &tried, tolerance)
}

fn conclude(phase: usize, tried: &[Tried], tolerance: f64) -> PhaseSweep {
    let curve = fit(tried);
    let enough = best(&curve) + tolerance;
    let variances: Vec<f64> = tried.iter().filter_map(Tried::variance).collect();
    let error = (mean(&variances) / SEEDS as f64).sqrt().clamp(ERROR_LEAST, ERROR_MOST);
    let count = |log: f64| tried[first_below(&curve, log)].workers;
    let counts = tried.iter().zip(&curve);
    PhaseSweep {
        phase,
        best_batch_time_s: best(&curve).exp(),
        optimum: count(enough),
        // Errors of the best, and of the counts compared with it.
        optima: (count(enough + error), count(enough - error)),
        counts: counts
            .map(|(tried, log)| SweptCount { workers: tried.workers, batch_time_s: log.exp() })
            .collect(),
    }
}

fn fit(tried: &[Tried]) -> Vec<f64> {
    let measured: Vec<(f64, f64)> = tried
        .iter()
        .filter(|tried| !tried.logs.is_empty())
        // Longer and repeated measurements weigh more.
        .map(|tried| match tried.logs.len() {
            1 => (tried.log(), 1.0),
            seeds => (tried.log(), 4.0 * seeds as f64),
        })
        .collect();
    unimodal(&measured)
}

fn best(curve: &[f64]) -> f64 {
    curve.iter().copied().fold(f64::INFINITY, f64::min)
}

fn first_below(curve: &[f64], enough: f64) -> usize {
    curve.iter().position(|log| *log <= enough + 1e-12).unwrap_or(curve.len() - 1)
}

/// Every count, then every 2 %, up to `most`.
fn grid(most: u32) -> Vec<u32> {
    let mut counts = Vec::new();
    let mut workers = 1;
    while workers <= most {
        counts.push(workers);
        let next =
            if workers < EVERY { workers + 1 } else { (f64::from(workers) * SPARSE) as u32 + 1 };
        workers = if workers < most { next.min(most) } else { next };
    }
    counts
}

/// The count beyond which nothing improves: twice the need by times, unless workers slow each other.
fn useful(scenario: &ScalingScenario, conditions: &ModelConditions) -> u32 {
    let most = scenario.most_workers(conditions);
    let mut useful = ((2.0 * conditions.need()) as u32 + 32).min(most);
    if conditions.interference == 0.0 {
        return useful;
    }
    let time_s = |workers| batch_time_s(scenario, conditions, workers, SEED, WAVES);
    let mut here_s = time_s(useful);
    while useful < most {
        let more = (useful + useful / 2).min(most);
        let more_s = time_s(more);
        if more_s > here_s * (1.0 - GAIN_LEAST) {
            break;
        }
        (useful, here_s) = (more, more_s);
    }
    useful
}

/// Mean batch time of a fixed count, measured after all earlier batches are past.
pub fn measure(scenario: &ScalingScenario, phase: usize, workers: u32) -> SweptCount {
    let conditions = &scenario.phases[phase].conditions;
    SweptCount { workers, batch_time_s: batch_time_s(scenario, conditions, workers, SEED, WAVES) }
}

/// Batches worked on at a time. Counts beyond those that the window keeps busy are measured alike.
fn wave(conditions: &ModelConditions, workers: u32) -> u64 {
    let lease = u64::from(conditions.split_batches) * u64::from(conditions.lease_splits);
    (lease * u64::from(workers)).min(conditions.window_batches)
}

/// Mean batch time of a fixed count with one seed, over at least so many waves.
fn batch_time_s(
    scenario: &ScalingScenario,
    conditions: &ModelConditions,
    workers: u32,
    seed: u64,
    waves: u64,
) -> f64 {
    let conditions = ModelConditions { report_noise: 0.0, ..conditions.clone() };
    let clients = f64::from(conditions.clients);
    let wave = wave(&conditions, workers);
    let warm_up = (2 * wave + 200).max(conditions.window_batches.min(10 * wave));
    let measured = MEASURED_BATCHES.max(waves * wave).max(conditions.window_batches.min(20_000));
    let batches = warm_up + measured + wave + conditions.window_batches.min(4 * wave);
    let still = ScalingScenario {
        phases: vec![ScenarioPhase { from_batch: 0, conditions }],
        settings: Settings {
            fixed: Some(workers),
            max_workers: u32::MAX,
            concurrency: u32::MAX,
            budget_usd_per_hour: None,
            ..scenario.settings
        },
        batches,
        ..scenario.clone()
    };
    let (mut batches, mut times_s) = (Vec::new(), Vec::new());
    ScalingEngine::new(&still, seed, PolicyName::default()).run(|tick| {
        if tick.batches >= warm_up {
            batches.push(tick.batches as f64 / clients);
            times_s.push(tick.at_s);
        }
        tick.batches >= warm_up + measured
    });
    slope(&batches, &times_s)
}

/// Slope of the line that fits best, by least squares; infinite with fewer than two points.
fn slope(xs: &[f64], ys: &[f64]) -> f64 {
    let (mean_x, mean_y) = (mean(xs), mean(ys));
    let xx: f64 = xs.iter().map(|x| (x - mean_x).powi(2)).sum();
    let xy: f64 = xs.iter().zip(ys).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    if xx > 0.0 { xy / xx } else { f64::INFINITY }
}

#[derive(Debug, Clone, Copy)]
struct Pool {
    mean: f64,
    weight: f64,
    members: usize,
}

/// Fits (value, weight) with a curve that does not rise before its minimum and does not fall after it. Chooses the best
/// fit among all positions of the minimum.
pub(crate) fn unimodal(values: &[(f64, f64)]) -> Vec<f64> {
    let falling = |values: &[(f64, f64)]| monotone(values.iter().map(|(v, w)| (-v, *w)));
    let rising = |values: &[(f64, f64)]| monotone(values.iter().copied());
    let mut best: (f64, Vec<f64>) = (f64::INFINITY, Vec::new());
    for lowest in 0..values.len() {
        let (left, right) = values.split_at(lowest + 1);
        let mut curve: Vec<f64> = falling(left).into_iter().map(|value| -value).collect();
        curve.extend(rising(right));
        let error: f64 =
            curve.iter().zip(values).map(|(fit, (value, w))| w * (fit - value).powi(2)).sum();
        // Beyond rounding: of equal fits the first.
        if error < best.0 * (1.0 - 1e-9) {
            best = (error, curve);
        }
    }
    best.1
}

/// Fits an increasing curve: neighbours in the wrong order become their mean.
fn monotone(values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    let mut pools: Vec<Pool> = Vec::new();
    for (mean, weight) in values {
        let mut pool = Pool { mean, weight, members: 1 };
        while let Some(before) = pools.pop_if(|before| before.mean > pool.mean) {
            let weight = before.weight + pool.weight;
            pool.mean = (before.mean * before.weight + pool.mean * pool.weight) / weight;
            pool.weight = weight;
            pool.members += before.members;
        }
        pools.push(pool);
    }
    pools.iter().flat_map(|pool| std::iter::repeat_n(pool.mean, pool.members)).collect()
}

#[cfg(test)]
mod unimodal_tests {
    use super::*;

    fn fit(values: &[f64]) -> Vec<f64> {
        unimodal(&values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>())
    }

    #[test]
    fn unimodal_values_stay() {
        let values = [5.0, 3.0, 2.0, 2.5, 4.0];
        assert_eq!(fit(&values), values);
        assert_eq!(fit(&[3.0]), [3.0]);
    }

    #[test]
    fn noise_is_averaged_away() {
        let pooled = fit(&[5.0, 3.0, 2.0, 2.2, 2.0, 2.2, 9.0]);
        assert!((pooled[2..5].iter().sum::<f64>() - 6.2).abs() < 1e-9);
        let flat = fit(&[4.0, 1.1, 0.9, 1.1, 0.9]);
        assert!(flat[1..].iter().all(|value| (0.9..=1.1).contains(value)));
    }

    #[test]
    fn weights_count() {
        let curve = unimodal(&[(2.0, 1.0), (1.0, 3.0), (1.4, 1.0), (1.0, 3.0)]);
        assert_eq!(curve[0], 2.0);
        assert!((curve[1] - 1.0).abs() < 1e-9 && curve[3] < 1.2);
    }
}
