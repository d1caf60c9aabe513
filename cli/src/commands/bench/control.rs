//! `gristmill bench control`: how many splits a second the coordinator and the trainer's process take in, beside what
//! workers on so many cores would finish.

use super::{executor_alone, imagenet_split_batches, train_options};
use crate::{output::say, training};
use gristmill_client::{DatasetLocation, ProgramFailure, WorkerCount, report::RunReport};
use gristmill_pipeline::Pipeline;
use gristmill_synthetic::DatasetSpec;
use serde_json::{Value, json};
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

/// A number of workers, by the second.
struct ControlRow {
    workers: u32,
    splits: f64,
    claims: f64,
    commits: f64,
    polls: f64,
    table_writes: f64,
    /// Splits that as many workers finish, each on a core of its own.
    demand: f64,
    /// Splits for which this machine's cores suffice, for the control process and for the trainer's.
    control_most: f64,
    trainer_most: f64,
}

impl ControlRow {
    fn from_report(report: &RunReport, workers: u32, demand: f64, cores: f64) -> Self {
        let seconds = report.epochs().iter().map(|epoch| epoch.seconds).sum::<f64>().max(1e-6);
        let (usage, splits) = (report.usage(), report.splits().max(1) as f64);
        let calls = |name| usage.requests.get(name).copied().unwrap_or(0) as f64 / seconds;
        let most = |cpu_ms: u64| cores * 1e3 * splits / cpu_ms.max(1) as f64;
        Self {
            workers,
            splits: splits / seconds,
            claims: calls("coordinator.claim"),
            commits: calls("coordinator.flush"),
            polls: calls("coordinator.poll"),
            table_writes: usage.table_writes().unwrap_or(0) as f64 / seconds,
            demand,
            control_most: most(usage.control_cpu_ms),
            trainer_most: most(usage.fetcher_cpu_ms),
        }
    }

    /// The limit that growth would meet first, and its splits a second.
    fn first_limit(&self) -> (&'static str, f64) {
        if self.control_most < self.trainer_most {
            ("CPU of the service", self.control_most)
        } else {
            ("CPU of the trainer's process", self.trainer_most)
        }
    }

    fn print(&self) {
        let times = self.splits / self.demand;
        let verdict = if times >= TIMES_MIN { "holds" } else { "MISSED" };
        let (limit, most) = self.first_limit();
        say!(
            "{:>7}{:>10.0}{:>10.0}{:>10.0}{:>9.0}{:>14.0}{:>10.0}{:>8.1} {verdict:<7} {limit}, at {most:.0} splits/s",
            self.workers,
            self.splits,
            self.claims,
            self.commits,
            self.polls,
            self.table_writes,
            self.demand,
            times,
        );
    }

    fn json(&self) -> Value {
        json!({
            "workers": self.workers,
            "splits_per_s": self.splits,
            "claims_per_s": self.claims,
            "commits_per_s": self.commits,
            "polls_per_s": self.polls,
            "table_writes_per_s": self.table_writes,
            "demand_per_s": self.demand,
            "times_demand": self.splits / self.demand,
            "times_demand_min": TIMES_MIN,
            "first_limit": self.first_limit().0,
            "first_limit_splits_per_s": self.first_limit().1,
        })
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
        rows.push(row.json());
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
