//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use gristmill_model::{Compression, ErrorPolicy, JobName, Sharding, SkipLimit, Visitation};
use gristmill_policy::cost::{FunctionShape, HOUR_S, Prices};
use std::{path::PathBuf, time::Duration};

/// Serverless input-data preprocessing for machine-learning training.
///
/// Functions decode, crop, augment and batch; the trainer stops waiting. Everything runs on this
/// machine unless told otherwise: start with `gristmill demo`.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train (synthetically) on generated JPEGs through the whole system
    Demo(DemoArgs),
    /// Train (synthetically) with your own pipeline and data
    Run(RunArgs),
    /// Start the local service and keep it running until Ctrl-C
    Up(UpArgs),
    /// Say where a job of a running service stands
    Status(StatusArgs),
    /// Stop a job: its workers leave and its objects are removed
    Stop(StopArgs),
    /// Delete what there is of a job that has ended, so that its name is free
    Forget(ForgetArgs),
    /// Say what is cached, why something is not found, and remove it
    Cache(CacheArgs),
    /// Check the place one is about to train on, and say what to put right
    Doctor(DoctorArgs),
    /// Show what becomes of a pipeline before it runs, and why
    Explain(ExplainArgs),
    /// Say how many workers a job needs, how long it takes and what it costs, before running it
    Plan(PlanArgs),
    /// Run the policies in modelled worlds, and see whether they choose right
    #[command(
        after_help = "Exit code: 0 all bars hold, 1 one does not, 2 bad input. docs/scenarios.md says how to write a scenario.\n\nExamples:\n  gristmill simulate --all\n  gristmill simulate my.toml --sweep --svg plots"
    )]
    Simulate(gristmill_scaling::Args),
    /// Measure gristmill on this machine
    Bench(BenchArgs),
    /// Run one function of a local service (started by the service itself)
    #[command(hide = true)]
    Function { name: String },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gristmill demo\n  gristmill demo --epochs 1 --images 500 --workers 4 --json\n  gristmill demo --sink /tmp/batches --chaos kill-workers"
)]
pub struct DemoArgs {
    /// Images to generate, unless --data names a dataset
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub images: u64,
    /// Pipeline file to run instead of the ResNet pipeline
    #[arg(long)]
    pub pipeline: Option<PathBuf>,
    #[command(flatten)]
    pub train: TrainArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  gristmill run examples/resnet50.yaml --data 'shards/train-*' --epochs 2"
)]
pub struct RunArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    #[command(flatten)]
    pub train: TrainArgs,
}

#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// Passes over the dataset
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub epochs: u32,
    /// Time the synthetic trainer takes for a batch, for example 50ms
    #[arg(long, default_value = "50ms", value_parser = parse_duration)]
    pub step_time: Duration,
    /// Records of a batch [default: the pipeline's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch_size: Option<u32>,
    /// Workers to hold while there is work; `auto` has as many as training needs
    #[arg(long, default_value = "2", value_parser = parse_workers, value_name = "N|auto")]
    pub workers: Workers,
    /// Most workers of `--workers auto` [default: 16 on this machine, 1000 on AWS]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: Option<u32>,
    /// Most dollars an hour that `--workers auto` may spend on workers
    #[arg(long, value_name = "USD", value_parser = parse_budget)]
    pub budget_usd_per_hour: Option<f64>,
    /// Workers inside the trainer's process, without an object in between
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub local_workers: u32,
    /// Dataset, if not the one that the pipeline names: a directory, file or glob ({000..146} too), relative to the
    /// current directory (a pipeline's own paths are relative to its file), or s3://bucket/prefix
    #[arg(long)]
    pub data: Option<String>,
    /// Decides the generated data, order and augmentation
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write every delivered batch here, as e{epoch}-b{g:06}.safetensors
    #[arg(long, value_name = "DIR")]
    pub sink: Option<PathBuf>,
    /// Where functions run
    #[arg(long, value_enum, default_value_t = Backend::Local)]
    pub backend: Backend,
    /// Use a running service: the address `gristmill up` prints
    #[arg(long, conflicts_with = "state_dir")]
    pub endpoint: Option<String>,
    /// Keep the service's state here, so that a job survives restarts [default: none is kept]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Job to start or join [default: a new name]
    #[arg(long)]
    pub job: Option<JobName>,
    /// What to do with a record that cannot be decoded: fail, skip or quarantine
    #[arg(long, default_value_t, value_name = "POLICY")]
    pub on_error: ErrorPolicy,
    /// Most records of an epoch that --on-error skip and quarantine leave out before the job fails after
    /// all: a number, or a share, which allows one at least
    #[arg(long, default_value_t, value_name = "N|P%")]
    pub max_skipped: SkipLimit,
    /// What a trainer that dies and comes back is given: exactly-once, at-most-once or zero-once-or-more
    #[arg(long, default_value_t, value_name = "MODE")]
    pub visitation: Visitation,
    /// What an epoch is: the dataset (dynamic), or the dataset once for each worker (off)
    #[arg(long, default_value_t, value_name = "MODE")]
    pub sharding: Sharding,
    /// How workers keep what they store: none, zstd or auto, which compresses where their network is what they wait for
    /// [default: the pipeline's `compress`, or auto]
    #[arg(long, value_name = "HOW")]
    pub compress: Option<Compression>,
    /// Kill processes at random while training
    #[arg(long, value_enum)]
    pub chaos: Option<Chaos>,
    /// Mean time between two kills
    #[arg(long, default_value = "300ms", value_parser = parse_duration)]
    pub chaos_interval: Duration,
    /// Batches of a split [default: by object and dataset size]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub split_batches: Option<u32>,
    /// Memory for objects fetched ahead, in MiB; room for two is always taken
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub prefetch_mib: u64,
    /// How long service and object store may fail before the run gives up, such as 90s or 10m
    #[arg(long, default_value = "120s", value_parser = gristmill_client::parse_patience)]
    pub patience: Duration,
    /// Write a page that shows the run: batch times, workers, modes, stalls and cost (HTML)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
    /// Take batches and do nothing with them, so that only gristmill is measured
    #[arg(skip)]
    pub drain: bool,
}

/// How many workers a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    Fixed(u32),
    /// As many as the policy decides from what the trainer reports.
    Auto,
}

/// Most workers of a job on this machine unless told otherwise: each is a process.
const LOCAL_MAX_WORKERS: u32 = 16;
/// The same on AWS: what an account may run at a time unless it asked for more.
const AWS_MAX_WORKERS: u32 = 1000;

impl TrainArgs {
    /// Workers, or the most of them.
    pub fn most_workers(&self) -> u32 {
        match self.workers {
            Workers::Fixed(workers) => workers,
            Workers::Auto => self.max_workers.unwrap_or(match self.backend {
                Backend::Local => LOCAL_MAX_WORKERS,
                Backend::Aws => AWS_MAX_WORKERS,
            }),
        }
    }

    /// Workers that the budget pays for, at the price of the stack's worker.
    pub fn budget_workers(&self) -> Option<u32> {
        let budget = self.budget_usd_per_hour?;
        let usd_per_second = FunctionShape::default().usd_per_second(&Prices::default()).0;
        Some((budget / (usd_per_second * HOUR_S)) as u32)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Functions, table and objects on this machine
    Local,
    /// A deployed stack, found through GRISTMILL_* and AWS_* variables
    Aws,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Chaos {
    KillWorkers,
    KillCoordinator,
}

/// Names a service that runs already.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// Where functions run
    #[arg(long, value_enum, default_value_t = Backend::Local)]
    pub backend: Backend,
    /// The running service: the address `gristmill up` prints
    #[arg(long, conflicts_with = "state_dir")]
    pub endpoint: Option<String>,
    /// The running service, by its state directory
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --endpoint, --state-dir or --backend this is the cache that `gristmill demo` and `run` keep on this machine.\n\nExamples:\n  gristmill cache ls\n  gristmill cache explain examples/autocache.yaml --data 'shards/train-*'\n  gristmill cache rm 5a3c0f"
)]
pub struct CacheArgs {
    #[command(subcommand)]
    pub command: CacheCommand,
}

#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List what is cached, the latest first
    Ls(CacheListArgs),
    /// Say whether a pipeline's `autocache` points are cached, and if not, what differs
    Explain(CacheExplainArgs),
    /// Remove what is cached, unless a job reads it
    Rm(CacheRemoveArgs),
}

#[derive(Debug, Args)]
pub struct CacheListArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CacheExplainArgs {
    /// The pipeline file
    pub pipeline: PathBuf,
    /// Dataset, if not the one that the pipeline names
    #[arg(long)]
    pub data: Option<String>,
    /// The seed of the job: random operators draw by it
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["prefix", "all"])))]
pub struct CacheRemoveArgs {
    /// First digits of the prefix, as `cache ls` shows it
    pub prefix: Option<String>,
    /// Everything that no job reads
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Names a job of a service that runs already.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// The job's name
    pub job: JobName,
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gristmill status j1 --state-dir state\n  gristmill status j1 --skipped --backend aws"
)]
pub struct StatusArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// List the records that were left out, and why
    #[arg(long)]
    pub skipped: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gristmill stop j1 --state-dir state\n  gristmill stop j1 --backend aws"
)]
pub struct StopArgs {
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "What it delivered is with the trainer; its chunks, its reports of skipped records and what was quarantined go. What it cached for others stays. A job that runs is refused: stop it first.\n\nExamples:\n  gristmill forget j1 --state-dir state\n  gristmill forget j1 --backend aws --json"
)]
pub struct ForgetArgs {
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 nothing failed, 1 something did, 2 bad usage.\n\nExamples:\n  gristmill doctor --backend aws --workers 32\n  gristmill doctor --state-dir state"
)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Workers that the training is going to ask for
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub workers: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gristmill up --state-dir state\n  gristmill up --aws-endpoint-url http://127.0.0.1:4566      # LocalStack, MiniStack\n  gristmill up --aws-endpoint-url-dynamodb http://127.0.0.1:8000      # DynamoDB Local; objects stay here"
)]
pub struct UpArgs {
    /// Keep table and objects in S3 and DynamoDB as others serve them at this address, and run only functions
    /// here. Keys are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, if they are set
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub aws_endpoint_url: Option<String>,
    /// The same of S3 alone
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub aws_endpoint_url_s3: Option<String>,
    /// The same of DynamoDB alone
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub aws_endpoint_url_dynamodb: Option<String>,
    /// Keep state here, so that jobs go on after a restart [default: nothing is kept]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Port of the endpoint [default: the state directory's, or any]
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Workers that may run at a time
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: u32,
    /// Imitate an account whose functions together run so many invocations at a time: calls beyond it are
    /// throttled (429), and no more workers are started than leave room for coordinator and scaler
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=100_000))]
    pub account_concurrency: Option<u32>,
    /// Part of it that is reserved for coordinator and scaler; 0: nothing, as on new accounts
    #[arg(long, value_name = "N", default_value_t = 0, requires = "account_concurrency",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub reserved_concurrency: u32,
    /// What a worker takes its memory to be, in MB; 1769 is one processor, and one split computed at a time
    #[arg(long, default_value_t = 1769, value_name = "MB",
          value_parser = clap::value_parser!(u32).range(512..=10_240))]
    pub worker_memory: u32,
    /// Print the endpoints as one JSON line when ready
    #[arg(long)]
    pub json: bool,
    /// End when standard input closes (used by demo and run)
    #[arg(long, hide = true)]
    pub attended: bool,
    /// Keep the table in memory even with a state directory (used by demo and run)
    #[arg(long, hide = true)]
    pub table_in_memory: bool,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// CPU of the whole system beside the executor alone; table writes per split
    E2e(BenchE2eArgs),
    /// CPU a sample of whole pipelines in the executor alone, beside the floor of their kernels
    Pipelines(BenchPipelinesArgs),
    /// Bytes of batches that the fetcher takes for each second of its own CPU
    Ingest(BenchIngestArgs),
    /// Bytes, CPU and modelled dollars of what workers store: as it is, and compressed
    Compression(BenchCompressionArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gristmill bench pipelines\n  gristmill bench pipelines --only p1 --seconds 10 --json"
)]
pub struct BenchPipelinesArgs {
    /// Run only these: p1 (ResNet), p2 (SimCLR), p4 (token sequences)
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Where the generated data is, or is put: images/ and tokens/ [default: the cache]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Images to generate
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub images: u64,
    /// Sequences to generate
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(64..=10_000_000))]
    pub sequences: u64,
    /// Time for each measurement
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Rounds, in which everything takes turns; medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gristmill bench compression --rounds 3")]
pub struct BenchCompressionArgs {
    /// Where the generated data is, or is put: images/ and tokens/ [default: the cache]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Images to generate
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub images: u64,
    /// Sequences to generate
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(64..=10_000_000))]
    pub sequences: u64,
    /// Time for each measurement
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds, in which everything takes turns; medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchIngestArgs {
    /// Images to generate
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub images: u64,
    /// Times they are read in each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub epochs: u32,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchE2eArgs {
    /// Images to generate
    #[arg(long, default_value_t = 2000)]
    pub images: u64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Splits of the study of table writes
    #[arg(long, default_value_t = 2000)]
    pub splits: u64,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gristmill explain examples/resnet50.yaml\n  gristmill explain examples/resnet50.yaml --data 'shards/train-*' --json\n  gristmill explain zipped.yaml --sample 100"
)]
pub struct ExplainArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    /// Look at elements of this dataset: a directory, file or glob, or s3://bucket/prefix
    #[arg(long)]
    pub data: Option<String>,
    /// Most elements to look at, 300 unless told; without --data, of the dataset that the pipeline names
    #[arg(long, value_name = "ELEMENTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Runs a few hundred records on one core here, and works out the rest from prices.\n\nExamples:\n  gristmill plan examples/resnet50.yaml --data 'shards/train-*' --step-time 120ms --accelerator-usd-per-hour 4.96\n  gristmill plan p.yaml --data one-shard.tfrecord --records 1281167 --step-time 120ms --json"
)]
pub struct PlanArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    /// Time the trainer takes for a batch when it waits for nothing, for example 120ms
    #[arg(long, value_parser = parse_duration)]
    pub step_time: Duration,
    /// Price of the trainer's host, which waits if data does not come
    #[arg(long, value_name = "USD", value_parser = parse_amount)]
    pub accelerator_usd_per_hour: Option<f64>,
    /// Dataset to profile: a directory, file or glob, or s3://bucket/prefix [default: the pipeline's]
    #[arg(long)]
    pub data: Option<String>,
    /// Records to run
    #[arg(long, default_value_t = crate::sample::ELEMENTS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: u32,
    /// Records of an epoch [default: as many as the files' bytes tell]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// Records of a batch [default: the pipeline's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch_size: Option<u32>,
    /// Passes over the dataset
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub epochs: u32,
    /// Memory of a worker function; 1769 is one processor
    #[arg(long, default_value_t = 1769, value_name = "MB", value_parser = clap::value_parser!(u32).range(128..=10_240))]
    pub memory_mb: u32,
    /// Processor time of a function for one second of this machine's
    #[arg(long, default_value_t = 1.0, value_name = "RATIO", value_parser = parse_ratio)]
    pub function_slowdown: f64,
    /// Processors of the trainer's host that training leaves idle
    #[arg(long, default_value_t = 0.0, value_name = "CORES", value_parser = parse_amount)]
    pub spare_cores: f64,
    /// Most workers at a time
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: u32,
    /// Most dollars an hour for workers
    #[arg(long, value_name = "USD", value_parser = parse_budget)]
    pub budget_usd_per_hour: Option<f64>,
    /// Workers of the prediction for this machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub local_workers: u32,
    /// Prices that differ from those of us-east-1 (TOML; docs/cost.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn parse_workers(text: &str) -> Result<Workers, String> {
    if text == "auto" {
        return Ok(Workers::Auto);
    }
    let workers = text.parse().ok().filter(|workers| *workers <= 1_000).map(Workers::Fixed);
    workers.ok_or_else(|| "give a whole number from 0 to 1000, or auto".to_owned())
}

fn parse_budget(text: &str) -> Result<f64, String> {
    let budget = text.parse().ok().filter(|budget: &f64| budget.is_finite() && *budget > 0.0);
    budget.ok_or_else(|| "give dollars, such as 0.50".to_owned())
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "give a number above 0, such as 1.5".to_owned())
}

fn parse_amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "give a number of 0 or more".to_owned())
}

/// An address of services, without a path.
fn parse_endpoint(text: &str) -> Result<String, String> {
    let endpoint = text.trim_end_matches('/');
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    match rest {
        Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']) => {
            Ok(endpoint.to_owned())
        }
        _ => Err("an endpoint looks like http://127.0.0.1:4566".to_owned()),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed =
        humantime::parse_duration(text).map_err(|error| format!("{error}; say 50ms or 2s"));
    parsed.and_then(|duration| match duration <= Duration::from_secs(86_400) {
        true => Ok(duration),
        false => Err("longer than a day".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_bounded() {
        assert_eq!(parse_duration("50ms"), Ok(Duration::from_millis(50)));
        assert!(parse_duration("50").is_err());
        assert!(parse_duration("9999d").is_err());
    }
}
