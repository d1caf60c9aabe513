//! The true optimum of a scenario, by trying: every count held fixed, each in a run of its own.

use crate::{Scenario, engine::Engine, scenario::PhaseWorld};
use gristmill_policy::scaling::{Policy, Settings};
use serde::Serialize;

/// Mean batch time of a count, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    pub workers: u32,
    pub batch_time_s: f64,
}

/// Batch times over counts in one phase, and the count to choose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    pub phase: usize,
    pub counts: Vec<Measured>,
    pub best_batch_time_s: f64,
    /// The fewest workers whose batch time is within the tolerance of the best.
    pub optimum: u32,
}

/// Seed of all sweeps: counts are compared under the same draws.
const SEED: u64 = 0x5eed;
/// Up to here every count is tried; beyond, every 2 %, and every count again around the optimum.
const EVERY: u32 = 48;
const SPARSE: f64 = 1.02;
/// Batches measured at least: 10 % of noise become 0.2 %.
const MEASURED_BATCHES: u64 = 2_500;

/// Tries the counts of a phase.
pub fn sweep(scenario: &Scenario, phase: usize) -> Sweep {
    let world = &scenario.phases[phase].world;
    let most = scenario.most_workers(world);
    // Beyond twice what the times ask for nothing gets better, unless workers slow each other or die.
    let useful = if world.interference > 0.0 || world.mean_life_s.is_finite() {
        most
    } else {
        most.min((2.0 * world.need()) as u32 + 32)
    };
    let mut counts: Vec<Measured> = Vec::new();
    let mut workers = 1;
    while workers <= useful {
        counts.push(measure(scenario, phase, workers));
        let next =
            if workers < EVERY { workers + 1 } else { (f64::from(workers) * SPARSE) as u32 + 1 };
        workers = if workers < useful { next.min(useful) } else { next };
    }
    let tolerance = 1.0 + scenario.settings.tolerance;
    let best =
        |counts: &[Measured]| counts.iter().map(|at| at.batch_time_s).fold(f64::INFINITY, f64::min);
    let first = |counts: &[Measured]| {
        let enough = best(counts) * tolerance;
        counts.iter().position(|at| at.batch_time_s <= enough).unwrap_or(0)
    };
    let at = first(&counts);
    let below = if at == 0 { 0 } else { counts[at - 1].workers };
    for workers in below + 1..counts[at].workers {
        counts.push(measure(scenario, phase, workers));
    }
    counts.sort_by_key(|at| at.workers);
    let optimum = counts[first(&counts)].workers;
    Sweep { phase, best_batch_time_s: best(&counts), optimum, counts }
}

/// Mean batch time of a fixed count once everything measured was made by it.
pub fn measure(scenario: &Scenario, phase: usize, workers: u32) -> Measured {
    let mut world = scenario.phases[phase].world.clone();
    world.report_noise = 0.0;
    let lease = u64::from(world.split_batches) * u64::from(world.lease_splits);
    let generation = lease * u64::from(workers);
    let warm_up = (2 * generation + 200).max(world.window_batches.min(10 * generation));
    // Where the window is tight workers come and go: several rounds of that.
    // A generation of splits arrives as a wave: near the knee a share of one would show.
    let load = f64::from(workers) / world.need();
    let generations = if (0.8..1.25).contains(&load) { 16 } else { 4 };
    let measured =
        MEASURED_BATCHES.max(generations * generation).max(world.window_batches.min(20_000));
    let batches = warm_up + measured + generation + world.window_batches.min(4 * generation);
    let still = Scenario {
        phases: vec![PhaseWorld { from_batch: 0, world }],
        settings: Settings {
            max_workers: u32::MAX,
            concurrency: u32::MAX,
            budget_usd_per_hour: None,
            ..scenario.settings
        },
        batches,
        ..scenario.clone()
    };
    let (mut time_s, mut reports, mut from) = (0.0, 0.0, 0);
    Engine::new(&still, 0, SEED, Policy::Fixed(workers)).run(|tick| {
        if from >= warm_up {
            time_s += tick.batch_time_s;
            reports += 1.0;
        }
        from = tick.batches;
        from >= warm_up + measured
    });
    Measured { workers, batch_time_s: time_s / f64::max(reports, 1.0) }
}
