//! Rows and bars, as text and as JSON.

use crate::{
    args::ScaleArgs,
    deployment::{DeploymentParameters, SimulatedDeployment},
    figures::ScaleFigures,
};
use gristmill_policy::cost::PriceList;
use gristmill_ports::limits::{
    GROWTH, GROWTH_PERIOD, PARTITION_READS_PER_S, PARTITION_WRITES_PER_S, StackLimits,
};
use gristmill_ports::memory::TableUnits;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Records of a split, for dollars per million records.
const RECORDS: f64 = 512.0;
/// Memory of the coordinator, in GB.
const COORDINATOR_GB: f64 = 0.5;
/// Number of workers from which a trainer's polls, not claims, are the limit.
const MANY: u32 = 5_000;
/// Split duration from which control time is ample.
const LONG_SPLIT: Duration = Duration::from_millis(1_600);
/// Worker lifetime below which deaths are frequent.
const OFTEN: Duration = Duration::from_secs(600);

/// Partition keys that are named, those asked most for.
const HOTTEST: usize = 4;
/// Seconds in which all workers run, beside those in which Lambda adds their environments.
const BEGUN_WITHIN_S: f64 = 15.0;

/// Events sent per worker, beside the first for each that is wanted.
const FURTHER_EVENTS: f64 = 5.0;

/// A figure and its required bound.
#[derive(Debug, Clone)]
pub struct FigureBar {
    pub name: &'static str,
    pub value: f64,
    pub bound: f64,
    at_most: bool,
}

impl FigureBar {
    /// Holds if `value` is at most `bound`.
    pub fn at_most(name: &'static str, value: f64, bound: f64) -> Self {
        Self { name, value, bound, at_most: true }
    }

    /// False if the figure could not be measured.
    pub fn holds(&self) -> bool {
        if self.at_most { self.value <= self.bound } else { self.value >= self.bound }
    }

    /// Whether the value is further off than that of `other`, a bar of the same name, or could not be measured.
    fn is_worse_than(&self, other: &Self) -> bool {
        let is_further =
            if self.at_most { self.value > other.value } else { self.value < other.value };
        is_further || self.value.is_nan()
    }

    fn relation(&self) -> &'static str {
        if self.at_most { "at most" } else { "at least" }
    }
}

/// One run.
#[derive(Debug)]
pub struct FigureRow {
    pub workers: u32,
    /// The readers of the run, if it has several ranks.
    pub readers: Option<u32>,
    /// Name and value, in column order.
    pub facts: Vec<(&'static str, f64)>,
    pub bars: Vec<FigureBar>,
    calls: Vec<CallRow>,
    /// Lines that are printed with the calls.
    notes: Vec<String>,
    troubles: Vec<(String, u64)>,
}

/// Calls of one kind.
#[derive(Debug, Serialize)]
pub struct CallRow {
    name: &'static str,
    pub calls: u64,
    pub read_units: f64,
    pub write_units: f64,
    round_trips: f64,
    p50_ms: f64,
    p99_ms: f64,
    unanswered: u64,
    largest_bytes: u64,
}

impl FigureRow {
    /// The value of a fact, NaN if there is none of that name.
    pub fn fact(&self, name: &str) -> f64 {
        self.facts.iter().find(|(of, _)| *of == name).map_or(f64::NAN, |(_, value)| *value)
    }

    /// Wants a fact to be at most `bound`.
    pub fn at_most(&mut self, fact: &'static str, bound: f64) {
        self.bars.push(FigureBar::at_most(fact, self.fact(fact), bound));
    }

    /// Wants a fact to be at least `bound`.
    pub fn at_least(&mut self, fact: &'static str, bound: f64) {
        self.bars
            .push(FigureBar { at_most: false, ..FigureBar::at_most(fact, self.fact(fact), bound) });
    }

    fn name(&self) -> String {
        match self.readers {
            Some(readers) => format!("{readers} readers, {} workers", self.workers),
            None => format!("{} workers", self.workers),
        }
    }

    /// The calls of one kind, if there were any.
    #[cfg(test)]
    pub fn call(&self, name: &str) -> Option<&CallRow> {
        self.calls.iter().find(|call| call.name == name)
    }

    /// Whether all bars hold.
    pub fn holds(&self) -> bool {
        self.bars.iter().all(FigureBar::holds)
    }
}

/// A row without additional facts.
pub fn plain_row(deployment: &SimulatedDeployment, figures: &ScaleFigures) -> FigureRow {
    let calls = figures.calls.iter().map(|(name, call)| CallRow {
        name,
        calls: call.calls,
        read_units: call.per_call(call.used.read_units),
        write_units: call.per_call(call.used.write_units),
        round_trips: call.per_call(call.used.round_trips),
        p50_ms: call.latency_ms(0.5),
        p99_ms: call.latency_ms(0.99),
        unanswered: call.unanswered,
        largest_bytes: figures.largest.get(name).copied().unwrap_or(0),
    });
    FigureRow {
        workers: deployment.setting.workers,
        readers: None,
        facts: vec![("seconds measured", figures.seconds())],
        bars: Vec::new(),
        calls: calls.collect(),
        notes: Vec::new(),
        troubles: figures.troubles.iter().map(|(text, n)| (text.clone(), *n)).collect(),
    }
}

/// Dollars of control per million records in the measured part: the table, the coordinators' time, and calls.
fn dollars(figures: &ScaleFigures) -> f64 {
    let prices = PriceList::default();
    let used = figures.used();
    let calls: u64 = figures.calls.values().map(|call| call.calls).sum();
    let table = used.read_units as f64 * prices.table.usd_per_million_reads
        + used.write_units as f64 * prices.table.usd_per_million_writes;
    let requests = calls as f64 * prices.function.usd_per_million_requests;
    let busy =
        figures.busy.as_secs_f64() * COORDINATOR_GB * prices.function.arm64_usd_per_gb_second;
    let records = figures.measured as f64 * RECORDS;
    ((table + requests) / 1e6 + busy) / records * 1e6
}

/// A training job: `delivered` batches of one split each, if it ended.
pub fn training_row(
    deployment: &SimulatedDeployment,
    figures: &ScaleFigures,
    delivered: Option<u64>,
) -> FigureRow {
    let setting = &deployment.setting;
    let mut row = plain_row(deployment, figures);
    let none = Default::default();
    let claims = figures.calls.get("claim").unwrap_or(&none);
    let of = |value: u64| match claims.calls {
        0 => f64::NAN,
        _ => claims.per_call(value),
    };
    let seconds = figures.seconds();
    let ideal = f64::from(setting.runnable()) / setting.split.as_secs_f64();
    let percent = 100.0 * figures.measured as f64 / seconds / ideal;
    let p99_ms = if claims.calls == 0 { f64::NAN } else { claims.latency_ms(0.99) };
    let TableUnits { reads: most_reads, writes: most_writes } = deployment.items.most_asked();
    let lost = delivered.map_or(f64::NAN, |delivered| f64::from(setting.splits) - delivered as f64);
    row.facts.extend([
        ("read units a claim", of(claims.used.read_units)),
        ("round trips a claim", of(claims.used.round_trips)),
        ("write units a claim", of(claims.used.write_units)),
        ("claim p50 ms", claims.latency_ms(0.5)),
        ("claim p99 ms", p99_ms),
        ("% of the ideal", percent),
        ("coordinators busy", figures.busy.as_secs_f64() / seconds),
        ("requests rejected", figures.used().rejected as f64),
        ("most reads of a partition in 1 s", most_reads as f64),
        ("most writes of a partition in 1 s", most_writes as f64),
        ("$ of control per million records", dollars(figures)),
        ("splits not delivered", lost),
        ("deaths", figures.deaths as f64),
    ]);
    row.at_most("splits not delivered", 0.0);
    match setting.die {
        _ if deployment.stack.is_some() => stack_facts(&mut row, deployment, figures),
        _ if setting.real => real_facts(&mut row, figures),
        // Each costs the trainer the time until the others' progress reveals it, and its work is repeated.
        Some(mean) if setting.unreported && mean < OFTEN => {}
        Some(mean) => {
            let least = if setting.unreported || mean < OFTEN { 85.0 } else { 90.0 };
            row.at_least("% of the ideal", least);
        }
        None => {
            let is_many = setting.workers >= MANY;
            row.at_most("read units a claim", 6.0);
            row.at_most("write units a claim", if setting.workers == 1_000 { 1.25 } else { 1.9 });
            row.at_most("claim p99 ms", if is_many { 100.0 } else { 65.0 });
            row.at_most("most reads of a partition in 1 s", f64::from(PARTITION_READS_PER_S));
            row.at_most("most writes of a partition in 1 s", f64::from(PARTITION_WRITES_PER_S));
            row.at_least("% of the ideal", least_percent(setting));
            if setting.workers >= 100 {
                row.at_most("$ of control per million records", 0.0016);
            }
        }
    }
    row
}

/// Least share of the ideal throughput without deaths, in percent.
fn least_percent(setting: &DeploymentParameters) -> f64 {
    if setting.workers < MANY {
        92.0
    } else if setting.split >= LONG_SPLIT {
        95.0
    } else {
        88.0
    }
}

/// Time until all workers that the scaler must invoke have started.
fn real_facts(row: &mut FigureRow, figures: &ScaleFigures) {
    let started = figures.all_started.map_or(f64::NAN, |at| at.as_secs_f64());
    row.facts.push(("workers started", f64::from(figures.started)));
    row.facts.push(("all started after s", started));
    let killed = figures.scaler_killed.map_or(f64::NAN, |at| at.as_secs_f64());
    row.facts.push(("scaler killed after s", killed));
    if killed.is_nan() {
        row.at_most("all started after s", 15.0)
    } else {
        row.bars.push(FigureBar::at_most(
            "from the scaler's death to all started, s",
            started - killed,
            60.0,
        ))
    }
}

/// The effects of a stack's limits, and the least that it reaches within them.
fn stack_facts(row: &mut FigureRow, deployment: &SimulatedDeployment, figures: &ScaleFigures) {
    let most_used = deployment.stack.as_ref().map_or(0, StackLimits::most_used);
    let setting = &deployment.setting;
    let seconds = figures.seconds();
    let used = figures.used();
    row.facts.extend([
        ("calls rejected by the URL", figures.refused_calls as f64),
        ("read units a second", used.read_units as f64 / seconds),
        ("write units a second", used.write_units as f64 / seconds),
        ("events sent per worker", f64::from(figures.events) / f64::from(setting.runnable())),
        ("events expired", f64::from(figures.expired)),
        ("workers started twice", f64::from(figures.surplus)),
        ("99 % run after s", figures.all_started.map_or(f64::NAN, |at| at.as_secs_f64())),
        ("most of the account used", f64::from(most_used)),
    ]);
    for (key, TableUnits { reads, writes }) in deployment.items.hottest(HOTTEST) {
        row.notes.push(format!("{key}: at most {reads} reads and {writes} writes in 1 s"));
    }
    row.at_most("workers started twice", 0.0);
    row.at_least("% of the ideal", if setting.split >= LONG_SPLIT { 95.0 } else { 90.0 });
    // Each that is wanted once, and then few beyond those that run.
    let wanted = f64::from(setting.workers) / f64::from(setting.runnable());
    row.at_most("events sent per worker", wanted + FURTHER_EVENTS);
    let growth_s = f64::from(setting.runnable()) / f64::from(GROWTH) * GROWTH_PERIOD.as_secs_f64();
    row.at_most("99 % run after s", growth_s + BEGUN_WITHIN_S);
}

fn number(value: f64) -> String {
    match value {
        value if !value.is_finite() => "-".to_owned(),
        value if value == value.trunc() && value.abs() < 1e12 => format!("{value:.0}"),
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value if value.abs() >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.5}"),
    }
}

/// One row, after the column names if it is the first.
pub fn row_text(row: &FigureRow, is_first: bool, calls: bool) -> String {
    let mut lines = Vec::new();
    if is_first {
        lines.push(wrapped_names(row));
    }
    let cells = row.facts.iter().map(|(_, value)| format!("{:>10}", number(*value)));
    lines.push(format!("{:>8}{}", row.workers, cells.collect::<String>()));
    if calls {
        let names =
            ["calls", "reads", "writes", "trips", "p50 ms", "p99 ms", "no answer", "largest B"];
        lines.push(format!("  {:<22}{}", "", names.map(|name| format!("{name:>11}")).concat()));
        for call in &row.calls {
            let CallRow { name, calls, read_units, write_units, round_trips, .. } = call;
            let CallRow { p50_ms, p99_ms, unanswered, largest_bytes, .. } = call;
            lines.push(format!(
                "  {name:<22}{calls:>11}{read_units:>11.2}{write_units:>11.3}{round_trips:>11.2}{p50_ms:>11.1}\
                 {p99_ms:>11.1}{unanswered:>11}{largest_bytes:>11}"
            ));
        }
        lines.extend(row.notes.iter().map(|note| format!("  {note}")));
    }
    for (text, count) in row.troubles.iter().take(8) {
        lines.push(format!("  {count} times: {text}"));
    }
    joined(&lines)
}

/// Lines with their ends.
pub fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Column names above their columns, on as many lines as the longest needs.
fn wrapped_names(row: &FigureRow) -> String {
    let wrap = |name: &str| {
        let mut lines: Vec<String> = Vec::new();
        for word in name.split(' ') {
            match lines.last_mut() {
                Some(line) if line.len() + 1 + word.len() < 10 => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines
    };
    let names: Vec<_> = row.facts.iter().map(|(name, _)| wrap(name)).collect();
    let height = names.iter().map(Vec::len).max().unwrap_or(0);
    let line = |i: usize| {
        let first = if i + 1 == height { "workers" } else { "" };
        // Aligned to the bottom, next to the figures.
        let cell = |name: &Vec<String>| {
            let at = (i + name.len()).checked_sub(height).and_then(|at| name.get(at));
            format!("{:>10}", at.map_or("", String::as_str))
        };
        format!("{first:>8}{}", names.iter().map(cell).collect::<String>())
    };
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

/// The missed bars, and how many hold.
pub fn bars_text(rows: &[FigureRow]) -> String {
    let bars: Vec<_> =
        rows.iter().flat_map(|row| row.bars.iter().map(move |bar| (row, bar))).collect();
    let missed = bars.iter().filter(|(_, bar)| !bar.holds()).map(|(row, bar)| {
        let (value, bound) = (number(bar.value), number(bar.bound));
        let (row, relation) = (row.name(), bar.relation());
        format!("missed: {row}: {} is {value}, wanted {relation} {bound}", bar.name)
    });
    let mut lines: Vec<_> = missed.collect();
    lines.push(format!("{} of {} bars hold", bars.len() - lines.len(), bars.len()));
    joined(&lines)
}

/// A line for each bar: the bound, and the value that is furthest off of all rows.
pub fn worst_text(rows: &[FigureRow]) -> String {
    let mut worst: Vec<(&FigureRow, &FigureBar)> = Vec::new();
    for (row, bar) in rows.iter().flat_map(|row| row.bars.iter().map(move |bar| (row, bar))) {
        match worst.iter_mut().find(|(_, other)| other.name == bar.name) {
            None => worst.push((row, bar)),
            Some(worst) if bar.is_worse_than(worst.1) => *worst = (row, bar),
            Some(_) => {}
        }
    }
    let lines = worst.into_iter().map(|(row, bar)| {
        let is = if bar.holds() { "within" } else { "beyond" };
        let (value, bound, relation) = (number(bar.value), number(bar.bound), bar.relation());
        format!("{is} the bar: {}: {relation} {bound}, was {value} ({})", bar.name, row.name())
    });
    joined(&lines.collect::<Vec<_>>())
}

/// The rows as objects; values that could not be measured are null.
pub fn rows_json(rows: &[FigureRow]) -> Vec<Value> {
    let row = |row: &FigureRow| {
        let facts: serde_json::Map<_, _> =
            row.facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let bars = row.bars.iter().map(|bar| {
            json!({
                "name": bar.name, "value": bar.value, "bound": bar.bound,
                "relation": bar.relation(), "holds": bar.holds(),
            })
        });
        json!({
            "workers": row.workers, "readers": row.readers, "facts": facts, "bars": bars.collect::<Vec<_>>(),
            "calls": row.calls, "troubles": row.troubles,
        })
    };
    rows.iter().map(row).collect()
}

/// All results as one object.
pub fn as_json(args: &ScaleArgs, rows: &[FigureRow]) -> Value {
    json!({
        "limits": args.limits,
        "split_s": args.split_s.as_secs_f64(),
        "seed": args.seed,
        "rows": rows_json(rows),
        "holds": rows.iter().all(FigureRow::holds),
    })
}
