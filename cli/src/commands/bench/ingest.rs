//! `gristmill bench ingest`: cost of taking batches on the trainer's host, with everything cached
//! so that nothing else runs.

use super::{pipelines::median, train_options};
use crate::{output::say, training};
use gristmill_client::{Failure, Source, report::Report};
use gristmill_synthetic::DatasetSpec;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Images to generate
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub images: u64,
    /// Times the images are read in each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub epochs: u32,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

/// Batches of pixels, as they cross the network. The files here are small, and a third of the
/// batches would be joined from their remainders; with `take`, splits span files and all batches
/// are whole.
const PIPELINE: &str = "
source:
  tfrecord: .
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - take: { count: IMAGES }
  - decode
  - center_crop: { size: 224 }
  - batch: { size: 64 }
  - autocache
";

pub async fn run(args: Args) -> Result<(), Failure> {
    let dir = training::make_dataset(DatasetSpec::images(args.images, 0)).await?;
    let pipeline = PIPELINE.replace("IMAGES", &(args.images / 64 * 64).to_string());
    let pipeline = gristmill_operators::parse(&pipeline).map_err(Failure::failed)?;
    let element_bytes = pipeline.element_bytes().unwrap_or(0);
    let state = tempfile::tempdir().map_err(Failure::failed)?;
    let source = Source::local(dir, "train-*");
    let job = async |epochs| -> Result<Report, Failure> {
        let mut args = train_options(epochs, 2);
        args.service.state_dir = Some(state.path().to_owned());
        training::measured(&args, "bench", &pipeline.clone().into(), source.clone()).await
    };
    gristmill_client::complain!("storing {} images once, then reading them {} times", args.images, args.epochs);
    job(1).await?;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        // Start, registration and end cost the same for every number of epochs.
        let (short, long) = (job(1).await?, job(1 + args.epochs).await?);
        let elements = long.elements() - short.elements();
        let cpu_ms = |report: &Report| report.usage().fetcher_cpu_ms;
        let cpu_s = cpu_ms(&long).saturating_sub(cpu_ms(&short)) as f64 / 1e3;
        let bytes = elements * element_bytes;
        let rate = bytes as f64 / cpu_s.max(1e-3);
        gristmill_client::complain!("round {round}: {bytes} bytes in {cpu_s:.2} s of CPU: {:.2} GB/s", rate / 1e9);
        rounds.push(rate);
    }
    let median = median(rounds.clone());
    say!("the fetcher takes {:.2} GB of batches a second of its own CPU", median / 1e9);
    if args.json {
        say!("{}", json!({ "bytes_per_cpu_second": median.round(), "rounds": rounds }));
    }
    Ok(())
}
