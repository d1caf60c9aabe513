//! Running a few elements of a dataset of this machine, to see what operators cost and make of them.

use crate::{bench::thread_cpu, failure::Failure, operators};
use bytes::Bytes;
use gristmill_executor::{
    Assets, Compiler, OpMetrics, Part, Program, SplitInput, SplitOutput,
    sources::{FileIndex, IndexBuilder},
};
use gristmill_pipeline::{Cardinality, Op, Pipeline, Stage, passes::Measured};
use gristmill_policy::plan;
use gristmill_types::{ErrorPolicy, RecordKey};
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

/// Most bytes of a file that are read for it.
const MAX_BYTES: u64 = 512 << 20;

/// Elements of a dataset that were run, and what that took.
struct Sample {
    output: SplitOutput,
    n_records: u32,
    /// Their bytes where they are stored.
    stored_bytes: u64,
    /// Records of the file, and its bytes.
    file: (u32, u64),
    /// Of this thread, for all of them.
    cpu: Duration,
}

/// Runs the first `most` records of the dataset; bad ones are left out.
fn run(program: &Program, pipeline: &Pipeline, path: &Path, most: u32) -> Result<Sample, Failure> {
    let (bytes, index) = read(pipeline, path)?;
    let n_records = index.len().min(most);
    // Bytes of records that are there.
    let end = index.byte_range(0, n_records).map_or(0, |range| range.end as usize);
    let first = RecordKey { file: 0, record: 0 };
    let part = Part { first, n_records, data: bytes.slice(..end), index: &index };
    // What cannot be decoded has no size.
    let input = SplitInput { on_error: ErrorPolicy::Skip, ..SplitInput::whole(part) };
    let before = thread_cpu();
    let output = program.run_split(&mut program.scratch(), &input, &|| false);
    let cpu = thread_cpu().saturating_sub(before);
    let output = output.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    if output.rows == 0 {
        let why = output.skipped.first().map_or(String::new(), |record| {
            format!(": {} ({}): {}", record.key, record.op, record.reason)
        });
        return Err(Failure::failed(format!("{}: no element came through{why}", path.display())));
    }
    let file = (index.len(), bytes.len() as u64);
    Ok(Sample { output, n_records, stored_bytes: end as u64, file, cpu })
}

/// What operators did to the first `most` elements of the dataset, and how many those were.
pub fn measure(
    (pipeline, assets): (&Pipeline, &dyn Assets),
    data: &str,
    most: u32,
) -> Result<(Measured, u32), Failure> {
    let operators = operators::get();
    let compiler = Compiler::new().assets(assets).operators(&operators).apart();
    let program = compiler.compile(pipeline).map_err(Failure::usage)?;
    let Sample { output, n_records, .. } = run(&program, pipeline, &first_file(data)?, most)?;
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
            measured.insert(stage.ordinal, (mean(metric.bytes_in), mean(metric.bytes_produced)));
        }
    }
    Ok((measured, n_records))
}

/// What the first `most` records cost, operator by operator as they run, and the records of all files,
/// as far as their bytes tell.
pub fn profile(
    (pipeline, assets): (&Pipeline, &dyn Assets),
    data: &str,
    most: u32,
) -> Result<(plan::Measured, u64), Failure> {
    let operators = operators::get();
    let compiler = Compiler::new().assets(assets).operators(&operators);
    let program = compiler.compile(pipeline).map_err(Failure::usage)?;
    let files = files(data)?;
    let first = files.first().ok_or_else(|| Failure::usage(format!("{data} names no file")))?;
    // Once to warm up: what is measured is the steady state.
    run(&program, pipeline, first, most.min(16))?;
    let sample = run(&program, pipeline, first, most)?;
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
    let sizes = files.iter().map(|file| std::fs::metadata(file).map_or(0, |about| about.len()));
    let (file_records, file_bytes) = sample.file;
    let per_record = file_bytes as f64 / f64::from(file_records.max(1));
    let records = sizes.sum::<u64>() as f64 / per_record.max(1.0);
    Ok((measured, records.round() as u64))
}

/// The first file of a dataset in byte order.
fn first_file(data: &str) -> Result<PathBuf, Failure> {
    let mut files = files(data)?;
    files.truncate(1);
    files.pop().ok_or_else(|| Failure::usage(format!("{data} names no file")))
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

fn read(pipeline: &Pipeline, path: &Path) -> Result<(Bytes, FileIndex), Failure> {
    let named =
        |error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| named(&error))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| named(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(named(&"it is larger than 512 MiB: sample a smaller file"));
    }
    let mut builder = IndexBuilder::new(pipeline.source().format).map_err(|e| named(&e))?;
    builder.push(&bytes).map_err(|error| named(&error))?;
    let index = builder.finish().map_err(|error| named(&error))?;
    Ok((Bytes::from(bytes), index))
}
