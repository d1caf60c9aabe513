//! Verdicts as one table.

use crate::ScenarioCheck;
use std::fmt::Write;

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
