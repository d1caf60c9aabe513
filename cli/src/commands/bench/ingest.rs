//! `gristmill bench ingest`: cost of taking batches on the trainer's host, with everything cached
//! so that nothing else runs, beside one read and one checksum of the same bytes.

use super::{pipelines::median, train_options};
use crate::{output::say, thread_cpu, training};
use gristmill_client::{DatasetLocation, ProgramFailure, report::RunReport};
use gristmill_synthetic::DatasetSpec;
use serde_json::json;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
pub struct BenchIngestArgs {
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

pub async fn run(args: BenchIngestArgs) -> Result<(), ProgramFailure> {
    let dir = training::make_dataset(DatasetSpec::images(args.images, 0)).await?;
    let pipeline = PIPELINE.replace("IMAGES", &(args.images / 64 * 64).to_string());
    let pipeline = gristmill_operators::parse(&pipeline).map_err(ProgramFailure::failed)?;
    let element_bytes = pipeline.element_bytes().unwrap_or(0);
    let state = tempfile::tempdir().map_err(ProgramFailure::failed)?;
    let source = DatasetLocation::local(dir, "train-*");
    let job = async |epochs| -> Result<RunReport, ProgramFailure> {
        let mut args = train_options(epochs, 2);
        args.service.state_dir = Some(state.path().to_owned());
        training::measured(&args, "bench", &pipeline.clone().into(), source.clone()).await
    };
    gristmill_client::complain!(
        "storing {} images once, then reading them {} times",
        args.images,
        args.epochs
    );
    job(1).await?;
    let (mut rounds, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        // Start, registration and end cost the same for every number of epochs.
        let (short, long) = (job(1).await?, job(1 + args.epochs).await?);
        let bytes = (long.elements() - short.elements()) * element_bytes;
        let seconds = |cpu_ms: fn(&RunReport) -> u64| {
            (cpu_ms(&long).saturating_sub(cpu_ms(&short)) as f64 / 1e3).max(1e-3)
        };
        let fetcher = seconds(|report| report.usage().fetcher_cpu_ms);
        let all = seconds(|report| {
            let used = report.usage();
            used.fetcher_cpu_ms + used.control_cpu_ms + used.worker_cpu_ms
        });
        let floor = floor_seconds(state.path(), bytes).map_err(ProgramFailure::failed)?;
        let rate = bytes as f64 / fetcher;
        gristmill_client::complain!(
            "round {round}: {bytes} bytes in {fetcher:.2} s of the fetcher's CPU: {:.2} GB/s; all processes {all:.2} s, \
             one read and one checksum {floor:.2} s: {:.2}x",
            rate / 1e9,
            all / floor
        );
        rounds.push(rate);
        ratios.push(all / floor);
    }
    let (rate, ratio) = (median(rounds.clone()), median(ratios.clone()));
    say!("the fetcher takes {:.2} GB of batches a second of its own CPU", rate / 1e9);
    say!(
        "all processes take {ratio:.2} times the CPU of one read and one checksum of the same bytes"
    );
    if args.json {
        let result = json!({
            "bytes_per_cpu_second": rate.round(), "rounds": rounds,
            "cpu_over_floor": ratio, "cpu_over_floor_rounds": ratios,
        });
        say!("{result}");
    }
    Ok(())
}

/// Smaller files are no objects of batches.
const OBJECT_BYTES_MIN: u64 = 1 << 20;

/// Memory that batches lie in before a trainer takes them: the least of the fetcher's bounds. Reading into less would
/// measure the processor's cache.
const READ_INTO_BYTES: usize = 64 << 20;

/// CPU seconds of reading `bytes` of the stored objects below `state`, each with one `pread`, and of their checksum.
fn floor_seconds(state: &Path, bytes: u64) -> io::Result<f64> {
    let mut objects = Vec::new();
    large_files(state, &mut objects)?;
    if objects.is_empty() {
        return Err(io::Error::other("the service stored no objects of batches"));
    }
    let most = objects.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let most = usize::try_from(most).map_err(io::Error::other)?;
    let mut buffers = vec![vec![0; most]; READ_INTO_BYTES.div_ceil(most)];
    // Their pages are there before it is measured.
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    let (mut left, mut sum, before) = (bytes, 0, thread_cpu());
    for (i, (path, bytes)) in objects.iter().cycle().enumerate() {
        let wanted = usize::try_from(left.min(*bytes)).map_err(io::Error::other)?;
        let at = i % buffers.len();
        let buffer = &mut buffers[at][..wanted];
        File::open(path)?.read_exact_at(buffer, 0)?;
        sum ^= gristmill_chunk::crc32c(buffer);
        left -= wanted as u64;
        if left == 0 {
            break;
        }
    }
    std::hint::black_box(sum);
    Ok((thread_cpu() - before).as_secs_f64().max(1e-3))
}

/// Files of at least [`OBJECT_BYTES_MIN`] below a folder, with their bytes.
fn large_files(folder: &Path, found: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_dir() {
            large_files(&entry.path(), found)?;
        } else if about.len() >= OBJECT_BYTES_MIN {
            found.push((entry.path(), about.len()));
        }
    }
    Ok(())
}
