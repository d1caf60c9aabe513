//! A trainer in Rust: starts a service or uses one, trains two epochs on generated numbers, and checkpoints.
//!
//!     cargo build --release
//!     cargo run --release --package gristmill-trainer -- --gristmill target/release/gristmill --state-dir /tmp/trained
//!
//! Stopped half-way, it continues after its last checkpoint when it is started again.

use anyhow::{Context, Result};
use clap::Parser;
use gristmill_client::{
    AuthoredPipeline, DatasetLocation, JobConfig, JobHandle, JobOptions, ServiceConnection,
    ServiceLauncher, ServiceOptions, StreamOptions, connect, start_local,
};
use gristmill_serve::cursor::{Cursor, CursorFile, CursorStore, SavedCursor, StreamIdentity};
use gristmill_stream::{DeliveredBatch, StreamDelivery};
use gristmill_synthetic::DatasetSpec;
use std::{ops::ControlFlow, path::PathBuf, time::Duration};

const EPOCHS: u32 = 2;
/// How long the service may take to index the dataset.
const DIVISION_TIMEOUT: Duration = Duration::from_secs(60);
const PIPELINE: &str = "
source: { tfrecord: ., features: { value: { key: value, dtype: i64 } } }
ops:
  - batch: { size: 32 }
";

/// Train two epochs on generated numbers
#[derive(Parser)]
struct Options {
    /// Program `gristmill`, to start a service in --state-dir; without it, a running service is used
    #[arg(long, value_name = "FILE")]
    gristmill: Option<PathBuf>,
    /// Checkpoint: the model, and the first batch that it has not seen
    #[arg(long, default_value = "model.checkpoint", value_name = "FILE")]
    checkpoint: PathBuf,
    #[command(flatten)]
    service: ServiceOptions,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let service = match &options.gristmill {
        Some(program) => {
            let launcher = ServiceLauncher { program: program.clone(), args: Vec::new() };
            start_local(
                &launcher,
                options.service.state_dir.as_deref(),
                gristmill_client::operators(),
            )
            .await?
        }
        None => connect(&options.service, gristmill_client::operators()).await?,
    };
    let trained = train(&service, &options).await;
    service.close().await;
    trained
}

async fn train(service: &ServiceConnection, options: &Options) -> Result<()> {
    let mut checkpoint = CursorFile::open(&options.checkpoint)?;
    let saved = checkpoint.load()?;
    // The batches are those of the checkpoint only in splits of the same size.
    let job = start_job(service, saved.as_ref().map(|saved| saved.split_batches)).await?;
    let begin = match saved {
        Some(saved)
            if saved.identity
                == StreamIdentity::from_view(&job.divided(DIVISION_TIMEOUT).await?) =>
        {
            saved.cursor
        }
        _ => Cursor::default(),
    };
    let mut batches = job.batches(begin, &StreamOptions::default()).await?;
    let mut model = Model::default();
    loop {
        match batches.next().await? {
            StreamDelivery::Batch(batch) => {
                model.step(&batch);
                // A real trainer saves less often, and saves its weights in the same file.
                let cursor = batch.cursor().next();
                let view = job.divided(DIVISION_TIMEOUT).await?;
                let split_batches = view.split_batches().unwrap_or(0);
                checkpoint.save(&SavedCursor {
                    identity: StreamIdentity::from_view(&view),
                    split_batches,
                    cursor,
                })?;
                batches.checkpointed(batch.cursor());
            }
            StreamDelivery::EpochEnd(totals) => println!(
                "epoch {}: {} batches, waited {:.3} s",
                totals.epoch,
                totals.batches,
                totals.waits.total().as_secs_f64()
            ),
            // Only a trainer of several ranks has other readers.
            StreamDelivery::OfOthers { .. } => {}
            StreamDelivery::End => break,
        }
    }
    batches.checkpointed_epochs(EPOCHS);
    batches.finish().await?;
    println!("trained on {} rows in {} steps", model.rows, model.steps);
    Ok(())
}

/// Starts the job over generated data, or joins it if it was started before.
async fn start_job(service: &ServiceConnection, split_batches: Option<u32>) -> Result<JobHandle> {
    let spec = DatasetSpec::ints(1000, 0);
    let root = gristmill_synthetic::default_dir(&spec)?;
    gristmill_synthetic::ensure(&root, &spec, &|_, _| ControlFlow::Continue(()))?;
    let source = DatasetLocation::local(root, "train-*");
    let authored = AuthoredPipeline::parse(PIPELINE, ".".as_ref()).context("the pipeline")?;
    let options =
        JobOptions { job: Some("example".parse()?), epochs: EPOCHS, ..JobOptions::default() };
    let config = JobConfig::new(authored, source, options.resuming(split_batches));
    Ok(service.submit(config, StreamOptions::default().patience).await?)
}

/// A stand-in for a model.
#[derive(Default)]
struct Model {
    steps: u64,
    rows: u64,
}

impl Model {
    /// One optimiser step; `batch.frame` is a safetensors blob.
    fn step(&mut self, batch: &DeliveredBatch) {
        self.steps += 1;
        self.rows += u64::from(batch.rows);
    }
}
