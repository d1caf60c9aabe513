//! `gristmill bench`: measurements of this machine, each beside a reference.

mod compression;
mod control;
mod cores;
mod ingest;
mod pipelines;
mod readers;

use crate::{
    output::say,
    thread_cpu,
    training::{self, TrainOptions},
};
use bytes::Bytes;
use gristmill_client::{DatasetLocation, JobOptions, ProgramFailure, WorkerCount};
use gristmill_executor::CompiledPipeline;
use gristmill_pipeline::Pipeline;
use gristmill_synthetic::DatasetSpec;
use pipelines::{median, shards};
use serde_json::json;
use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
    time::Duration,
};

/// Measure gristmill on this machine
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// CPU of the whole system and of the executor alone; table writes per split
    E2e(BenchE2eArgs),
    /// CPU per sample of whole pipelines, compared with their kernels in a bare loop
    Pipelines(pipelines::BenchPipelinesArgs),
    /// Splits per second that claims, commits and polls sustain, by the number of workers
    Control(control::BenchControlArgs),
    /// Images per second by the number of workers, beside linear growth
    Cores(cores::BenchCoresArgs),
    /// Bytes of batches that the fetcher receives per second of CPU
    Ingest(ingest::BenchIngestArgs),
    /// Bytes, CPU and modelled dollars of stored objects, plain and compressed
    Compression(compression::BenchCompressionArgs),
    /// Calls and table units of several fetchers of one run, in virtual time
    Readers(readers::BenchReadersArgs),
}

#[derive(Debug, clap::Args)]
pub struct BenchE2eArgs {
    /// Images to generate
    #[arg(long, default_value_t = 2000)]
    pub images: u64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Splits with which table writes are measured
    #[arg(long, default_value_t = 2000)]
    pub splits: u64,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        match self.what {
            BenchCommand::E2e(args) => e2e(args).await,
            BenchCommand::Pipelines(args) => pipelines::run(args).await,
            BenchCommand::Control(args) => control::run(args).await,
            BenchCommand::Cores(args) => cores::run(args).await,
            BenchCommand::Ingest(args) => ingest::run(args).await,
            BenchCommand::Compression(args) => compression::run(args).await,
            BenchCommand::Readers(args) => readers::run(args).await,
        }
    }
}

/// A pipeline that takes almost no CPU, for counting writes.
const SLEEP: &str = "
source:
  tfrecord: .
  features:
    value: { key: value, dtype: i64 }
ops:
  - sleep: { ms: 1 }
  - batch: { size: 4 }
";

async fn e2e(args: BenchE2eArgs) -> Result<(), ProgramFailure> {
    let images = DatasetSpec::images(args.images, 0);
    let dir = training::make_dataset(images).await?;
    let pipeline = gristmill_operators::parse(training::RESNET).map_err(ProgramFailure::failed)?;
    // Cores share caches and clock, so a millisecond of CPU does less while other cores work. In
    // the whole system they do, for fetcher and stand-ins, so the executor is measured with every
    // core busy.
    let cores = std::thread::available_parallelism().map_err(ProgramFailure::failed)?.get();
    let (mut ratios, mut controls, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let idle = executor_alone(&pipeline, &dir, 1)?;
        let alone = executor_alone(&pipeline, &dir, cores)?;
        let source = DatasetLocation::local(dir.clone(), "train-*");
        let authored = pipeline.clone().into();
        let report = training::measured(&train_options(1, 1), "bench", &authored, source).await?;
        let samples = report.elements().max(1) as f64;
        let worker = report.usage().worker_cpu_ms as f64 / samples;
        let fetcher = report.usage().fetcher_cpu_ms as f64 / samples;
        let control = report.usage().control_cpu_ms as f64 / samples;
        let ratio = (worker + fetcher) / alone;
        gristmill_client::complain!(
            "round {round}: executor alone {alone:.3} ms ({idle:.3} on one core of an idle machine), \
             worker {worker:.3} + fetcher {fetcher:.3} ms a sample: {ratio:.3}x; control {control:.3} ms"
        );
        ratios.push(ratio);
        controls.push(control);
        rows.push(json!({
            "executor": alone,
            "executor_idle": idle,
            "worker": worker,
            "fetcher": fetcher,
            "control": control,
            "ratio": ratio,
        }));
    }
    let (median, control) = (median(ratios), median(controls));
    let writes = writes_per_split(args.splits).await?;
    say!("worker + fetcher against the executor alone: {median:.3}x (median of {})", args.rounds);
    say!("control (coordinator and scaler): {control:.3} ms of CPU a sample (median)");
    say!("table writes per committed split: {writes:.3} over {} splits", args.splits);
    if args.json {
        let result = json!({
            "cpu_ratio": median,
            "control_ms": control,
            "rounds": rows,
            "splits": args.splits,
            "writes_per_split": writes,
        });
        say!("{result}");
    }
    Ok(())
}

/// CPU milliseconds per sample of the executor on `threads` threads, reading from memory.
fn executor_alone(pipeline: &Pipeline, dir: &Path, threads: usize) -> Result<f64, ProgramFailure> {
    let program = CompiledPipeline::compile(pipeline).map_err(ProgramFailure::failed)?;
    let shards = shards(pipeline, dir, ("", "train-"))?;
    let next = AtomicUsize::new(0);
    let parts = on_threads(threads, || {
        let mut scratch = program.scratch();
        let (mut cpu, mut rows) = (Duration::ZERO, 0);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(shard) = shards.get(at) else { return Ok((cpu, rows)) };
            let data = Bytes::from(std::fs::read(&shard.path).map_err(ProgramFailure::failed)?);
            let input = shard.input(data, at, shards.len());
            let before = thread_cpu();
            let output = program.run_split(&mut scratch, &input, &|| false);
            let output = output.map_err(ProgramFailure::failed)?;
            cpu += thread_cpu().saturating_sub(before);
            scratch.recycle(output.object);
            rows += u64::from(output.rows);
        }
    })?;
    let cpu: Duration = parts.iter().map(|(cpu, _)| cpu).sum();
    let rows: u64 = parts.iter().map(|(_, rows)| rows).sum();
    Ok(cpu.as_secs_f64() * 1e3 / rows.max(1) as f64)
}

fn on_threads<T: Send>(
    threads: usize,
    work: impl Fn() -> Result<T, ProgramFailure> + Sync,
) -> Result<Vec<T>, ProgramFailure> {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(ProgramFailure::failed("a benchmark thread panicked")))
        };
        running.into_iter().map(join).collect()
    })
}

/// Table writes per split in a job whose splits cost nothing.
async fn writes_per_split(splits: u64) -> Result<f64, ProgramFailure> {
    // Each split is one batch of four records.
    let dir = training::make_dataset(DatasetSpec::ints(splits * 4, 0)).await?;
    let pipeline = gristmill_operators::parse(SLEEP).map_err(ProgramFailure::failed)?;
    let mut args = train_options(1, 8);
    args.job.settings.split_batches = Some(1);
    let source = DatasetLocation::local(dir, "train-*");
    let report = training::measured(&args, "bench", &pipeline.into(), source).await?;
    report.writes_per_split().ok_or_else(|| ProgramFailure::failed("the service counts no writes"))
}

/// Batches of a split of ImageNet, by its images and their mean size: generated datasets are so small that their splits
/// would be too.
fn imagenet_split_batches(pipeline: &Pipeline) -> u64 {
    const IMAGES: u64 = 1_281_167;
    const IMAGE_BYTES: u64 = 115_000;
    pipeline.split_batches(IMAGES, IMAGE_BYTES)
}

/// Options of a trainer that discards batches.
fn train_options(epochs: u32, workers: u32) -> TrainOptions {
    let workers = WorkerCount::Fixed(workers);
    let mut options = TrainOptions {
        own_service: true,
        job: JobOptions { epochs, workers, ..JobOptions::default() },
        ..TrainOptions::default()
    };
    (options.training.step_time, options.training.drain) = (Duration::ZERO, true);
    options
}
