//! Files of records: indexed, then run as by a worker, skipping bad records.

use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits};
use gristmill_executor::{CompiledPipeline, InputRange, SplitInput};
use gristmill_model::{ErrorPolicy, RecordKey};
use gristmill_pipeline::PipelineSource;
use gristmill_sources::{
    FORMATS, FileIndex, FormatDefinition, IndexBuilder, OpenedRecords, SourceLimits, images,
};
use libjpeg_turbo_rs::DecodeWarning;
use std::sync::LazyLock;

/// Most pixels of an image that is decoded twice.
const MAX_PIXELS: usize = 1 << 20;
/// Small, so that reaching them is cheap.
const LIMITS: SourceLimits = SourceLimits { record_bytes: 1 << 16, records: 1 << 10 };

/// A compiled pipeline and its source.
struct Reading {
    program: CompiledPipeline,
    source: PipelineSource,
}

fn program(yaml: &str) -> Reading {
    let pipeline = gristmill_operators::parse(yaml).expect("a target's pipeline is valid");
    let program = CompiledPipeline::compile(&pipeline).expect("a target's pipeline compiles");
    Reading { program, source: pipeline.source().clone() }
}

/// Pipelines, each compiled when it is first read.
macro_rules! readings {
    ($($name:ident: $yaml:literal,)+) => {
        $(static $name: LazyLock<Reading> = LazyLock::new(|| program($yaml));)+
    };
}

readings! {
    NUMBERS: "source: { tfrecord: x, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [3] }, image: { dtype: bytes } } }\n\
        ops: [decode, resize: { size: 8 }, batch: { size: 2 }]",
    STEPS: "source: { tfrecord: x, defaults: { i: -1 }, features: { i: { dtype: i64 }, m: { key: i, dtype: i64, shape: [-1] }, f: { dtype: f32, shape: [-1, 2] }, image: { dtype: bytes } } }\n\
        ops: [parse_raw: { field: image, dtype: u16, shape: [-1] }, batch: { size: 2, ragged: true }]",
    MEMBERS: "source: { webdataset: x, features: { i: { key: cls, dtype: i64 }, f: { key: txt;json, dtype: f32, shape: [3] } } }\n\
        ops: [batch: { size: 2 }]",
    PICTURES: "source: { images: x }\nops: [decode: { apply_exif_orientation: true }, random_resized_crop: { size: 16 }, flip, batch: { size: 2 }]",
    MASKS: "source: { images: x }\n\
        ops: [decode: { mode: indices, dtype: u16 }, random_resized_crop: { size: 16 }, flip, batch: { size: 2 }]",
    VALUES: "source: { images: x }\n\
        ops: [parse_csv: { field: image, columns: [i, f, text], keep: true, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [-1] }, text: { dtype: bytes } } }, batch: { size: 2, ragged: true }]",
    LINES: "source: { jsonl: x, features: { i: { dtype: i64 }, f: { key: a.f, dtype: f32, shape: [2, 2] }, image: { dtype: bytes } } }\n\
        ops: [decode, resize: { size: 8 }, batch: { size: 2 }]",
    TABLE: "source: { csv: x, header: false, columns: [i, f, text], defaults: { i: 0 }, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [-1] }, text: { dtype: bytes } } }\n\
        ops: [batch: { size: 2, ragged: true }]",
    ROWS: "source: { parquet: x, features: { i: { dtype: i64 }, f: { key: a.f, dtype: f32, shape: [2] }, image: { dtype: bytes } } }\n\
        ops: [decode, resize: { size: 8 }, batch: { size: 2 }]",
    ARRAYS: "source: { npz: x, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [3] }, text: { dtype: bytes } } }\n\
        ops: [batch: { size: 2, ragged: true }]",
    ARRAY: "source: { npy: x, features: { f: { dtype: f32, shape: [3] } } }\nops: [batch: { size: 2 }]",
}

/// TFRecord files.
pub fn tfrecord(bytes: &[u8]) {
    file(&NUMBERS, bytes);
}

/// A reading of each registered format that has files to index, by its example.
static EXAMPLES: LazyLock<Vec<Reading>> = LazyLock::new(|| {
    let indexed = FORMATS.iter().filter(|format| !format.is_packed);
    let reading = |format: &&FormatDefinition| {
        let ops = "batch: { size: 2, ragged: true }";
        program(&format!("source: {}\nops: [{ops}]", format.example))
    };
    indexed.map(reading).collect()
});

/// Files of any format.
pub fn sources(bytes: &[u8]) {
    EXAMPLES.iter().for_each(|reading| file(reading, bytes));
}

/// Files of lines, compressed or not.
pub fn jsonl(bytes: &[u8]) {
    file(&LINES, bytes);
}

/// TFRecord files and lines within compressed files.
pub fn compressed(bytes: &[u8]) {
    file(&NUMBERS, bytes);
    file(&LINES, bytes);
}

/// Parquet files.
pub fn parquet(bytes: &[u8]) {
    file(&ROWS, bytes);
}

/// Files of numpy.
pub fn npy(bytes: &[u8]) {
    file(&ARRAYS, bytes);
    file(&ARRAY, bytes);
}

/// WebDataset archives.
pub fn webdataset(bytes: &[u8]) {
    file(&MEMBERS, bytes);
}

/// `tf.Example` and `tf.SequenceExample` messages, framed so that they reach the reader.
pub fn example(bytes: &[u8]) {
    let masked = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (bytes.len() as u64).to_le_bytes();
    let record = [&length[..], &masked(&length), bytes, &masked(bytes)].concat();
    file(&NUMBERS, &record);
    file(&STEPS, &record);
}

/// JPEGs, decoded, cropped and stacked. If our decoder accepts one, libjpeg-turbo-rs must produce the same
/// pixels.
pub fn jpeg(bytes: &[u8]) {
    content(&PICTURES, bytes);
    let Some(frame) = gristmill_jpeg::JpegHeaders::find(bytes) else { return };
    if frame.width * frame.height > MAX_PIXELS {
        return;
    }
    let mut rgb = vec![0; frame.width * frame.height * 3];
    let (x, y) = (0..frame.width, 0..frame.height);
    if gristmill_jpeg::JpegDecoder::default().decode(&frame, x, y, &mut rgb).is_none() {
        return;
    }
    let mut library = libjpeg_turbo_rs::Decoder::new(bytes).expect("the same header");
    library.set_output_format(libjpeg_turbo_rs::PixelFormat::Rgb);
    let image = library.decode_image().expect("the same image");
    let made_up =
        |warning: &DecodeWarning| !matches!(warning, DecodeWarning::ExtraneousData { .. });
    assert!(!image.warnings.iter().any(made_up), "{:?}", image.warnings);
    assert!(image.data == rgb, "other pixels than the library's");
}

/// PNGs, likewise; also with corrected checksums of their chunks, so that damage reaches the code behind
/// them.
pub fn png(bytes: &[u8]) {
    content(&PICTURES, bytes);
    content(&MASKS, bytes);
    let mut sealed = bytes.to_vec();
    // After the signature: length, type, that many bytes, and the CRC of type and bytes.
    let mut at = 8_usize;
    while let Some(length) = sealed.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let end = (at + 8).saturating_add(u32::from_be_bytes(*length) as usize);
        let Some(crc) = sealed.get(at + 4..end).map(crc32fast::hash) else { break };
        let Some(stored) = sealed.get_mut(end..end.saturating_add(4)) else { break };
        stored.copy_from_slice(&crc.to_be_bytes());
        at = end + 4;
    }
    content(&PICTURES, &sealed);
    content(&MASKS, &sealed);
}

/// BMPs, GIFs, TIFFs, PGMs and PPMs, as images and as masks.
pub fn raster(bytes: &[u8]) {
    content(&PICTURES, bytes);
    content(&MASKS, bytes);
}

/// WebPs, likewise.
pub fn webp(bytes: &[u8]) {
    content(&PICTURES, bytes);
}

/// Lines of comma-separated values: one, and a file of them.
pub fn csv(bytes: &[u8]) {
    content(&VALUES, bytes);
    file(&TABLE, bytes);
}

/// Runs a file as one record.
fn content(reading: &Reading, bytes: &[u8]) {
    let record = [&7_i64.to_le_bytes()[..], bytes].concat();
    let index = images::index([bytes.len() as u64]).expect("an input is a small file");
    run(&reading.program, &index, record.into());
}

fn file(Reading { program, source }: &Reading, bytes: &[u8]) {
    let format = &source.format;
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
    let again = FileIndex::decode_with(&index.encode(), format, LIMITS);
    assert_eq!(again.as_ref(), Ok(&index), "an index is read back");
    let ranges = match index.stored_ranges(0, index.len(), source) {
        Ok(ranges) => ranges,
        Err(error) => return super::one_line(&error.to_string()),
    };
    let part = |range: std::ops::Range<u64>| {
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        Some(Bytes::copy_from_slice(bytes.get(range)?))
    };
    let parts: Option<Vec<Bytes>> = ranges.into_iter().map(part).collect();
    let parts = parts.expect("records lie in the file");
    match index.open(0, index.len(), source, &parts) {
        Ok(OpenedRecords { data, index: window }) => {
            run(program, window.as_ref().unwrap_or(&index), data)
        }
        // Errors within a file that is read in part are detected when it is read.
        Err(error) => {
            assert!(!index.is_contiguous(), "{error}");
            super::one_line(&error.to_string());
        }
    }
}

/// Runs all records as one split; the result is a chunk of the valid ones.
fn run(program: &CompiledPipeline, index: &FileIndex, data: Bytes) {
    let first = RecordKey { file: 0, record: 0 };
    let part = InputRange { first, n_records: index.len(), data, index };
    let input = SplitInput { on_error: ErrorPolicy::Quarantine, ..SplitInput::whole(part) };
    let mut scratch = program.scratch();
    let output = program.run_split(&mut scratch, &input, &|| false);
    let output = output.expect("bad records are left out");
    assert_eq!(output.rows as usize + output.skipped.len(), index.len() as usize);
    assert_eq!(output.skipped.len(), output.quarantined.len());
    for skipped in &output.skipped {
        super::one_line(&skipped.reason);
        // Caught, but still a bug of ours.
        assert!(!skipped.reason.contains("panicked"), "{}: {}", skipped.op, skipped.reason);
    }
    let chunk = Chunk::open(Bytes::from(output.object), &ChunkLimits::default());
    let chunk = chunk.expect("what was written can be read");
    let rows: u64 = chunk.frames().iter().map(|frame| u64::from(frame.rows)).sum();
    assert_eq!(rows, u64::from(output.rows));
}
