//! `gristmill bench control`: how many splits a second the coordinator and the trainer's process take in, beside what
//! workers on so many cores would finish.

use super::{executor_alone, imagenet_split_batches, train_options};
use crate::{output::say, training};
use gristmill_client::{DatasetLocation, ProgramFailure, WorkerCount, report::RunReport};
use gristmill_pipeline::Pipeline;
use gristmill_synthetic::DatasetSpec;
use serde::Serialize;
use serde_json::json;
use std::thread::available_parallelism;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gristmill bench control
  gristmill bench control --workers 200 --splits 50000 --json

Workers are threads that take splits of one batch of eight numbers, which is next to no work: what limits them is
claiming, committing and delivering.")]
pub struct BenchControlArgs {
    /// Numbers of local workers
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", default_value = "10,50,200", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: Vec<u32>,
    /// Splits of each run
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pub splits: u64,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

const NUMBERS: &str = "
source:
  tfrecord: .
  features:
    value: { key: value, dtype: i64 }
ops:
  - shuffle
  - batch: { size: 8 }
";
const BATCH: u64 = 8;
/// How many times the demand of its workers a number is to manage.
const TIMES_MIN: f64 = 3.0;

/// A number of workers, and what they do.
#[derive(Serialize)]
struct ControlRow {
    workers: u32,
    splits_per_s: f64,
    claims_per_s: f64,
    commits_per_s: f64,
    polls_per_s: f64,
    table_writes_per_s: f64,
    /// Splits that as many workers finish, each on a core of its own.
    demand_per_s: f64,
    times_demand: f64,
    times_demand_min: f64,
    /// The limit that growth would meet first, and its splits a second.
    first_limit: &'static str,
    first_limit_splits_per_s: f64,
}

impl ControlRow {
    fn from_report(report: &RunReport, workers: u32, demand: f64, cores: f64) -> Self {
        let seconds = report.epochs().iter().map(|epoch| epoch.seconds).sum::<f64>().max(1e-6);
        let (usage, splits) = (report.usage(), report.splits().max(1) as f64);
        let calls = |name| usage.requests.get(name).copied().unwrap_or(0) as f64 / seconds;
        // Splits for which this machine's cores suffice.
        let most = |cpu_ms: u64| cores * 1e3 * splits / cpu_ms.max(1) as f64;
        let (control, trainer) = (most(usage.control_cpu_ms), most(usage.fetcher_cpu_ms));
        let (first_limit, first_limit_splits_per_s) = if control < trainer {
            ("CPU of the service", control)
        } else {
            ("CPU of the trainer's process", trainer)
        };
        Self {
            workers,
            splits_per_s: splits / seconds,
            claims_per_s: calls("coordinator.claim"),
            commits_per_s: calls("coordinator.flush"),
            polls_per_s: calls("coordinator.poll"),
            table_writes_per_s: usage.table_writes().unwrap_or(0) as f64 / seconds,
            demand_per_s: demand,
            times_demand: splits / seconds / demand,
            times_demand_min: TIMES_MIN,
            first_limit,
            first_limit_splits_per_s,
        }
    }

    fn print(&self) {
        let Self { workers, splits_per_s, claims_per_s, commits_per_s, polls_per_s, .. } = self;
        let Self { table_writes_per_s, demand_per_s, times_demand, first_limit, .. } = self;
        let verdict = if *times_demand >= TIMES_MIN { "holds" } else { "MISSED" };
        say!(
            "{workers:>7}{splits_per_s:>10.0}{claims_per_s:>10.0}{commits_per_s:>10.0}{polls_per_s:>9.0}\
             {table_writes_per_s:>14.0}{demand_per_s:>10.0}{times_demand:>8.1} {verdict:<7} {first_limit}, \
             at {:.0} splits/s",
            self.first_limit_splits_per_s
        );
    }
}

pub async fn run(args: BenchControlArgs) -> Result<(), ProgramFailure> {
    let cores = available_parallelism().map_err(ProgramFailure::failed)?.get() as f64;
    let split_seconds = image_split_seconds().await?;
    gristmill_client::complain!("a split of images takes a worker {split_seconds:.2} s");
    let dir = training::make_dataset(DatasetSpec::ints(args.splits * BATCH, 0)).await?;
    let pipeline = gristmill_operators::parse(NUMBERS).map_err(ProgramFailure::failed)?;
    say!(
        "{:>7}{:>10}{:>10}{:>10}{:>9}{:>14}{:>10}{:>8} {:<7} first limit of this machine",
        "workers",
        "splits/s",
        "claims/s",
        "commits/s",
        "polls/s",
        "table writes/s",
        "demand/s",
        "times",
        ""
    );
    let mut rows = Vec::new();
    for workers in args.workers {
        let mut options = train_options(1, 0);
        options.job.workers = WorkerCount::Fixed(0);
        options.job.settings.local_workers = workers;
        options.job.settings.split_batches = Some(1);
        let source = DatasetLocation::local(dir.clone(), "train-*");
        let report =
            training::measured(&options, "bench", &pipeline.clone().into(), source).await?;
        let row =
            ControlRow::from_report(&report, workers, f64::from(workers) / split_seconds, cores);
        row.print();
        rows.push(row);
    }
    if args.json {
        say!("{}", json!({ "cores": cores, "rows": rows }));
    }
    Ok(())
}

/// CPU seconds of a split of ImageNet, by its pipeline's rate over generated images.
async fn image_split_seconds() -> Result<f64, ProgramFailure> {
    let dir = training::make_dataset(DatasetSpec::images(2_000, 0)).await?;
    let pipeline: Pipeline =
        gristmill_operators::parse(training::RESNET).map_err(ProgramFailure::failed)?;
    let image_ms = executor_alone(&pipeline, &dir, 1)?;
    let images = imagenet_split_batches(&pipeline) * u64::from(pipeline.batch_size());
    Ok(image_ms / 1e3 * images as f64)
}
