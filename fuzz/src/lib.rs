//! Fuzz targets: functions over untrusted bytes that panic when an invariant is violated.
//!
//! `scripts/fuzz` runs each under libFuzzer; `tests/corpus.rs` runs each over the inputs in `corpus/` and over damaged
//! copies of them.

// A violated invariant is reported by a panic: that is what a fuzz target is.
#![allow(clippy::expect_used, reason = "a panic is how a fuzz target reports")]

#[path = "../../shared/chunk/tests/support/read_everything.rs"]
mod read_everything;

mod cache;
mod packed;
mod records;

use gristmill_executor::CompiledPipeline;
use gristmill_model::wire::protocol::{self, OLDEST};
use gristmill_model::wire::{
    AnyReply, CallEnvelope, Dataset, DatasetManifest, ImagePack, SkippedRecordLocation,
    SpokenVersions, VERSION,
};
use gristmill_pipeline::{AssetReference, FileFormat, Pipeline};
use gristmill_sources::{FORMATS, FileIndex, SourceLimits};

/// A target: takes any bytes.
pub type Target = fn(&[u8]);

/// Every target, by the name of its folder in `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("chunk", chunk),
    ("pipeline", pipeline),
    ("canonical", canonical),
    ("index", index),
    ("tfrecord", records::tfrecord),
    ("webdataset", records::webdataset),
    ("example", records::example),
    ("jpeg", records::jpeg),
    ("png", records::png),
    ("webp", records::webp),
    ("raster", records::raster),
    ("csv", records::csv),
    ("jsonl", records::jsonl),
    ("sources", records::sources),
    ("gzip", records::compressed),
    ("frames", records::compressed),
    ("parquet", records::parquet),
    ("npy", records::npy),
    ("cache", cache::cache),
    ("packed", packed::packed),
    ("message", message),
];

/// Chunk objects and frames, as read by a trainer.
fn chunk(bytes: &[u8]) {
    read_everything::read_everything(bytes);
}

/// Pipeline files. An accepted file has one canonical form, and compiles or is refused in one line.
fn pipeline(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match gristmill_operators::parse(text) {
        Ok(pipeline) => accepted(&pipeline),
        Err(error) => one_line(&error.to_string()),
    }
}

/// Canonical pipelines, as stored in a job's item.
fn canonical(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match gristmill_operators::from_canonical(text) {
        Ok(pipeline) => accepted(&pipeline),
        Err(error) => one_line(&error.to_string()),
    }
}

fn accepted(pipeline: &Pipeline) {
    let mut stored = |path: &str| Ok(AssetReference::hash(path.as_bytes()));
    let pipeline = &pipeline.clone().with_assets(&mut stored).expect("every path has a content");
    let canonical = pipeline.canonical_json();
    let again =
        gristmill_operators::from_canonical(&canonical).expect("a canonical form is read back");
    assert_eq!(again.canonical_json(), canonical, "there is one canonical form");
    if let Err(error) = CompiledPipeline::compile(pipeline) {
        one_line(&error.to_string());
    }
}

fn one_line(message: &str) {
    assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
    assert!(message.len() < 1000, "{} bytes: {message}", message.len());
}

/// Stored indices.
fn index(bytes: &[u8]) {
    let limits = SourceLimits { record_bytes: 1 << 20, records: 1 << 16 };
    // With a corrected checksum, damage reaches the code behind it.
    let mut sealed = bytes.to_vec();
    if let Some((checked, crc)) = sealed.split_last_chunk_mut::<4>() {
        *crc = crc32c::crc32c(checked).to_le_bytes();
    }
    for bytes in [bytes, &sealed] {
        for format in FORMATS {
            let format = FileFormat::with_defaults(format.name).expect("it is registered");
            let Ok(index) = FileIndex::decode_with(bytes, &format, limits) else { continue };
            if index.is_contiguous() {
                let all = index.byte_range(0, index.len()).expect("all records lie somewhere");
                assert_eq!(all.end, index.file_bytes());
            }
            let again = FileIndex::decode_with(&index.encode(), &format, limits);
            assert_eq!(again.expect("an index is read back"), index);
        }
    }
}

/// Everything that is read as JSON: calls, answers, and objects in the bucket.
fn message(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<CallEnvelope>(bytes) {
        let text = serde_json::to_vec(&request).expect("a request is written");
        serde_json::from_slice::<CallEnvelope>(&text).expect("a request is read back");
    }
    let _ = CallEnvelope::read(bytes, SpokenVersions::BUILD);
    for version in [OLDEST, VERSION] {
        if let Ok(reply) = protocol::read::<AnyReply>(bytes, version) {
            protocol::write(&reply, version).expect("a reply is written");
        }
    }
    if let Ok(dataset) = serde_json::from_slice::<Dataset>(bytes) {
        dataset.version("tfrecord");
    }
    if let Ok(manifest) = serde_json::from_slice::<DatasetManifest>(bytes) {
        manifest.records();
    }
    let _ = serde_json::from_slice::<ImagePack>(bytes);
    let _ = serde_json::from_slice::<SkippedRecordLocation>(bytes);
}
