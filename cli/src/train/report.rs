//! What a run came to: a table for people, one JSON object for programs.

use super::{measure::Usage, trainer::Trained};
use crate::output::{say, say_all};
use crate::{args::TrainArgs, failure::Failure, skipped};
use gristmill_client::{LeftOut, Waits};
use gristmill_model::JobName;
use gristmill_model::wire::CacheMode;
use gristmill_report::{Advice, Stalls};
use serde_json::{Value, json};

/// Records left out that are shown; `status --skipped` lists all.
const SHOWN_SKIPPED: usize = 10;
/// Part of an epoch, in percent, that a wait must take to be explained in the table.
const WORTH_NAMING_PERCENT: f64 = 3.0;

/// One epoch as the trainer lived it.
#[derive(Debug, Clone)]
pub struct EpochReport {
    pub epoch: u32,
    pub elements: u64,
    pub batches: u64,
    pub skipped: u64,
    /// Elements that workers made.
    pub rows: u64,
    pub splits: u32,
    pub seconds: f64,
    pub waited_seconds: f64,
    pub workers_max: u32,
    pub time_to_first_batch_ms: f64,
    pub duplicates: u64,
    pub distinct: u64,
    /// What was done about `autocache` points, and why.
    pub mode: CacheMode,
    pub reason: Option<String>,
    /// Of reading, computing and storing its splits.
    pub worker_seconds: [f64; 3],
    /// Bytes of its objects, as workers kept them.
    pub stored_bytes: u64,
    /// What the trainer waited for.
    pub waits: Waits,
    /// CPU that worker processes took while it was delivered.
    pub worker_cpu_ms: u64,
}

impl Default for EpochReport {
    fn default() -> Self {
        Self {
            epoch: 0,
            elements: 0,
            batches: 0,
            skipped: 0,
            rows: 0,
            splits: 0,
            seconds: 0.0,
            waited_seconds: 0.0,
            workers_max: 0,
            time_to_first_batch_ms: 0.0,
            duplicates: 0,
            distinct: 0,
            // Of a pipeline without points.
            mode: CacheMode::Compute,
            reason: None,
            worker_seconds: [0.0; 3],
            stored_bytes: 0,
            waits: Waits::default(),
            worker_cpu_ms: 0,
        }
    }
}

impl EpochReport {
    fn batch_time_ms(&self) -> f64 {
        self.seconds * 1e3 / (self.batches.max(1) as f64)
    }

    fn stall_fraction(&self) -> f64 {
        match self.seconds > 0.0 {
            true => (self.waited_seconds / self.seconds).min(1.0),
            false => 0.0,
        }
    }
}

/// The whole run.
pub struct Report {
    job: JobName,
    seed: u64,
    kills: u64,
    trained: Trained,
    usage: Usage,
    left_out: skipped::Report,
    /// Files of the dataset that are not read.
    files: LeftOut,
    /// Where the waiting went, by epoch.
    stalls: Vec<Stalls>,
}

impl Report {
    pub fn new(
        args: &TrainArgs,
        job: &JobName,
        trained: Trained,
        usage: Usage,
        kills: u64,
        left_out: skipped::Report,
        stalls: Vec<Stalls>,
    ) -> Self {
        let files = LeftOut::default();
        Self { job: job.clone(), seed: args.seed, kills, trained, usage, left_out, files, stalls }
    }

    /// The same, naming files of the dataset that were not read.
    pub fn of_files(self, files: LeftOut) -> Self {
        Self { files, ..self }
    }

    fn sum(&self, field: impl Fn(&EpochReport) -> u64) -> u64 {
        self.trained.epochs.iter().map(field).sum()
    }

    fn lost(&self) -> u64 {
        let (seen, skipped) = (self.sum(|e| e.distinct), self.sum(|e| e.skipped));
        self.trained.elements_expected.saturating_sub(seen + skipped + self.trained.dropped)
    }

    /// Elements delivered.
    pub fn elements(&self) -> u64 {
        self.sum(|epoch| epoch.elements)
    }

    /// Committed splits.
    pub fn splits(&self) -> u64 {
        self.sum(|epoch| u64::from(epoch.splits))
    }

    /// What the run used.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Table writes for each committed split.
    pub fn writes_per_split(&self) -> Option<f64> {
        let writes = self.usage.table_writes()?;
        Some(rounded(writes as f64 / self.splits().max(1) as f64, 4))
    }

    fn json(&self) -> Value {
        let per_sample = |ms: u64| rounded(ms as f64 / self.elements().max(1) as f64, 4);
        let epoch = |(epoch, stalls): (&EpochReport, &Stalls)| {
            let [source, compute, put] = epoch.worker_seconds;
            json!({
                "epoch": epoch.epoch,
                "mode": epoch.mode.name(),
                "reason": epoch.reason,
                "elements": epoch.elements,
                "batches": epoch.batches,
                "seconds": rounded(epoch.seconds, 3),
                "batch_time_ms": rounded(epoch.batch_time_ms(), 3),
                "stall_fraction": rounded(epoch.stall_fraction(), 4),
                "workers_max": epoch.workers_max,
                "stored_bytes": epoch.stored_bytes,
                "worker_seconds": {
                    "source": rounded(source, 3),
                    "compute": rounded(compute, 3),
                    "put": rounded(put, 3),
                },
                "stalls": stalls_json(stalls),
                "worker_cpu_ms": self.usage.local.then_some(epoch.worker_cpu_ms),
                "time_to_first_batch_ms": rounded(epoch.time_to_first_batch_ms, 1),
            })
        };
        let scaling: Vec<Value> =
            self.trained.scaling.iter().map(|decision| json!(decision)).collect();
        json!({
            "job": self.job,
            "seed": self.seed,
            "epochs": self.trained.epochs.iter().zip(&self.stalls).map(epoch).collect::<Vec<_>>(),
            "elements_expected": self.trained.elements_expected,
            "elements_delivered": self.elements(),
            "skipped": self.sum(|epoch| epoch.skipped),
            "skipped_records": self.left_out.as_json(),
            "quarantine": self.left_out.quarantine_json(),
            "files_left_out": self.files.as_json(),
            "duplicates": self.sum(|epoch| epoch.duplicates),
            "lost": self.lost(),
            "splits": self.splits(),
            "writes_per_split": self.writes_per_split(),
            "requests": self.usage.requests_json(),
            "kills": self.kills,
            "scaling": scaling,
            "cpu_ms_per_sample": {
                "worker": per_sample(self.usage.worker_cpu_ms),
                "fetcher": per_sample(self.usage.fetcher_cpu_ms),
                "stand_ins": per_sample(self.usage.stand_ins_cpu_ms),
                "control": per_sample(self.usage.control_cpu_ms),
            },
            "batches_blake3": self.trained.batches_blake3,
            "empty": self.trained.empty,
        })
    }

    /// Prints the table, and the object as the last line of standard output if it is wanted.
    pub fn print(&self, as_json: bool) {
        let table = self.table();
        if let Some(why) = &self.trained.empty {
            eprintln!("gristmill: warning: not one batch was delivered: {why}");
        }
        match as_json {
            true => {
                eprint!("{table}");
                say!("{}", self.json());
            }
            false => say_all!("{table}"),
        }
    }

    fn table(&self) -> String {
        let mut text = String::from(
            "epoch  elements  batches  seconds  batch time  stall  workers  first batch  mode\n",
        );
        for epoch in &self.trained.epochs {
            text += &format!(
                "{:>5}  {:>8}  {:>7}  {:>7.2}  {:>7.1} ms  {:>3.0} %  {:>7}  {:>8.0} ms  {}\n",
                epoch.epoch,
                epoch.elements,
                epoch.batches,
                epoch.seconds,
                epoch.batch_time_ms(),
                epoch.stall_fraction() * 100.0,
                epoch.workers_max,
                epoch.time_to_first_batch_ms,
                epoch.mode.name()
            );
        }
        text += &self.modes();
        for (epoch, stalls) in self.trained.epochs.iter().zip(&self.stalls) {
            if stalls.percent >= WORTH_NAMING_PERCENT {
                text += &format!("epoch {} {stalls}; {}\n", epoch.epoch, stalls.advice);
            }
        }
        let kills = match self.kills {
            0 => String::new(),
            kills => format!(", {kills} processes killed"),
        };
        text += &self.left_out.as_text(SHOWN_SKIPPED);
        text += &format!(
            "delivered {} of {} elements: {} skipped, {} lost, {} twice{kills}\nbatches {}\n",
            self.sum(|epoch| epoch.distinct),
            self.trained.elements_expected,
            self.sum(|epoch| epoch.skipped),
            self.lost(),
            self.sum(|epoch| epoch.duplicates),
            self.trained.batches_blake3
        );
        text
    }

    /// Why each mode, where there was a choice.
    fn modes(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for epoch in &self.trained.epochs {
            let Some(reason) = epoch.reason.as_ref().filter(|_| last != Some(epoch.mode)) else {
                continue;
            };
            text += &format!("epoch {} {}: {reason}\n", epoch.epoch, epoch.mode.name());
            last = Some(epoch.mode);
        }
        text
    }

    /// A run that lost or doubled anything has failed, whatever else it did.
    pub fn verdict(&self) -> Result<(), Failure> {
        match (self.lost(), self.sum(|epoch| epoch.duplicates)) {
            (0, 0) => Ok(()),
            (lost, twice) => {
                Err(Failure::failed(format!("{lost} records lost, {twice} delivered twice")))
            }
        }
    }
}

/// The parts of a wait in seconds, and what would help.
fn stalls_json(stalls: &Stalls) -> Value {
    let part =
        |part: &gristmill_report::Part| (part.cause.to_string(), rounded(part.seconds, 3).into());
    json!({
        "seconds": rounded(stalls.total_s, 3),
        "parts": stalls.parts.iter().map(part).collect::<serde_json::Map<String, Value>>(),
        "advice": stalls.advice.to_string(),
        "more_workers_help": matches!(
            stalls.advice,
            Advice::MoreWorkers { .. } | Advice::AtMaximum { .. }
        ),
    })
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}
