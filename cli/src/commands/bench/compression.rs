//! `gristmill bench compression`: plain and compressed objects of workers: bytes, CPU of both ends,
//! dollars.

use super::{
    ProgramFailure,
    pipelines::{
        GeneratedDataArgs, IMAGES, IndexedShard, ShardFiles, TOKENS, check_seconds, median, prepare,
    },
};
use crate::{output::say, thread_cpu};
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits, FrameCodec};
use gristmill_executor::CompiledPipeline;
use gristmill_policy::{
    compression::{CompressionSample, CompressionTrial},
    cost::{FunctionShape, PriceList, SplitWork},
};
use gristmill_ports::BufferPool;
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  gristmill bench compression --rounds 3")]
pub struct BenchCompressionArgs {
    #[command(flatten)]
    pub data: GeneratedDataArgs,
    /// Time for each measurement
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds, in which all variants run in turn; medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

const CODECS: [(&str, FrameCodec); 4] = [
    ("none", FrameCodec::Stored),
    ("zstd 1", FrameCodec::Zstd { level: 1 }),
    ("zstd 2", FrameCodec::Zstd { level: 2 }),
    ("zstd 3", FrameCodec::Zstd { level: 3 }),
];

/// Pipelines by their output, and the files they read.
fn studies() -> [(&'static str, String, ShardFiles); 4] {
    let p1 = include_str!("p1.yaml").replace("ANTIALIAS", "true");
    [
        ("p1, u8 pixels", include_str!("../../../../examples/resnet50.yaml").to_owned(), IMAGES),
        ("p2, u8 pixels", include_str!("../../../../examples/simclr.yaml").to_owned(), IMAGES),
        ("p4, tokens", include_str!("../../../../examples/nlp.yaml").to_owned(), TOKENS),
        ("p1, f32 pixels", p1, IMAGES),
    ]
}

/// Sums over samples.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    samples: u64,
    read_bytes: u64,
    raw_bytes: u64,
    stored_bytes: u64,
    worker_cpu: Duration,
    fetcher_cpu: Duration,
}

impl Figures {
    fn per_sample(&self, sum: f64) -> f64 {
        sum / self.samples.max(1) as f64
    }

    fn work(&self) -> SplitWork {
        SplitWork {
            cpu_s: self.per_sample(self.worker_cpu.as_secs_f64()),
            bytes_in: self.per_sample(self.read_bytes as f64),
            bytes_out: self.per_sample(self.stored_bytes as f64),
            ..SplitWork::default()
        }
    }
}

pub async fn run(args: BenchCompressionArgs) -> Result<(), ProgramFailure> {
    check_seconds(args.seconds)?;
    let dir = args.data.generate(&[IMAGES, TOKENS]).await?;
    let mut found: BTreeMap<(usize, usize), Vec<Figures>> = BTreeMap::new();
    for round in 0..args.rounds {
        for (i, (name, pipeline, files)) in studies().into_iter().enumerate() {
            let (program, shards) = prepare(&pipeline, &dir, files)?;
            for (k, (codec_name, codec)) in CODECS.into_iter().enumerate() {
                gristmill_client::complain!("round {round}: {name}, {codec_name}");
                let figures = measure(&program, &shards, codec, args.seconds)?;
                found.entry((i, k)).or_default().push(figures);
            }
        }
    }
    report(&found, args.json);
    Ok(())
}

fn measure(
    program: &CompiledPipeline,
    shards: &[IndexedShard],
    codec: FrameCodec,
    seconds: f64,
) -> Result<Figures, ProgramFailure> {
    let mut scratch = program.scratch();
    scratch.set_codec(codec);
    let (began, mut figures) = (Instant::now(), Figures::default());
    let buffers = BufferPool::default();
    for (at, shard) in shards.iter().cycle().enumerate() {
        if began.elapsed().as_secs_f64() >= seconds && at >= shards.len() {
            break;
        }
        let data = Bytes::from(std::fs::read(&shard.path).map_err(ProgramFailure::failed)?);
        figures.read_bytes += data.len() as u64;
        let input = shard.input(data, at, shards.len());
        let before = thread_cpu();
        let output =
            program.run_split(&mut scratch, &input, &|| false).map_err(ProgramFailure::failed)?;
        figures.worker_cpu += thread_cpu().saturating_sub(before);
        figures.samples += u64::from(output.rows);
        figures.stored_bytes += output.object.len() as u64;
        let before = thread_cpu();
        let object = Bytes::from(output.object);
        let chunk =
            Chunk::open(object.clone(), &ChunkLimits::default()).map_err(ProgramFailure::failed)?;
        for frame in chunk.frames() {
            let range = frame.range();
            let stored = &object[range.start as usize..range.end as usize];
            // A stored frame is checked and passed on; a compressed frame is decompressed.
            let (take, lend) = (|bytes| buffers.take(bytes), |raw| buffers.lend(raw));
            let decoded = frame.decode_with(object.slice_ref(stored), take, lend);
            drop(decoded.map_err(ProgramFailure::failed)?);
            figures.raw_bytes += frame.raw_bytes;
        }
        figures.fetcher_cpu += thread_cpu().saturating_sub(before);
        drop(chunk);
        if let Ok(object) = object.try_into_mut() {
            scratch.recycle(Vec::from(object));
        }
    }
    Ok(figures)
}

fn report(found: &BTreeMap<(usize, usize), Vec<Figures>>, json: bool) {
    let (shape, prices) = (FunctionShape::default(), PriceList::default());
    let studies = studies();
    say!(
        "{:<15} {:<7} {:>10} {:>10} {:>10} {:>10} {:>12} {:>6}",
        "",
        "",
        "bytes",
        "worker ms",
        "fetcher ms",
        "modelled ms",
        "$ a million",
        "auto"
    );
    let mut rows = Vec::new();
    for ((i, k), rounds) in found {
        let ((name, ..), (codec, _)) = (&studies[*i], CODECS[*k]);
        let middle = |of: fn(&Figures) -> f64| median(rounds.iter().map(of).collect());
        let bytes = middle(|f| f.per_sample(f.stored_bytes as f64));
        let worker = middle(|f| f.work().cpu_s * 1e3);
        let fetcher = middle(|f| f.per_sample(f.fetcher_cpu.as_secs_f64() * 1e3));
        let modelled = median(rounds.iter().map(|f| f.work().worker_s(&shape) * 1e3).collect());
        let usd = shape.usd_per_second(&prices).0 * modelled * 1e3;
        let packed: Vec<Figures> = (1..CODECS.len()).map(|k| found[&(*i, k)][0]).collect();
        let level = chosen(&found[&(*i, 0)][0], &packed, &shape).unwrap_or(0);
        let chosen = i32::try_from(*k) == Ok(level);
        let mark = if chosen { "*" } else { "" };
        say!(
            "{name:<15} {codec:<7} {bytes:>10.0} {worker:>10.4} {fetcher:>10.4} {modelled:>11.4} {usd:>12.4} {mark:>6}"
        );
        rows.push(json!({
            "pipeline": name, "codec": codec, "stored_bytes": bytes, "worker_cpu_ms": worker, "fetcher_cpu_ms": fetcher,
            "modelled_worker_ms": modelled, "usd_per_million": usd, "auto": chosen,
        }));
    }
    say!("per sample; modelled: a function of {} MB; dollars of its computing", shape.memory_mb);
    if json {
        say!("{}", json!({ "rows": rows }));
    }
}

/// The choice of `compress: auto` from the same measurements: none, or a level.
fn chosen(plain: &Figures, packed: &[Figures], shape: &FunctionShape) -> Option<i32> {
    let seconds = |figures: &Figures| figures.per_sample(figures.worker_cpu.as_secs_f64());
    let scaled = |packed: &Figures, value: f64| packed.per_sample(value) * plain.samples as f64;
    let tries = (1..).zip(packed).map(|(level, packed)| CompressionTrial {
        level,
        bytes: scaled(packed, packed.stored_bytes as f64) as u64,
        seconds: (seconds(packed) - seconds(plain)).max(0.0) * plain.samples as f64,
    });
    let sample = CompressionSample {
        read_bytes: plain.read_bytes,
        raw_bytes: plain.raw_bytes,
        compute_s: plain.worker_cpu.as_secs_f64(),
        tried_bytes: plain.raw_bytes,
        tries: tries.collect(),
    };
    sample.best_level(shape)
}
