//! The least dollars of a scenario, by trial: separate runs with every count held fixed.

use crate::{ModelConditions, ScalingScenario, engine::ScalingEngine, scenario::ScenarioPhase};
use gristmill_policy::scaling::{PolicyName, Settings};
use serde::Serialize;

/// Time and dollars of a batch with a count that is held.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SweptCount {
    pub workers: u32,
    pub batch_time_s: f64,
    /// Cost of workers and trainer; requests cost the same with any count.
    pub usd: f64,
}

/// Every count that was tried in one phase, and the one at which a batch costs least.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseSweep {
    pub phase: usize,
    pub counts: Vec<SweptCount>,
    pub best: SweptCount,
    /// The lowest and highest count that cost at most 1 % more.
    pub equal: (u32, u32),
}

/// Seed of all sweeps: counts are compared with the same draws.
const SEED: u64 = 0x5eed;
/// Seeds of the counts near the best.
const SEEDS: u64 = 2;
/// Up to here every count is tried; beyond, every 3 %.
const EVERY: u32 = 48;
const SPARSE: f64 = 1.03;
/// Excess over the least dollars up to which a count is measured again, at length.
const NEAR: f64 = 1.02;
/// Excess that counts as equal.
const EQUAL: f64 = 1.01;
/// Least batches measured: 10 % of noise become 0.2 %.
const MEASURED_BATCHES: u64 = 2_500;
/// Waves of splits measured at first, and of counts near the best; of these, at most so many batches.
const WAVES: u64 = 4;
const WAVES_NEAR: u64 = 24;
const NEAR_BATCHES: u64 = 100_000;
/// Deaths of workers in the measurement of a count near the best.
const DEATHS: f64 = 100.0;
/// Counts measured at length.
const NEAR_COUNTS: usize = 12;
/// Gain of half as many more workers below which higher counts are not tried.
const GAIN_LEAST: f64 = 0.003;

/// Tries the counts of every phase.
pub fn sweeps(scenario: &ScalingScenario) -> Vec<PhaseSweep> {
    (0..scenario.phases.len()).map(|phase| sweep(scenario, phase)).collect()
}

/// Tries the counts of a phase.
pub fn sweep(scenario: &ScalingScenario, phase: usize) -> PhaseSweep {
    let conditions = &scenario.phases[phase].conditions;
    let try_count = |workers| trial(scenario, conditions, workers, SEED, WAVES);
    let mut counts: Vec<_> =
        grid(useful(scenario, conditions)).into_iter().map(try_count).collect();
    let least = least(&counts).usd;
    let mut near: Vec<usize> =
        (0..counts.len()).filter(|at| counts[*at].usd <= NEAR * least).collect();
    // Those that cost least, spread evenly over all that are near.
    let step = near.len().div_ceil(NEAR_COUNTS).max(1);
    near = near.into_iter().step_by(step).collect();
    let mut measured = Vec::new();
    for at in near {
        let workers = counts[at].workers;
        let wave = wave(conditions, workers);
        let until_deaths = DEATHS * conditions.mean_life_s / conditions.worker_batch_s();
        let until_deaths = if until_deaths.is_finite() { until_deaths as u64 } else { 0 };
        let waves = WAVES_NEAR.max(until_deaths / wave);
        let waves = waves.min(NEAR_BATCHES / wave).max(WAVES);
        let trials: Vec<_> = (0..SEEDS)
            .map(|more| trial(scenario, conditions, workers, SEED + more, waves))
            .collect();
        let mean =
            |of: fn(&SweptCount) -> f64| trials.iter().map(of).sum::<f64>() / trials.len() as f64;
        counts[at] =
            SweptCount { workers, batch_time_s: mean(|t| t.batch_time_s), usd: mean(|t| t.usd) };
        measured.push(counts[at]);
    }
    let best = self::least(&measured);
    let equal: Vec<u32> =
        measured.iter().filter(|at| at.usd <= EQUAL * best.usd).map(|at| at.workers).collect();
    let equal = (
        equal.first().copied().unwrap_or(best.workers),
        equal.last().copied().unwrap_or(best.workers),
    );
    PhaseSweep { phase, counts, best, equal }
}

/// The count at which a batch costs least.
fn least(counts: &[SweptCount]) -> SweptCount {
    let none = SweptCount { workers: 1, batch_time_s: f64::INFINITY, usd: f64::INFINITY };
    counts.iter().copied().min_by(|one, other| one.usd.total_cmp(&other.usd)).unwrap_or(none)
}

/// Every count, then every 3 %, up to `most`.
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
    let time_s = |workers| trial(scenario, conditions, workers, SEED, WAVES).batch_time_s;
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

/// A held count in one phase, measured after all earlier batches are past.
pub fn measure(scenario: &ScalingScenario, phase: usize, workers: u32) -> SweptCount {
    trial(scenario, &scenario.phases[phase].conditions, workers, SEED, WAVES)
}

/// Batches worked on at a time. Counts beyond those that the window keeps busy are measured alike.
fn wave(conditions: &ModelConditions, workers: u32) -> u64 {
    let lease = u64::from(conditions.split_batches) * u64::from(conditions.lease_splits);
    (lease * u64::from(workers)).min(conditions.window_batches)
}

/// A held count with one seed, over at least so many waves. Means are slopes over the batches, so that the end of the
/// measurement within a wave does not matter.
fn trial(
    scenario: &ScalingScenario,
    conditions: &ModelConditions,
    workers: u32,
    seed: u64,
    waves: u64,
) -> SweptCount {
    let conditions = ModelConditions { report_noise: 0.0, ..conditions.clone() };
    let clients = f64::from(conditions.clients);
    let wave = wave(&conditions, workers);
    let warm_up = (2 * wave + 200).max(conditions.window_batches.min(10 * wave));
    let measured = MEASURED_BATCHES.max(waves * wave).max(conditions.window_batches.min(20_000));
    let batches = warm_up + measured + wave + conditions.window_batches.min(4 * wave);
    let held = ScalingScenario {
        phases: vec![ScenarioPhase { from_batch: 0, conditions }],
        settings: Settings {
            max_workers: u32::MAX,
            concurrency: u32::MAX,
            budget_workers: None,
            ..scenario.settings
        },
        held: Some(workers),
        batches,
        ..scenario.clone()
    };
    let mut ticks = Vec::new();
    ScalingEngine::new(&held, seed, PolicyName::default()).run(|tick| {
        if tick.batches >= warm_up {
            ticks.push((tick.batches as f64, tick.at_s, tick.made as f64, tick.worker_s));
        }
        tick.batches >= warm_up + measured
    });
    let batch_s = slope(ticks.iter().map(|tick| (tick.0, tick.1)));
    let worker_s = slope(ticks.iter().map(|tick| (tick.2, tick.3)));
    SweptCount {
        workers,
        batch_time_s: batch_s * clients,
        usd: scenario.prices.usd(batch_s, worker_s),
    }
}

/// Slope of the line that fits best, by least squares; infinite with fewer than two points.
fn slope(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = points.clone().count().max(1) as f64;
    let mean_x = points.clone().map(|point| point.0).sum::<f64>() / count;
    let mean_y = points.clone().map(|point| point.1).sum::<f64>() / count;
    let xx: f64 = points.clone().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let xy: f64 = points.map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    if xx > 0.0 { xy / xx } else { f64::INFINITY }
}
