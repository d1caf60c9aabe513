//! Running a few elements of a dataset of this machine, to see what operators do to their size.

use crate::failure::Failure;
use bytes::Bytes;
use gristmill_executor::{
    Part, Program, SplitInput,
    sources::{FileIndex, IndexBuilder},
};
use gristmill_pipeline::{Cardinality, Pipeline, passes::Measured};
use gristmill_types::{ErrorPolicy, RecordKey};
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// Most bytes of a file that are read for it.
const MAX_BYTES: u64 = 512 << 20;

/// What operators did to the first `most` elements of the dataset, and how many those were.
pub fn measure(pipeline: &Pipeline, data: &str, most: u32) -> Result<(Measured, u32), Failure> {
    let file = first_file(data)?;
    let (bytes, index) = read(pipeline, &file)?;
    let n_records = index.len().min(most);
    // Bytes of records that are there.
    let end = index.byte_range(0, n_records).map_or(0, |range| range.end as usize);
    let program = Program::compile_apart(pipeline).map_err(Failure::usage)?;
    let first = RecordKey { file: 0, record: 0 };
    let part = Part { first, n_records, data: bytes.slice(..end), index: &index };
    // What cannot be decoded has no size.
    let input = SplitInput { on_error: ErrorPolicy::Skip, ..SplitInput::whole(part) };
    let output = program.run_split(&mut program.scratch(), &input, &|| false);
    let output = output.map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
    if output.rows == 0 {
        let why = output.skipped.first().map_or(String::new(), |record| {
            format!(": {} ({}): {}", record.key, record.op, record.reason)
        });
        return Err(Failure::failed(format!("{}: no element came through{why}", file.display())));
    }
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

/// The first file of a dataset in byte order.
fn first_file(data: &str) -> Result<PathBuf, Failure> {
    if data.starts_with("s3://") {
        return Err(Failure::usage(format!(
            "explain samples data of this machine: copy a file of {data} here, or leave --data out"
        )));
    }
    let pattern = match Path::new(data).is_dir() {
        true => format!("{}/**/*", glob::Pattern::escape(data)),
        false => data.to_owned(),
    };
    let named = |error: &dyn std::fmt::Display| Failure::usage(format!("{data}: {error}"));
    let mut paths = glob::glob(&pattern).map_err(|error| named(&error))?;
    let hidden = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_none_or(|name| name.starts_with(['.', '_']))
    };
    // Manifests and the like lie beside the data of generated datasets.
    let found = paths.find_map(|path| {
        path.ok().filter(|path| {
            path.is_file() && !hidden(path) && path.file_name() != Some("manifest.json".as_ref())
        })
    });
    found.ok_or_else(|| named(&"names no file"))
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
