//! `gristmill bench`: figures of this machine, each beside what it is compared with.

use crate::{
    args::{Backend, Bench, BenchArgs, BenchE2eArgs, TrainArgs},
    dataset::DatasetSpec,
    failure::Failure,
    train::{self, Report},
};
use bytes::Bytes;
use gristmill_executor::{Program, SplitInput, sources::tfrecord::IndexBuilder};
use gristmill_fetcher::Source;
use gristmill_pipeline::Pipeline;
use gristmill_types::{ErrorPolicy, RecordKey};
use serde_json::json;
use std::{path::Path, time::Duration};

pub async fn run(args: BenchArgs) -> Result<(), Failure> {
    match args.what {
        Bench::E2e(args) => e2e(args).await,
    }
}

/// A pipeline that takes next to no CPU, for counting writes.
const SLEEP: &str = "
source:
  tfrecord: .
  features:
    value: { key: value, dtype: i64 }
ops:
  - sleep: { ms: 1 }
  - batch: { size: 4 }
";

async fn e2e(args: BenchE2eArgs) -> Result<(), Failure> {
    let images = DatasetSpec::images(args.images, 0);
    let dir = train::make_dataset(images).await?;
    let pipeline = Pipeline::parse(train::RESNET).map_err(Failure::failed)?;
    let mut ratios = Vec::new();
    let mut rows = Vec::new();
    for round in 0..args.rounds {
        let alone = executor_alone(&pipeline, &dir)?;
        let report = whole(&pipeline, &dir, 1, 1).await?;
        let samples = report.elements().max(1) as f64;
        let worker = report.usage().worker_cpu_ms as f64 / samples;
        let fetcher = report.usage().fetcher_cpu_ms as f64 / samples;
        let ratio = (worker + fetcher) / alone;
        eprintln!(
            "round {round}: executor alone {alone:.3} ms, worker {worker:.3} + fetcher {fetcher:.3} ms \
             a sample: {ratio:.3}x"
        );
        ratios.push(ratio);
        rows.push(
            json!({ "executor": alone, "worker": worker, "fetcher": fetcher, "ratio": ratio }),
        );
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let writes = writes_per_split(args.splits).await?;
    println!(
        "worker + fetcher against the executor alone: {median:.3}x (median of {})",
        args.rounds
    );
    println!("table writes per committed split: {writes:.3} over {} splits", args.splits);
    if args.json {
        let result = json!({
            "cpu_ratio": median,
            "rounds": rows,
            "splits": args.splits,
            "writes_per_split": writes,
        });
        println!("{result}");
    }
    Ok(())
}

/// CPU milliseconds a sample of the executor on one thread, reading from memory.
fn executor_alone(pipeline: &Pipeline, dir: &Path) -> Result<f64, Failure> {
    let program = Program::compile(pipeline).map_err(Failure::failed)?;
    let mut scratch = program.scratch();
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .map_err(Failure::failed)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_none())
        .collect();
    files.sort();
    let (mut rows, mut cpu_ms) = (0u64, 0);
    for (file, path) in (0..).zip(files) {
        let data = Bytes::from(std::fs::read(&path).map_err(Failure::failed)?);
        let mut builder = IndexBuilder::new();
        builder.push(&data).map_err(Failure::failed)?;
        let index = builder.finish().map_err(Failure::failed)?;
        let input = SplitInput {
            epoch: 0,
            seed: 0,
            on_error: ErrorPolicy::Fail,
            first: RecordKey { file, record: 0 },
            n_records: index.len(),
            data,
            index: &index,
        };
        let before = train::process_cpu_ms(std::process::id());
        let output = program.run_split(&mut scratch, &input, &|| false).map_err(Failure::failed)?;
        cpu_ms += train::process_cpu_ms(std::process::id()) - before;
        rows += u64::from(output.rows);
        scratch.recycle(output.object);
    }
    Ok(cpu_ms as f64 / rows.max(1) as f64)
}

async fn whole(
    pipeline: &Pipeline,
    dir: &Path,
    epochs: u32,
    workers: u32,
) -> Result<Report, Failure> {
    let args = train_args(epochs, workers);
    let source = Source::Local { root: dir.to_owned(), pattern: "train-*".to_owned() };
    train::measured(&args, "bench", pipeline, source).await
}

/// Table writes for each split of a study in which splits cost nothing.
async fn writes_per_split(splits: u64) -> Result<f64, Failure> {
    // One batch of four records is a split.
    let dir = train::make_dataset(DatasetSpec::ints(splits * 4, 0)).await?;
    let pipeline = Pipeline::parse(SLEEP).map_err(Failure::failed)?;
    let args = TrainArgs { split_batches: Some(1), ..train_args(1, 8) };
    let source = Source::Local { root: dir, pattern: "train-*".to_owned() };
    let report = train::measured(&args, "bench", &pipeline, source).await?;
    report.writes_per_split().ok_or_else(|| Failure::failed("the service counts no writes"))
}

fn train_args(epochs: u32, workers: u32) -> TrainArgs {
    TrainArgs {
        epochs,
        step_time: Duration::ZERO,
        batch_size: None,
        workers,
        local_workers: 0,
        data: None,
        seed: 0,
        sink: None,
        backend: Backend::Local,
        endpoint: None,
        state_dir: None,
        job: None,
        on_error: ErrorPolicy::Fail,
        chaos: None,
        chaos_interval: Duration::from_secs(1),
        split_batches: None,
        prefetch_mib: 64,
        json: false,
        drain: true,
    }
}
