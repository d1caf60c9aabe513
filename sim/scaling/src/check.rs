//! Compares policies with the least dollars of a scenario, over many seeds, and shows the results as a table.

use crate::{PhaseSweep, ScalingScenario, SimulatedRun, simulate, sweeps};
use gristmill_policy::scaling::{POLICIES, PolicyName};
use serde::Serialize;
use std::fmt::Write;

/// Most regret of a seed, in percent.
const REGRET_MOST: f64 = 3.0;
/// Most regret of the middle seed, in percent.
const REGRET_MEDIAN: f64 = 1.0;
/// Most moves of the target between two changes of load.
const MOVES_MOST: usize = 6;
/// Difference of regrets, in percent, below which two policies cost the same: that of two seeds.
const CHEAPER_LEAST: f64 = 0.5;
/// Seeds of each other policy.
const SEEDS_OF_OTHERS: u32 = 5;

/// Result of one phase of a scenario over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseCheck {
    pub phase: usize,
    /// The count at which a batch costs least, and its dollars.
    pub best: u32,
    pub best_usd: f64,
    /// Counts that cost at most 1 % more.
    pub equal: (u32, u32),
    /// Median of the seeds' counts at the end of the phase.
    pub chosen: u32,
    /// Dollars beyond the least, in percent of it, over the last third of the phase: of the middle seed.
    pub regret: f64,
    /// Share of seeds, in percent, with a regret of at most 3 %.
    pub within: f64,
    /// The most moves of a seed, and the reversals of all seeds.
    pub moves: usize,
    pub reversals: u32,
    /// Regret of each other policy, in percent, by its name.
    pub others: Vec<(String, f64)>,
}

/// Whether a scenario's bars hold, and the figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScenarioCheck {
    pub name: String,
    pub paper: Option<f64>,
    pub seeds: u32,
    pub phases: Vec<PhaseCheck>,
    /// Median of the changes of the target until it first converged, and of the reports until then.
    pub decisions: usize,
    pub reports: usize,
    /// Bars that are missed, one line each.
    pub failures: Vec<String>,
}

impl ScenarioCheck {
    /// Whether no bar failed.
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Runs the default policy with `seeds` seeds, starting with `first`, and the others with a few, and compares.
pub fn check(scenario: &ScalingScenario, first: u64, seeds: u32) -> ScenarioCheck {
    let sweeps = sweeps(scenario);
    let runs = |policy: PolicyName, seeds: u32| -> Vec<SimulatedRun> {
        (0..u64::from(seeds))
            .map(|seed| simulate(scenario, first.wrapping_add(seed), policy))
            .collect()
    };
    let ours = runs(PolicyName::default(), seeds);
    let others: Vec<_> = (POLICIES[1..].iter())
        .map(|policy| (policy.as_str(), runs(*policy, seeds.min(SEEDS_OF_OTHERS))))
        .collect();
    let mut checked = ScenarioCheck {
        name: scenario.name.clone(),
        paper: scenario.paper.as_ref().and_then(|paper| paper.workers),
        seeds,
        phases: sweeps.iter().map(|sweep| judge(scenario, sweep, &ours, &others)).collect(),
        decisions: median(ours.iter().map(SimulatedRun::decisions)),
        reports: median(ours.iter().map(SimulatedRun::reports_to_convergence)),
        failures: Vec::new(),
    };
    checked.failures = failures(&checked, scenario.at_least);
    checked
}

fn judge(
    scenario: &ScalingScenario,
    sweep: &PhaseSweep,
    runs: &[SimulatedRun],
    others: &[(&str, Vec<SimulatedRun>)],
) -> PhaseCheck {
    let phase = sweep.phase;
    let regret = |run: &SimulatedRun| {
        100.0 * (run.usd_at_end(phase, &scenario.prices) / sweep.best.usd - 1.0)
    };
    let regrets = |runs: &[SimulatedRun]| -> Vec<f64> { runs.iter().map(regret).collect() };
    let ours = regrets(runs);
    let within = ours.iter().filter(|regret| **regret <= REGRET_MOST).count();
    PhaseCheck {
        phase,
        best: sweep.best.workers,
        best_usd: sweep.best.usd,
        equal: sweep.equal,
        chosen: median(runs.iter().map(|run| run.chosen(phase))),
        within: 100.0 * within as f64 / runs.len().max(1) as f64,
        regret: middle(ours),
        moves: runs.iter().map(|run| run.moves(phase)).max().unwrap_or_default(),
        reversals: runs.iter().map(|run| run.reversals(phase)).sum(),
        others: others
            .iter()
            .map(|(name, runs)| ((*name).to_owned(), middle(regrets(runs))))
            .collect(),
    }
}

fn failures(checked: &ScenarioCheck, at_least: f64) -> Vec<String> {
    let mut failures = Vec::new();
    for phase in &checked.phases {
        let PhaseCheck { phase: at, within, regret, moves, reversals, chosen, best, .. } = phase;
        if *within < at_least {
            failures.push(format!(
                "phase {at}: {within:.0} % of seeds cost at most {REGRET_MOST} % over the least, not {at_least:.0} % \
                 ({chosen} workers, where {best} cost least)"
            ));
        }
        if *regret > REGRET_MEDIAN {
            failures
                .push(format!("phase {at}: the middle seed costs {regret:.1} % over the least"));
        }
        if *moves > MOVES_MOST {
            failures.push(format!("phase {at}: {moves} moves"));
        }
        if *reversals > 0 {
            failures.push(format!("phase {at}: {reversals} reversals after convergence"));
        }
    }
    failures
}

fn median<T: Ord + Default + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// A line for each phase of each scenario, then the missed bars.
pub fn table(checks: &[ScenarioCheck]) -> String {
    let others = POLICIES[1..].iter().map(|policy| policy.as_str().to_owned());
    let head =
        ["scenario", "paper", "chosen", "least at", "regret", "within 3 %", "moves", "reversals"];
    let head: Vec<String> =
        head.map(str::to_owned).into_iter().chain(others).chain([String::new()]).collect();
    let mut rows = vec![head];
    for checked in checks {
        for phase in &checked.phases {
            let first = phase.phase == 0;
            let of_first = |text: String| if first { text } else { String::new() };
            let mut row = vec![
                if first { checked.name.clone() } else { format!("  from change {}", phase.phase) },
                of_first(checked.paper.map_or(String::new(), |workers| workers.to_string())),
                phase.chosen.to_string(),
                format!("{} ({}-{})", phase.best, phase.equal.0, phase.equal.1),
                format!("{:.2} %", phase.regret),
                format!("{:.0} %", phase.within),
                phase.moves.to_string(),
                phase.reversals.to_string(),
            ];
            row.extend(phase.others.iter().map(|(_, regret)| format!("{regret:.1} %")));
            row.push(of_first(if checked.holds() { "ok".into() } else { "FAILS".into() }));
            rows.push(row);
        }
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for checked in checks {
        for failure in &checked.failures {
            let _ = writeln!(text, "{}: {failure}", checked.name);
        }
    }
    text + &cheaper_policies(checks)
}

/// The scenarios in which another policy costs less, in any phase.
fn cheaper_policies(checks: &[ScenarioCheck]) -> String {
    let cheaper = |checked: &ScenarioCheck| -> Option<String> {
        let phases = checked.phases.iter().flat_map(|phase| {
            let others = phase.others.iter();
            others.map(|(name, regret)| (phase.regret - regret, name))
        });
        let (less, name) = phases.max_by(|one, other| one.0.total_cmp(&other.0))?;
        (less > CHEAPER_LEAST).then(|| format!("{}: {name} costs {less:.1} % less\n", checked.name))
    };
    let cheaper: Vec<String> = checks.iter().filter_map(cheaper).collect();
    let least = checks.len() - cheaper.len();
    let head = format!("the default policy costs least in {least} of {}\n", checks.len());
    head + &cheaper.concat()
}
