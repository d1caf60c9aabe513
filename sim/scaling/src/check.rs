//! Compares a policy with the swept optimum over many seeds, and with plain Cachew, and shows the results as a table.

use crate::{
    ModelConditions, PhaseSweep, ScalingScenario, SimulatedRun, run::FOLLOWED_REPORTS, simulate,
    sweeps,
};
use gristmill_model::wire::TrainingReport;
use gristmill_policy::scaling::{Cachew, PolicyName, ScalerFacts, ScalingPolicy, Settings};
use serde::Serialize;
use std::fmt::Write;

/// Relative distance to the new optimum that counts as following a change: nearer needs more than ten reports of 10 % noise.
const FOLLOWED_SHARE: f64 = 0.10;
/// Relative distance to the optimum that counts as equal, for counts above 33.
const CHOSEN_SHARE: f64 = 0.03;

/// Result of one phase of a scenario over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseCheck {
    pub phase: usize,
    /// The fewest workers within the tolerance of the best batch time, from the sweep; and the lowest and highest count
    /// within its error.
    pub optimum: u32,
    pub optima: (u32, u32),
    pub best_batch_time_s: f64,
    /// Median of the seeds' counts at the end of the phase.
    pub chosen: u32,
    /// Share of seeds, in percent, within 1 worker or 3 % of the optimum.
    pub within: f64,
    /// Sum over all seeds.
    pub reversals: u32,
    /// Share of seeds, in percent, whose target came within 1 worker or 10 % of the new optimum in 10 reports; `None` for
    /// the first phase.
    pub followed: Option<f64>,
}

/// Whether a scenario's bars hold, and the figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScenarioCheck {
    pub name: String,
    pub paper: Option<f64>,
    pub seeds: u32,
    pub phases: Vec<PhaseCheck>,
    /// Median of the changes of the target until it first converged.
    pub decisions: usize,
    /// Median of the reports until it first converged.
    pub reports: usize,
    /// Plain Cachew with exact measurements, its best case: changes of its target, and the count at convergence;
    /// `None` if it did not converge.
    pub cachew: Option<(usize, u32)>,
    /// Bars that are missed, one line each.
    pub failures: Vec<String>,
}

impl ScenarioCheck {
    /// Whether no bar failed.
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Runs the production policy with `seeds` seeds, starting with `first`, and compares.
pub fn check(scenario: &ScalingScenario, first: u64, seeds: u32) -> ScenarioCheck {
    let sweeps = sweeps(scenario);
    let runs: Vec<SimulatedRun> = (0..u64::from(seeds))
        .map(|seed| simulate(scenario, first.wrapping_add(seed), PolicyName::default()))
        .collect();
    let mut verdict = ScenarioCheck {
        name: scenario.name.clone(),
        paper: scenario.paper.as_ref().and_then(|paper| paper.workers),
        seeds,
        phases: sweeps.iter().map(|sweep| judge(scenario, sweep, &runs)).collect(),
        decisions: median(runs.iter().map(SimulatedRun::decisions)),
        reports: median(runs.iter().map(SimulatedRun::reports_to_convergence)),
        cachew: cachew(&sweeps[0], &scenario.settings),
        failures: Vec::new(),
    };
    verdict.failures = failures(&verdict, scenario.at_least);
    verdict
}

/// Whether a count is equivalent to one of the optima.
fn is_near(chosen: u32, optima: (u32, u32), share: f64) -> bool {
    let (first, last) = optima;
    let optimum = chosen.clamp(first, last);
    f64::from(chosen.abs_diff(optimum)) <= (share * f64::from(optimum)).max(1.0)
}

/// Seconds after a change before it can be observed. A trainer's step shows at once; another cost of a split shows
/// when a split begun after the change is done.
fn unseen_s(before: &ModelConditions, after: &ModelConditions) -> f64 {
    let same_workers = ModelConditions { step_s: before.step_s, ..after.clone() } == *before;
    if same_workers {
        return 0.0;
    }
    let split_s = |conditions: &ModelConditions| {
        conditions.worker_batch_s() * f64::from(conditions.split_batches)
    };
    split_s(before).max(split_s(after))
}

fn judge(scenario: &ScalingScenario, sweep: &PhaseSweep, runs: &[SimulatedRun]) -> PhaseCheck {
    let phase = sweep.phase;
    let share = |holds: &dyn Fn(&SimulatedRun) -> bool| {
        100.0 * runs.iter().filter(|run| holds(run)).count() as f64 / runs.len().max(1) as f64
    };
    let unseen_s = match phase {
        0 => 0.0,
        _ => unseen_s(&scenario.phases[phase - 1].conditions, &scenario.phases[phase].conditions),
    };
    let followed = |run: &SimulatedRun| {
        let begun_s = run.phase(phase).next().map_or(0.0, |tick| tick.at_s);
        let unseen = run.phase(phase).take_while(|tick| tick.at_s < begun_s + unseen_s).count();
        run.phase(phase)
            .take(unseen + FOLLOWED_REPORTS)
            .any(|tick| is_near(tick.target, sweep.optima, FOLLOWED_SHARE))
    };
    PhaseCheck {
        phase,
        optimum: sweep.optimum,
        optima: sweep.optima,
        best_batch_time_s: sweep.best_batch_time_s,
        chosen: median(runs.iter().map(|run| run.chosen(phase))),
        within: share(&|run| is_near(run.chosen(phase), sweep.optima, CHOSEN_SHARE)),
        reversals: runs.iter().map(|run| run.reversals(phase)).sum(),
        followed: (phase > 0).then(|| share(&followed)),
    }
}

/// Plain Cachew with exact and immediate measurements: on the swept curve of the first phase.
fn cachew(sweep: &PhaseSweep, settings: &Settings) -> Option<(usize, u32)> {
    let most = settings.cap().0.min(sweep.counts.last().map_or(1, |at| at.workers));
    let mut cachew = Cachew::default();
    let mut decisions = 0;
    for reports in 1..=u64::from(4 * most + 4) {
        let before = cachew.target;
        // The sweep omits counts that Cachew, which stops near 33, does not reach.
        let at = sweep.counts.iter().find(|at| at.workers >= before)?;
        let facts = ScalerFacts { outstanding: before, ..ScalerFacts::default() };
        let report = TrainingReport {
            // Further apart than its pause after a change.
            batches: reports * 1_000,
            step_s: at.batch_time_s,
            ..TrainingReport::default()
        };
        cachew.next_target(&report, &facts, most);
        decisions += usize::from(cachew.target != before);
        if cachew.converged.is_some() {
            return Some((decisions, cachew.target));
        }
    }
    None
}

fn failures(verdict: &ScenarioCheck, at_least: f64) -> Vec<String> {
    let mut failures = Vec::new();
    for phase in &verdict.phases {
        let at = phase.phase;
        if phase.within < at_least {
            failures.push(format!(
                "phase {at}: {:.0} % of seeds within 1 worker or 3 % of {} (median {}), not {at_least:.0} %",
                phase.within, phase.optimum, phase.chosen
            ));
        }
        if phase.reversals > 0 {
            failures.push(format!("phase {at}: {} reversals after convergence", phase.reversals));
        }
        if phase.followed.is_some_and(|followed| followed < at_least) {
            failures.push(format!(
                "phase {at}: {:.0} % of seeds follow the change of load within 10 reports, not {at_least:.0} %",
                phase.followed.unwrap_or_default()
            ));
        }
    }
    // One decision is the least possible if the start is not the optimum.
    if let Some((theirs, _)) = verdict
        .cachew
        .filter(|(theirs, _)| verdict.decisions > 1 && 2 * verdict.decisions > *theirs)
    {
        failures
            .push(format!("{} decisions, more than half of Cachew's {theirs}", verdict.decisions));
    }
    failures
}

fn median<T: Ord + Default + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

const HEAD: [&str; 11] = [
    "scenario",
    "paper",
    "chosen",
    "optimum",
    "within",
    "followed",
    "decisions",
    "Cachew",
    "Cachew at",
    "reversals",
    "",
];

/// A line for each phase of each scenario, then the missed bars.
pub fn table(verdicts: &[ScenarioCheck]) -> String {
    let mut rows: Vec<[String; 11]> = vec![HEAD.map(str::to_owned)];
    for verdict in verdicts {
        for phase in &verdict.phases {
            let first = phase.phase == 0;
            let of_first = |text: String| if first { text } else { String::new() };
            let (theirs, at) = verdict
                .cachew
                .map_or(("-".into(), "-".into()), |(n, at)| (n.to_string(), at.to_string()));
            rows.push([
                if first { verdict.name.clone() } else { format!("  from change {}", phase.phase) },
                of_first(verdict.paper.map_or(String::new(), |workers| workers.to_string())),
                phase.chosen.to_string(),
                phase.optimum.to_string(),
                format!("{:.0} %", phase.within),
                phase.followed.map_or(String::new(), |share| format!("{share:.0} %")),
                of_first(verdict.decisions.to_string()),
                of_first(theirs),
                of_first(at),
                phase.reversals.to_string(),
                of_first(if verdict.holds() { "ok".into() } else { "FAILS".into() }),
            ]);
        }
    }
    let mut widths = [0; 11];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for verdict in verdicts {
        for failure in &verdict.failures {
            let _ = writeln!(text, "{}: {failure}", verdict.name);
        }
    }
    text
}
