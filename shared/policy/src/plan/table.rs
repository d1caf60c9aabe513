//! A plan as text: at most 28 lines.

use super::{JobPrediction, PlanAlternative};
use crate::cost::CostBreakdown;
use std::fmt;

/// Most alternatives shown; a pipeline may have any number of points.
const MAX_ROWS: usize = 10;
/// Most sentences shown.
const MAX_VERDICTS: usize = 9;
/// Characters of the name column.
const NAME_WIDTH: usize = 28;

impl fmt::Display for JobPrediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobPrediction { records, batches, splits, prices, .. } = self;
        writeln!(
            f,
            "{records} records an epoch: {batches} batches in {splits} splits; prices: {prices}"
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<NAME_WIDTH$} {:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "an epoch on",
            "workers",
            "time",
            "compute",
            "requests",
            "storage",
            "transfer",
            "trainer",
            "total"
        )?;
        let marked = [self.cheapest, self.fastest];
        let rows = self.alternatives.iter().enumerate();
        // Marked rows are always shown.
        let shown =
            |(index, _): &(usize, &PlanAlternative)| *index < MAX_ROWS || marked.contains(index);
        for (index, alternative) in rows.filter(shown) {
            row(f, alternative)?;
            if index == self.cheapest {
                write!(f, "  cheapest")?;
            }
            if index == self.fastest {
                write!(f, "  fastest")?;
            }
            writeln!(f)?;
        }
        let CostBreakdown { compute, requests, storage, transfer, accelerator } =
            self.functions.per_million;
        writeln!(
            f,
            "{:<NAME_WIDTH$} {:>7} {:>11} {compute:>9} {requests:>9} {storage:>9} {transfer:>9} \
             {accelerator:>9} {:>9}",
            "functions, a million records",
            "",
            "",
            self.functions.per_million.total()
        )?;
        writeln!(f)?;
        for verdict in self.verdicts.iter().take(MAX_VERDICTS) {
            writeln!(f, "{verdict}")?;
        }
        write!(f, "Arithmetic from prices and a sample: not measured on AWS.")
    }
}

fn row(f: &mut fmt::Formatter<'_>, alternative: &PlanAlternative) -> fmt::Result {
    let PlanAlternative { name, workers, seconds, cost, refused, .. } = alternative;
    let name: String = name.chars().take(NAME_WIDTH).collect();
    if let Some(why) = refused {
        return write!(f, "{name:<NAME_WIDTH$} {:>7} {why}", "-");
    }
    let CostBreakdown { compute, requests, storage, transfer, accelerator } = *cost;
    let workers =
        if workers.fract() == 0.0 { format!("{workers}") } else { format!("{workers:.1}") };
    write!(
        f,
        "{name:<NAME_WIDTH$} {workers:>7} {:>11} {compute:>9} {requests:>9} {storage:>9} {transfer:>9} \
         {accelerator:>9} {:>9}",
        duration(*seconds),
        cost.total()
    )
}

/// `4.20 s`, `31 min 15 s`, `2 h 05 min`.
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.2} s");
    }
    let whole = seconds.round() as u64;
    match whole / 3600 {
        0 => format!("{} min {:02} s", whole / 60, whole % 60),
        hours => format!("{hours} h {:02} min", whole % 3600 / 60),
    }
}
