//! Whole pipelines in the executor alone, on one core and on all.

use super::{ProgramFailure, on_threads};
use crate::{output::say, thread_cpu, training};
use bytes::Bytes;
use gristmill_client::AuthoredPipeline;
use gristmill_executor::{CompiledPipeline, InputRange, SplitInput};
use gristmill_model::RecordKey;
use gristmill_operators::floor;
use gristmill_pipeline::Pipeline;
use gristmill_sources::{FileIndex, IndexBuilder};
use gristmill_synthetic::{DatasetSpec, RandomStream};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill bench pipelines\n  gristmill bench pipelines --only p1 --seconds 10 --json"
)]
pub struct BenchPipelinesArgs {
    /// Run only these: p1 (ResNet), p2 (SimCLR), p4 (token sequences)
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    #[command(flatten)]
    pub data: GeneratedDataArgs,
    /// Time for each measurement
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Rounds, in which all variants run in turn; medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub struct GeneratedDataArgs {
    /// Directory of the generated data: images/ and tokens/ [default: the cache]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Images to generate
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub images: u64,
    /// Sequences to generate
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(64..=10_000_000))]
    pub sequences: u64,
}

struct Study {
    name: &'static str,
    variant: &'static str,
    pipeline: String,
    files: ShardFiles,
    floor: Floor,
}

/// Directory below the data, and the prefix of its files' names.
pub(super) type ShardFiles = (&'static str, &'static str);

/// The lower bound that is measured beside a pipeline: its kernels in a bare loop.
enum Floor {
    /// The libraries under the ResNet kernels, called directly.
    Libraries { antialias: bool },
    /// Our own kernels.
    Kernels,
}

pub(super) const IMAGES: ShardFiles = ("images", "train-");
pub(super) const TOKENS: ShardFiles = ("tokens", "tokens-");

fn studies() -> Vec<Study> {
    let resnet = |variant, antialias: bool| Study {
        name: "p1",
        variant,
        pipeline: include_str!("p1.yaml").replace("ANTIALIAS", &antialias.to_string()),
        files: IMAGES,
        floor: Floor::Libraries { antialias },
    };
    // The fetcher's work is measured too, since peers do it as well.
    let simclr = include_str!("../../../../examples/simclr.yaml");
    let simclr = simclr.replace("  - scale\n", "  - scale: { keep_position: true }\n");
    let example = |name, pipeline: &str, files| Study {
        name,
        variant: "",
        pipeline: pipeline.to_owned(),
        files,
        floor: Floor::Kernels,
    };
    vec![
        resnet("antialias", true),
        resnet("no_antialias", false),
        example("p2", &simclr, IMAGES),
        example("p4", include_str!("../../../../examples/nlp.yaml"), TOKENS),
    ]
}

/// A file of records with its index, which is made once per dataset.
pub(super) struct IndexedShard {
    pub path: PathBuf,
    pub index: FileIndex,
}

impl IndexedShard {
    /// All of its records, in `data`, as the shard number `at` of runs over `shards`.
    pub fn input(&self, data: Bytes, at: usize, shards: usize) -> SplitInput<'_> {
        let first = RecordKey { file: (at % shards) as u32, record: 0 };
        let part = InputRange { first, n_records: self.index.len(), data, index: &self.index };
        SplitInput { epoch: (at / shards) as u32, ..SplitInput::whole(part) }
    }
}

#[derive(Clone, Copy)]
struct Figures {
    samples_per_s: f64,
    cpu_ms_per_sample: f64,
    mb_peak_rss: f64,
}

pub async fn run(args: BenchPipelinesArgs) -> Result<(), ProgramFailure> {
    let studies = chosen(&args.only)?;
    check_seconds(args.seconds)?;
    let files: Vec<ShardFiles> = studies.iter().map(|study| study.files).collect();
    let dir = args.data.generate(&files).await?;
    let cores = std::thread::available_parallelism().map_err(ProgramFailure::failed)?.get();
    let mut found: BTreeMap<(usize, usize), Vec<Figures>> = BTreeMap::new();
    let mut floors: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for round in 0..args.rounds {
        for (i, study) in studies.iter().enumerate() {
            let (program, shards) = prepare(&study.pipeline, &dir, study.files)?;
            for threads in [1, cores] {
                let figures = measure(&program, &shards, threads, args.seconds)?;
                found.entry((i, threads)).or_default().push(figures);
                gristmill_client::complain!(
                    "round {round}: {} {} on {threads}: {:.0} samples/s, {:.4} ms CPU a sample",
                    study.name,
                    study.variant,
                    figures.samples_per_s,
                    figures.cpu_ms_per_sample
                );
            }
            let floor = match study.floor {
                Floor::Libraries { antialias } => resnet_floor(&shards, antialias, args.seconds)?,
                Floor::Kernels => kernels_floor(&program, &shards, args.seconds)?,
            };
            floors.entry(i).or_default().push(floor);
        }
    }
    let rows = table(&studies, found, &floors);
    if args.json {
        say!("{}", json!({ "data": dir, "pipelines": rows }));
    }
    Ok(())
}

/// Prints the medians of all rounds, a row for each study and number of threads; the rows as JSON.
fn table(
    studies: &[Study],
    found: BTreeMap<(usize, usize), Vec<Figures>>,
    floors: &BTreeMap<usize, Vec<f64>>,
) -> Vec<serde_json::Value> {
    let mut rows = Vec::new();
    say!(
        "{:<18} {:>5} {:>12} {:>10} {:>10} {:>8}",
        "",
        "cores",
        "samples/s",
        "CPU ms",
        "floor ms",
        "RSS MB"
    );
    for ((i, threads), figures) in found {
        let Study { name, variant, .. } = studies[i];
        let median_of = |of: fn(&Figures) -> f64| median(figures.iter().map(of).collect());
        let floor = floors.get(&i).map(|floors| median(floors.clone()));
        let (rate, cpu) = (median_of(|f| f.samples_per_s), median_of(|f| f.cpu_ms_per_sample));
        let rss = median_of(|f| f.mb_peak_rss);
        let shown = floor.map_or("-".to_owned(), |floor| format!("{floor:.3}"));
        say!(
            "{:<18} {threads:>5} {rate:>12.0} {cpu:>10.4} {shown:>10} {rss:>8.0}",
            format!("{name} {variant}")
        );
        rows.push(json!({
            "name": name,
            "variant": variant,
            "cores": threads,
            "samples_per_s": rate,
            "cpu_ms_per_sample": cpu,
            "floor_cpu_ms": floor,
            "mb_peak_rss": rss,
        }));
    }
    rows
}

fn chosen(only: &[String]) -> Result<Vec<Study>, ProgramFailure> {
    let mut studies = studies();
    if let Some(unknown) = only.iter().find(|name| !studies.iter().any(|s| s.name == **name)) {
        let mut known: Vec<&str> = studies.iter().map(|study| study.name).collect();
        known.dedup();
        return Err(ProgramFailure::usage(format!(
            "there is no pipeline {unknown}; there are {}",
            known.join(", ")
        )));
    }
    studies.retain(|study| only.is_empty() || only.iter().any(|name| name == study.name));
    Ok(studies)
}

impl GeneratedDataArgs {
    /// Generates the missing ones of `files`; returns the directory that holds them all.
    pub(super) async fn generate(&self, files: &[ShardFiles]) -> Result<PathBuf, ProgramFailure> {
        let Self { data, images, sequences } = self;
        let dir = match data {
            Some(dir) => dir.clone(),
            // Data of another size has another directory.
            None => gristmill_synthetic::cache_dir()
                .map_err(ProgramFailure::failed)?
                .join(format!("bench-{images}-{sequences}")),
        };
        std::fs::create_dir_all(&dir).map_err(ProgramFailure::failed)?;
        if files.contains(&IMAGES) {
            training::make_dataset_in(dir.join(IMAGES.0), DatasetSpec::images(*images, 0)).await?;
        }
        if files.contains(&TOKENS) {
            ensure(&dir.join(TOKENS.0), *sequences)?;
        }
        Ok(dir)
    }
}

pub(super) fn check_seconds(seconds: f64) -> Result<(), ProgramFailure> {
    match seconds {
        0.1..=3600.0 => Ok(()),
        _ => Err(ProgramFailure::usage("--seconds must be 0.1 to 3600")),
    }
}

/// A pipeline as passes leave it, and the files it reads.
pub(super) fn prepare(
    pipeline: &str,
    dir: &Path,
    files: ShardFiles,
) -> Result<(CompiledPipeline, Vec<IndexedShard>), ProgramFailure> {
    let pipeline = gristmill_operators::parse(pipeline).map_err(ProgramFailure::failed)?;
    let pipeline = AuthoredPipeline::from(pipeline).ordered_as_declared().authored.pipeline;
    let program = CompiledPipeline::compile(&pipeline).map_err(ProgramFailure::failed)?;
    Ok((program, shards(&pipeline, dir, files)?))
}

pub(super) fn shards(
    pipeline: &Pipeline,
    dir: &Path,
    (below, prefix): ShardFiles,
) -> Result<Vec<IndexedShard>, ProgramFailure> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir.join(below))
        .map_err(ProgramFailure::failed)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(prefix))
        })
        .collect();
    paths.sort();
    let shard = |path: PathBuf| {
        let mut builder =
            IndexBuilder::new(&pipeline.source().format).map_err(ProgramFailure::failed)?;
        builder
            .push(&std::fs::read(&path).map_err(ProgramFailure::failed)?)
            .map_err(ProgramFailure::failed)?;
        Ok(IndexedShard { path, index: builder.finish().map_err(ProgramFailure::failed)? })
    };
    paths.into_iter().map(shard).collect()
}

/// Runs shards repeatedly for `seconds` on `threads` threads, including reads.
fn measure(
    program: &CompiledPipeline,
    shards: &[IndexedShard],
    threads: usize,
    seconds: f64,
) -> Result<Figures, ProgramFailure> {
    // Resets the kernel's peak of the resident set.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let (next, samples) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (began, cpu) = (Instant::now(), process_cpu());
    on_threads(threads, || {
        let (mut scratch, mut buffer) = (program.scratch(), Vec::new());
        while began.elapsed().as_secs_f64() < seconds {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let shard = &shards[at % shards.len()];
            buffer.clear();
            let mut file = std::fs::File::open(&shard.path).map_err(ProgramFailure::failed)?;
            file.read_to_end(&mut buffer).map_err(ProgramFailure::failed)?;
            let data = Bytes::from(buffer);
            let input = shard.input(data.clone(), at, shards.len());
            let output = program
                .run_split(&mut scratch, &input, &|| false)
                .map_err(ProgramFailure::failed)?;
            drop(input);
            scratch.recycle(output.object);
            buffer = data.try_into_mut().map(Vec::from).unwrap_or_default();
            samples.fetch_add(u64::from(shard.index.len()), Ordering::Relaxed);
        }
        Ok(())
    })?;
    let samples = samples.into_inner().max(1) as f64;
    let cpu = process_cpu().saturating_sub(cpu);
    Ok(Figures {
        samples_per_s: samples / began.elapsed().as_secs_f64(),
        cpu_ms_per_sample: cpu.as_secs_f64() * 1e3 / samples,
        mb_peak_rss: peak_rss_mb(),
    })
}

/// CPU milliseconds per record of the pipeline's kernels, on the first shards.
fn kernels_floor(
    program: &CompiledPipeline,
    shards: &[IndexedShard],
    seconds: f64,
) -> Result<f64, ProgramFailure> {
    let mut files = Vec::new();
    for shard in shards.iter().take(4) {
        files.push((
            Bytes::from(std::fs::read(&shard.path).map_err(ProgramFailure::failed)?),
            shard,
        ));
    }
    let mut scratch = program.scratch();
    let (began, before, mut records) = (Instant::now(), thread_cpu(), 0_u64);
    for (at, (data, shard)) in files.iter().cycle().enumerate() {
        if began.elapsed().as_secs_f64() >= seconds {
            break;
        }
        let SplitInput { epoch, parts, .. } = shard.input(data.clone(), at, files.len());
        let copied =
            program.run_kernels(&mut scratch, &parts[0], epoch).map_err(ProgramFailure::failed)?;
        std::hint::black_box(copied);
        records += u64::from(shard.index.len());
    }
    let cpu = thread_cpu().saturating_sub(before);
    Ok(cpu.as_secs_f64() * 1e3 / records.max(1) as f64)
}

/// CPU milliseconds per image of the floor, on the first shards.
fn resnet_floor(
    shards: &[IndexedShard],
    antialias: bool,
    seconds: f64,
) -> Result<f64, ProgramFailure> {
    let mut files = Vec::new();
    for shard in shards.iter().take(4) {
        files.push((std::fs::read(&shard.path).map_err(ProgramFailure::failed)?, &shard.index));
    }
    let mut jpegs = Vec::new();
    for (bytes, index) in &files {
        for record in 0..index.len() {
            let range = index.byte_range(record, 1).unwrap_or_default();
            let record = &bytes[range.start as usize..range.end as usize];
            // Only the image in a record begins like one.
            let start = record.windows(3).position(|bytes| bytes == [0xff, 0xd8, 0xff]);
            jpegs.extend(start.map(|start| &record[start..]));
        }
    }
    let (began, before) = (Instant::now(), thread_cpu());
    let mut more = || began.elapsed().as_secs_f64() < seconds;
    let images = floor::resnet(&jpegs, antialias, &mut more);
    let cpu = thread_cpu().saturating_sub(before);
    Ok(cpu.as_secs_f64() * 1e3 / f64::from(images.map_err(ProgramFailure::failed)?.max(1)))
}

/// The median; of an even number, the upper one.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn process_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The largest resident set since the last reset, in MB; 0 where the system does not report it.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0 / 1e6
}

const FILES: u64 = 8;
/// Incremented whenever the same request would give other bytes.
const VERSION: u32 = 1;
/// Mean and deviation of the logarithm of the length: a mean of 68 tokens.
const LOG_MEAN: f64 = 4.0;
const LOG_DEVIATION: f64 = 0.66;
const LONGEST: f64 = 500.0;
const VOCABULARY: u64 = 30_522;

/// Generates `sequences` of them in `dir`, unless they exist.
pub fn ensure(dir: &Path, sequences: u64) -> Result<(), ProgramFailure> {
    let made = dir.join("made");
    let wanted = format!("{sequences} sequences, version {VERSION}\n");
    if fs::read_to_string(&made).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(ProgramFailure::failed)?;
    for file in 0..FILES {
        let path = dir.join(format!("tokens-{file:05}.jsonl"));
        let mut out = BufWriter::new(File::create(path).map_err(ProgramFailure::failed)?);
        for sequence in (file * sequences / FILES)..((file + 1) * sequences / FILES) {
            write_one(&mut out, sequence).map_err(ProgramFailure::failed)?;
        }
        out.flush().map_err(ProgramFailure::failed)?;
    }
    // Written last: data without it is generated again.
    fs::write(made, wanted).map_err(ProgramFailure::failed)
}

fn write_one(out: &mut impl Write, sequence: u64) -> std::io::Result<()> {
    let mut random = RandomStream::keyed(0, sequence);
    // The sum of twelve uniform numbers is close enough to normal.
    let normal: f64 = (0..12).map(|_| f64::from(random.unit())).sum::<f64>() - 6.0;
    let length = (LOG_MEAN + LOG_DEVIATION * normal).exp().clamp(4.0, LONGEST) as u64;
    out.write_all(b"{\"tokens\":[")?;
    for at in 0..length {
        let token = (f64::from(random.unit()) * VOCABULARY as f64) as u64;
        write!(out, "{}{token}", if at == 0 { "" } else { "," })?;
    }
    out.write_all(b"]}\n")
}
