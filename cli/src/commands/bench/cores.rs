//! `gristmill bench cores`: images per second of one machine by its number of workers, beside linear growth.

use super::{imagenet_split_batches, pipelines::median, train_options};
use crate::{output::say, training};
use gristmill_client::{DatasetLocation, ProgramFailure, WorkerCount, report::RunReport};
use gristmill_pipeline::Pipeline;
use gristmill_stream::EpochReport;
use gristmill_synthetic::DatasetSpec;
use serde_json::{Value, json};
use std::{path::Path, thread::available_parallelism};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gristmill bench cores
  gristmill bench cores --workers 1,2,4 --kinds local --rounds 1 --json

The machine should be idle: all its cores are used, and what others use is missing.")]
pub struct BenchCoresArgs {
    /// Numbers of workers [default: 1, 2, 4, 8, 15, as far as there are cores]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: Vec<u32>,
    /// Workers as functions, or as threads of the trainer's process, or both
    #[arg(long, value_delimiter = ',', value_name = "KINDS", default_value = "functions,local")]
    pub kinds: Vec<WorkerKind>,
    /// Images to generate
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub images: u64,
    /// About how long each of four epochs takes
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Rounds, in which all numbers run in turn; medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WorkerKind {
    /// Processes of the service, as functions are on AWS
    Functions,
    /// Threads of the trainer's process
    Local,
}

impl WorkerKind {
    fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Local => "local",
        }
    }
}

const PIPELINE: &str = "
source:
  tfrecord: .
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - shuffle
  - repeat: { count: TIMES }
  - decode
  - random_resized_crop: { size: 224 }
  - flip: { p: 0.5 }
  - batch: { size: 64 }
";
/// Images a second of one worker, about, for the length of epochs.
const ONE_WORKER: f64 = 700.0;
/// The first epoch overlaps the start, and is looked at by itself.
const EPOCHS: u32 = 4;
const NUMBERS: [u32; 5] = [1, 2, 4, 8, 15];
/// Least share of the later epochs' rate that the first one has after its first second.
const FIRST_EPOCH_MIN: f64 = 0.8;
/// Longest time until the first batch, from the call, on an index that exists, beside the computing of its split.
const FIRST_BATCH_MS_MAX: f64 = 300.0;

/// Least share of linear growth that so many workers are to have, each on a core of its own.
fn least_share(workers: u32) -> f64 {
    match workers {
        0 | 1 => 1.0,
        2 => 0.925,
        3..=8 => 0.85,
        _ => 0.8,
    }
}

/// One run of one number of workers.
#[derive(Debug, Clone, Copy)]
struct CoreFigures {
    /// Images a second of later epochs.
    later: f64,
    /// The same of the first, from the call.
    first: f64,
    /// The same of the first after its first second, if it was longer.
    steady: Option<f64>,
    first_batch_ms: f64,
}

impl CoreFigures {
    fn from_report(report: &RunReport) -> Result<Self, ProgramFailure> {
        let [first, later @ ..] = report.epochs() else {
            return Err(ProgramFailure::failed("the run reported no epoch"));
        };
        let rate = |epochs: &[EpochReport]| {
            let elements: u64 = epochs.iter().map(|epoch| epoch.elements).sum();
            elements as f64 / epochs.iter().map(|epoch| epoch.seconds).sum::<f64>().max(1e-6)
        };
        Ok(Self {
            later: rate(later),
            first: rate(std::slice::from_ref(first)),
            steady: first.steady.map(|steady| steady.elements as f64 / steady.seconds),
            first_batch_ms: first.time_to_first_batch_ms,
        })
    }
}

/// All runs of one number of workers of one kind.
struct CoreRow {
    kind: WorkerKind,
    workers: u32,
    runs: Vec<CoreFigures>,
}

impl CoreRow {
    fn median(&self, of: impl Fn(&CoreFigures) -> f64) -> f64 {
        median(self.runs.iter().map(of).collect())
    }

    /// The first epoch after its first second, as a share of the later ones.
    fn steady_share(&self) -> Option<f64> {
        let shares: Vec<_> =
            self.runs.iter().filter_map(|run| Some(run.steady? / run.later)).collect();
        (!shares.is_empty()).then(|| median(shares))
    }
}

pub async fn run(args: BenchCoresArgs) -> Result<(), ProgramFailure> {
    let cores = available_parallelism().map_err(ProgramFailure::failed)?.get();
    let numbers = match args.workers.as_slice() {
        [] => NUMBERS.into_iter().filter(|number| *number as usize <= cores).collect(),
        given => given.to_vec(),
    };
    let dir = training::make_dataset(DatasetSpec::images(args.images, 0)).await?;
    let state = tempfile::tempdir().map_err(ProgramFailure::failed)?;
    gristmill_client::complain!("indexing {} images", args.images);
    train(state.path(), &dir, WorkerKind::Functions, 1, 1, 1).await?;
    let mut rows: Vec<_> = args
        .kinds
        .iter()
        .flat_map(|kind| numbers.iter().map(|workers| (*kind, *workers)))
        .map(|(kind, workers)| CoreRow { kind, workers, runs: Vec::new() })
        .collect();
    for round in 0..args.rounds {
        for row in &mut rows {
            let images = args.seconds * ONE_WORKER * f64::from(row.workers);
            let times = (images / args.images as f64).ceil().max(1.0) as u64;
            let report = train(state.path(), &dir, row.kind, row.workers, times, EPOCHS).await?;
            let found = CoreFigures::from_report(&report)?;
            gristmill_client::complain!(
                "round {round}: {} {}: {:.0} images/s",
                row.workers,
                row.kind.name(),
                found.later
            );
            row.runs.push(found);
        }
    }
    // How often images repeat does not change how many a split has.
    let pipeline = parse_pipeline(1)?;
    let split_images = imagenet_split_batches(&pipeline) * u64::from(pipeline.batch_size());
    print(&rows, cores, split_images);
    if args.json {
        say!("{}", json!({ "cores": cores, "rows": as_json(&rows, split_images) }));
    }
    Ok(())
}

/// Runs the pipeline over the images, each `times` in an epoch.
async fn train(
    state: &Path,
    dir: &Path,
    kind: WorkerKind,
    workers: u32,
    times: u64,
    epochs: u32,
) -> Result<RunReport, ProgramFailure> {
    let pipeline = parse_pipeline(times)?;
    let mut args = train_options(epochs, workers);
    args.service.state_dir = Some(state.to_owned());
    args.job.settings.split_batches = u32::try_from(imagenet_split_batches(&pipeline)).ok();
    if kind == WorkerKind::Local {
        args.job.workers = WorkerCount::Fixed(0);
        args.job.settings.local_workers = workers;
    }
    let source = DatasetLocation::local(dir.to_owned(), "train-*");
    training::measured(&args, "bench", &pipeline.into(), source).await
}

/// The pipeline that repeats each image so often in an epoch.
fn parse_pipeline(times: u64) -> Result<Pipeline, ProgramFailure> {
    let text = PIPELINE.replace("TIMES", &times.to_string());
    gristmill_operators::parse(&text).map_err(ProgramFailure::failed)
}

/// The share of linear growth from the fewest workers of the same kind, by round.
fn share(rows: &[CoreRow], row: &CoreRow) -> f64 {
    let fewest = fewest(rows, row);
    let times = f64::from(row.workers) / f64::from(fewest.workers);
    median(
        row.runs.iter().zip(&fewest.runs).map(|(run, one)| run.later / one.later / times).collect(),
    )
}

/// Whether a bar holds; one for more workers than cores says nothing.
fn verdict(holds: bool, counts: bool) -> &'static str {
    match (holds, counts) {
        (_, false) => "",
        (true, true) => " holds",
        (false, true) => " MISSED",
    }
}

fn print(rows: &[CoreRow], cores: usize, split_images: u64) {
    say!("{cores} cores; medians of {} rounds", rows.first().map_or(0, |row| row.runs.len()));
    say!(
        "{:<11}{:>8}{:>10}{:>10}{:>16}{:>13}{:>22}{:>14}{:>18}",
        "kind",
        "workers",
        "images/s",
        "x fewest",
        "of linear",
        "first epoch",
        "after its 1st second",
        "first batch",
        "less its split"
    );
    for row in rows {
        let (counts, share) = (row.workers as usize <= cores, share(rows, row));
        let least = least_share(row.workers);
        let of_linear = format!("{share:.3}{}", verdict(share >= least, counts && row.workers > 1));
        let steady = row.steady_share().map_or("-".to_owned(), |share| {
            format!("{share:.3}{}", verdict(share >= FIRST_EPOCH_MIN, counts))
        });
        let wait = row.median(|run| run.first_batch_ms);
        // A batch is there once its split is, which one core computes.
        let start = wait - split_ms(rows, row, split_images);
        let start = format!("{start:.0} ms{}", verdict(start <= FIRST_BATCH_MS_MAX, counts));
        let wait = format!("{wait:.0} ms");
        say!(
            "{:<11}{:>8}{:>10.0}{:>10.2}{of_linear:>16}{:>13.0}{steady:>22}{wait:>14}{start:>18}",
            row.kind.name(),
            row.workers,
            row.median(|run| run.later),
            share * f64::from(row.workers) / f64::from(fewest(rows, row).workers),
            row.median(|run| run.first),
        );
    }
}

/// How long a worker computes a split, at the rate of the fewest workers.
fn split_ms(rows: &[CoreRow], row: &CoreRow, split_images: u64) -> f64 {
    let fewest = fewest(rows, row);
    let rate = fewest.median(|run| run.later) / f64::from(fewest.workers);
    1e3 * split_images as f64 / rate
}

/// The row of the fewest workers of the same kind.
fn fewest<'r>(rows: &'r [CoreRow], row: &'r CoreRow) -> &'r CoreRow {
    let alike = rows.iter().filter(|other| other.kind == row.kind);
    alike.min_by_key(|other| other.workers).unwrap_or(row)
}

fn as_json(rows: &[CoreRow], split_images: u64) -> Vec<Value> {
    let of = |row: &CoreRow| {
        json!({
            "kind": row.kind.name(),
            "workers": row.workers,
            "images_per_s": row.median(|run| run.later),
            "share_of_linear": share(rows, row),
            "share_of_linear_min": least_share(row.workers),
            "first_epoch_images_per_s": row.median(|run| run.first),
            "first_epoch_share_after_1_s": row.steady_share(),
            "first_batch_ms": row.median(|run| run.first_batch_ms),
            "split_ms": split_ms(rows, row, split_images),
        })
    };
    rows.iter().map(of).collect()
}
