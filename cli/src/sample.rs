//! Running a few elements of a dataset of this machine, to see what operators cost and make of them.

use crate::{bench::thread_cpu, failure::Failure, operators};
use bytes::Bytes;
use gristmill_executor::{
    Assets, Compiler, OpMetrics, Part, Pick, Program, SplitInput, SplitOutput, Zipped,
    sources::{FileIndex, IndexBuilder, Records},
};
use gristmill_pipeline::{Cardinality, Format, Op, Pipeline, Source, Stage, passes::Measured};
use gristmill_policy::plan;
use gristmill_types::{ErrorPolicy, RecordKey};
use std::{
    fs::File,
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

/// Elements that are looked at unless told how many.
pub const ELEMENTS: u32 = 300;

/// Most bytes of a file that are read for it.
const MAX_BYTES: u64 = 512 << 20;

/// Elements of a dataset that were run, and what that took.
struct Sample {
    output: SplitOutput,
    n_records: u32,
    /// Their bytes where they are stored.
    stored_bytes: u64,
    /// Of the file of each dataset, its bytes for each of its records.
    bytes_per_record: Vec<f64>,
    /// Of this thread, for all of them.
    cpu: Duration,
}

/// A file that was read.
struct Shard {
    path: PathBuf,
    bytes: Bytes,
    index: FileIndex,
}

/// The first records of a file, unpacked.
struct Opened<'a> {
    shard: &'a Shard,
    n_records: u32,
    records: Records,
    /// Of the file as it is stored.
    stored_bytes: u64,
}

impl Shard {
    /// Its first records, as far as it has so many.
    fn first(&self, source: &Source, n_records: u32) -> Result<Opened<'_>, Failure> {
        let n_records = self.index.len().min(n_records);
        let opened = self.index.stored_ranges(0, n_records, source).and_then(|ranges| {
            let stored_bytes = ranges.iter().map(|range| range.end - range.start).sum();
            let part = |range: &Range<u64>| {
                let end = range.end.min(self.bytes.len() as u64);
                self.bytes.slice(range.start.min(end) as usize..end as usize)
            };
            let parts: Vec<Bytes> = ranges.iter().map(part).collect();
            let records = self.index.open(0, n_records, source, &parts)?;
            Ok(Opened { shard: self, n_records, records, stored_bytes })
        });
        opened.map_err(|error| Failure::failed(format!("{}: {error}", self.path.display())))
    }
}

impl Opened<'_> {
    fn part(&self, file: u32) -> Part<'_> {
        let index = self.records.index.as_ref().unwrap_or(&self.shard.index);
        let first = RecordKey { file, record: 0 };
        Part { first, n_records: self.n_records, data: self.records.data.clone(), index }
    }
}

/// The path a dataset of the pipeline is sampled at; there is one unless datasets are zipped.
pub type Places = Vec<String>;

/// Where to sample: at `data`, or where the pipeline, a file in `dir`, says that its datasets lie.
pub fn places(pipeline: &Pipeline, data: Option<&str>, dir: &Path) -> Result<Places, Failure> {
    let beside = |source: &Source| match source.paths.first().map_or("", String::as_str) {
        path if path.starts_with("s3://") => path.to_owned(),
        path => dir.join(path).to_string_lossy().into_owned(),
    };
    match data {
        Some(_) if pipeline.source().is_zip() => Err(Failure::usage(
            "the pipeline zips datasets, whose paths stand in its file: leave out `--data`",
        )),
        Some(data) => Ok(vec![data.to_owned()]),
        None => Ok(pipeline.source().members().map(beside).collect()),
    }
}

/// Runs the first `most` records of files, one of each dataset; bad ones are left out.
fn run(
    program: &Program,
    pipeline: &Pipeline,
    paths: &[PathBuf],
    most: u32,
) -> Result<Sample, Failure> {
    let members = || pipeline.source().members();
    let shards = members().zip(paths).map(|(source, path)| read(source.format, path));
    let shards: Vec<Shard> = shards.collect::<Result<_, _>>()?;
    let [first, others @ ..] = shards.as_slice() else {
        return Err(Failure::usage("there is no file to look at"));
    };
    let lengths = members().skip(1).zip(others);
    let lengths = lengths.map(|(source, shard)| shard.index.len().saturating_mul(source.repeat));
    let n_records = lengths.fold(first.index.len().min(most), u32::min);
    let opened = members().zip(&shards).map(|(source, shard)| shard.first(source, n_records));
    let opened: Vec<Opened<'_>> = opened.collect::<Result<_, _>>()?;
    let zipped = (1..).zip(others.iter().zip(&opened[1..])).map(|(file, (shard, opened))| {
        let length = shard.index.len().max(1);
        let pick = |i| Pick { part: 0, record: i % length, copy: 0 };
        Zipped {
            parts: vec![opened.part(file)],
            files: vec![paths[file as usize].display().to_string()],
            picks: Some((0..n_records).map(pick).collect()),
        }
    });
    let zipped: Vec<Zipped<'_>> = zipped.collect();
    let part = opened[0].part(0);
    let stored_bytes = opened.iter().map(|opened| opened.stored_bytes).sum();
    // What cannot be decoded has no size.
    let input = SplitInput { on_error: ErrorPolicy::Skip, zipped, ..SplitInput::whole(part) };
    let named = paths[0].display();
    let before = thread_cpu();
    let output = program.run_split(&mut program.scratch(), &input, &|| false);
    let cpu = thread_cpu().saturating_sub(before);
    let output = output.map_err(|error| Failure::failed(format!("{named}: {error}")))?;
    if output.rows == 0 {
        let why = output.skipped.first().map_or(String::new(), |record| {
            format!(": {} ({}): {}", record.key, record.op, record.reason)
        });
        return Err(Failure::failed(format!("{named}: no element came through{why}")));
    }
    let each = |shard: &Shard| shard.bytes.len() as f64 / f64::from(shard.index.len().max(1));
    let bytes_per_record = shards.iter().map(each).collect();
    Ok(Sample { output, n_records, stored_bytes, bytes_per_record, cpu })
}

/// What operators did to the first `most` elements of the dataset, and how many those were.
pub fn measure(
    (pipeline, assets): (&Pipeline, &dyn Assets),
    data: &Places,
    most: u32,
) -> Result<(Measured, u32), Failure> {
    let operators = operators::get();
    let compiler = Compiler::new().assets(assets).operators(&operators).apart();
    let program = compiler.compile(pipeline).map_err(Failure::usage)?;
    let (first, _) = first_files(data)?;
    let Sample { output, n_records, .. } = run(&program, pipeline, &first, most)?;
    let mut measured = Measured::new();
    for metric in &output.metrics {
        let Some(stage) = metric.stage.and_then(|stage| pipeline.stages().get(stage as usize))
        else {
            continue;
        };
        let transforms = stage.op.declaration().cardinality == Cardinality::OneToOne
            && stage.op.field().is_some();
        if transforms && metric.num_elements > 0 && metric.bytes_in > 0 {
            let mean = |bytes: u64| bytes as f64 / metric.num_elements as f64;
            // Of an operator that moves several fields the first counts, as the factor is its.
            let of_bytes = (mean(metric.bytes_in), mean(metric.bytes_produced));
            measured.entry(stage.ordinal).or_insert(of_bytes);
        }
    }
    Ok((measured, n_records))
}

/// What the first `most` records cost, operator by operator as they run, and the records of all files,
/// as far as their bytes tell.
pub fn profile(
    (pipeline, assets): (&Pipeline, &dyn Assets),
    data: &Places,
    most: u32,
) -> Result<(plan::Measured, u64), Failure> {
    let operators = operators::get();
    let compiler = Compiler::new().assets(assets).operators(&operators);
    let program = compiler.compile(pipeline).map_err(Failure::usage)?;
    let (first, files) = first_files(data)?;
    // Once to warm up: what is measured is the steady state.
    run(&program, pipeline, &first, most.min(16))?;
    let sample = run(&program, pipeline, &first, most)?;
    let stage = |metric: &OpMetrics| pipeline.stages().get(metric.stage? as usize);
    let waits = |metric: &OpMetrics| matches!(stage(metric), Some(Stage { op: Op::Sleep(_), .. }));
    let metrics = &sample.output.metrics;
    // Others on this machine lengthen the time of an operator, not the processor time of all.
    let busy = metrics.iter().filter(|metric| !waits(metric)).map(|metric| metric.active_ns);
    let busy_ns = busy.sum::<u64>().max(1) as f64;
    let mut bytes = 0.0;
    let ops = metrics.iter().map(|metric| {
        let seconds = metric.active_ns as f64 / 1e9;
        let (cpu_s, wait_s) = match waits(metric) {
            true => (0.0, seconds),
            false => (sample.cpu.as_secs_f64() * metric.active_ns as f64 / busy_ns, 0.0),
        };
        let (read, made) = (metric.bytes_in as f64, metric.bytes_produced as f64);
        bytes = match stage(metric) {
            None => made,
            Some(stage) if stage.op.batching().is_some() => sample.output.object.len() as f64,
            Some(_) => f64::max(bytes + made - read, 0.0),
        };
        let elements = metric.num_elements as f64;
        plan::OpCost { op: metric.op.to_owned(), cpu_s, wait_s, elements, bytes }
    });
    let ops = ops.collect();
    let measured = plan::Measured {
        records: f64::from(sample.n_records),
        source_bytes: sample.stored_bytes as f64,
        rows: f64::from(sample.output.rows),
        row_bytes: sample.output.object.len() as f64,
        ops,
        ..plan::Measured::default()
    };
    // A zip is as long as the shortest of its datasets.
    let of_one = |((source, files), per_record): ((&Source, &Vec<PathBuf>), &f64)| {
        let sizes = files.iter().map(|file| std::fs::metadata(file).map_or(0, |about| about.len()));
        sizes.sum::<u64>() as f64 / per_record.max(1.0) * f64::from(source.repeat)
    };
    let datasets = pipeline.source().members().zip(&files).zip(&sample.bytes_per_record);
    let records = datasets.map(of_one).fold(f64::INFINITY, f64::min);
    Ok((measured, records.round() as u64))
}

/// The first file of each dataset, and all files of each.
fn first_files(data: &Places) -> Result<(Vec<PathBuf>, Vec<Vec<PathBuf>>), Failure> {
    let files: Vec<Vec<PathBuf>> = data.iter().map(|data| files(data)).collect::<Result<_, _>>()?;
    let first = files.iter().zip(data).map(|(files, data)| {
        let first = files.first().cloned();
        first.ok_or_else(|| Failure::usage(format!("{data} names no file")))
    });
    Ok((first.collect::<Result<_, _>>()?, files))
}

/// The files of a dataset in byte order.
fn files(data: &str) -> Result<Vec<PathBuf>, Failure> {
    if data.starts_with("s3://") {
        return Err(Failure::usage(format!(
            "data of this machine is sampled: copy a file of {data} here and name that"
        )));
    }
    let pattern = match Path::new(data).is_dir() {
        true => format!("{}/**/*", glob::Pattern::escape(data)),
        false => data.to_owned(),
    };
    let named = |error: &dyn std::fmt::Display| Failure::usage(format!("{data}: {error}"));
    let paths = glob::glob(&pattern).map_err(|error| named(&error))?;
    let hidden = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_none_or(|name| name.starts_with(['.', '_']))
    };
    // Manifests and the like lie beside the data of generated datasets.
    let found = paths.filter_map(|path| {
        path.ok().filter(|path| {
            path.is_file() && !hidden(path) && path.file_name() != Some("manifest.json".as_ref())
        })
    });
    Ok(found.collect())
}

fn read(format: Format, path: &Path) -> Result<Shard, Failure> {
    let named =
        |error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
    if format == Format::Images {
        return Err(Failure::usage(format!(
            "{}: images of a folder are not sampled: name an archive of some with --data, and its kind in a copy of the pipeline",
            path.display()
        )));
    }
    let file = File::open(path).map_err(|error| named(&error))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| named(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(named(&"it is larger than 512 MiB: sample a smaller file"));
    }
    let mut builder = IndexBuilder::new(format).map_err(|e| named(&e))?;
    builder.push(&bytes).map_err(|error| named(&error))?;
    let index = builder.finish().map_err(|error| named(&error))?;
    Ok(Shard { path: path.to_owned(), bytes: Bytes::from(bytes), index })
}
