//! Files of records: indexed, then run as a worker runs them, leaving out what is bad.

use bytes::Bytes;
use gristmill_executor::{
    Program, SplitInput,
    sources::{FileIndex, IndexBuilder, Limits, images},
};
use gristmill_format::{Chunk, Limits as ChunkLimits};
use gristmill_pipeline::{Format, Pipeline};
use gristmill_types::{ErrorPolicy, RecordKey};
use std::sync::LazyLock;

/// Small, so that reaching them is cheap.
const LIMITS: Limits = Limits { record_bytes: 1 << 16, records: 1 << 10 };

fn program(yaml: &str) -> Program {
    let pipeline = Pipeline::parse(yaml).expect("a target's pipeline is valid");
    Program::compile(&pipeline).expect("a target's pipeline compiles")
}

static NUMBERS: LazyLock<Program> = LazyLock::new(|| {
    program(
        "source: { tfrecord: x, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [3] }, image: { dtype: bytes } } }\n\
         ops: [decode, resize: { size: 8 }, batch: { size: 2 }]",
    )
});
static MEMBERS: LazyLock<Program> = LazyLock::new(|| {
    program(
        "source: { webdataset: x, features: { i: { key: cls, dtype: i64 }, f: { key: txt;json, dtype: f32, shape: [3] } } }\n\
         ops: [batch: { size: 2 }]",
    )
});
static PICTURES: LazyLock<Program> = LazyLock::new(|| {
    program(
        "source: { images: x }\nops: [decode, random_resized_crop: { size: 16 }, flip, batch: { size: 2 }]",
    )
});

/// TFRecord files.
pub fn tfrecord(bytes: &[u8]) {
    file(&NUMBERS, Format::TfRecord, bytes);
}

/// WebDataset archives.
pub fn webdataset(bytes: &[u8]) {
    file(&MEMBERS, Format::WebDataset, bytes);
}

/// `tf.Example` messages, in the framing that lets them reach the reader.
pub fn example(bytes: &[u8]) {
    let masked = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (bytes.len() as u64).to_le_bytes();
    let record = [&length[..], &masked(&length), bytes, &masked(bytes)].concat();
    file(&NUMBERS, Format::TfRecord, &record);
}

/// JPEGs, decoded, cropped and stacked.
pub fn jpeg(bytes: &[u8]) {
    let record = [&7_i64.to_le_bytes()[..], bytes].concat();
    let index = images::index([bytes.len() as u64]).expect("an input is a small file");
    run(&PICTURES, &index, record);
}

fn file(program: &Program, format: Format, bytes: &[u8]) {
    let indexed = |piece: usize| {
        let mut builder = IndexBuilder::with_limits(format, LIMITS).expect("it has an index");
        for piece in bytes.chunks(piece) {
            builder.push(piece)?;
        }
        builder.finish()
    };
    let index = match indexed(bytes.len().max(1)) {
        Ok(index) => index,
        Err(error) => return super::one_line(&error.to_string()),
    };
    assert_eq!(indexed(7).as_ref(), Ok(&index), "pieces of any size give the same index");
    let end = usize::try_from(index.file_bytes()).expect("it lies in memory");
    let records = bytes.get(..end).expect("records lie in the file");
    run(program, &index, records.to_vec());
}

/// Runs all records as one split; what comes out is a chunk of those that are good.
fn run(program: &Program, index: &FileIndex, data: Vec<u8>) {
    let input = SplitInput {
        epoch: 0,
        seed: 0,
        on_error: ErrorPolicy::Quarantine,
        copy: 0,
        first: RecordKey { file: 0, record: 0 },
        n_records: index.len(),
        data: Bytes::from(data),
        index,
    };
    let mut scratch = program.scratch();
    let output = program.run_split(&mut scratch, &input, &|| false);
    let output = output.expect("bad records are left out");
    assert_eq!(output.rows as usize + output.skipped.len(), index.len() as usize);
    assert_eq!(output.skipped.len(), output.quarantined.len());
    for skipped in &output.skipped {
        super::one_line(&skipped.reason);
        // Caught, but still a mistake of ours.
        assert!(!skipped.reason.contains("panicked"), "{}: {}", skipped.op, skipped.reason);
    }
    let chunk = Chunk::open(Bytes::from(output.object), &ChunkLimits::default());
    let chunk = chunk.expect("what was written can be read");
    let rows: u64 = chunk.frames().iter().map(|frame| u64::from(frame.rows)).sum();
    assert_eq!(rows, u64::from(output.rows));
}
