//! Runs every target over the stored inputs and damaged copies of them, so that a fuzzer's findings stay fixed, and a
//! short run is part of every test run.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_chunk::{Chunk, ChunkLimits, FrameCodec, FrameEncoding, repack};
use gristmill_fuzz::{TARGETS, Target};
use std::{fs, path::Path};

/// Damaged copies of each stored input.
const DAMAGED: usize = 60;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

fn target(name: &str) -> Target {
    TARGETS.iter().find(|(known, _)| *known == name).unwrap().1
}

fn damage(random: &mut fastrand::Rng, input: &[u8]) -> Vec<u8> {
    const NUMBERS: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'\n'];
    let mut bytes = input.to_vec();
    for _ in 0..random.usize(1..5) {
        if bytes.is_empty() {
            bytes.push(random.u8(..));
        }
        let at = random.usize(0..bytes.len());
        match random.u8(0..6) {
            0 => bytes[at] ^= 1 << random.u8(0..8),
            1 => bytes[at] = NUMBERS[random.usize(0..NUMBERS.len())],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + random.usize(1..20)).min(bytes.len()))),
            4 => bytes.insert(at, random.u8(..)),
            _ => {
                let end = (at + random.usize(1..40)).min(bytes.len());
                bytes.extend_from_within(at..end);
            }
        }
    }
    bytes
}

fn holds(name: &str) {
    let (target, inputs) = (target(name), corpus(name));
    assert!(!inputs.is_empty(), "corpus/{name} has no input to begin with");
    let mut random = fastrand::Rng::with_seed(1);
    for input in &inputs {
        target(input);
        (0..DAMAGED).for_each(|_| target(&damage(&mut random, input)));
    }
}

/// Captured elements of a worker, as they are and compressed.
#[test]
#[ignore = "writes inputs of the targets"]
fn write_compressed_inputs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for name in ["images", "lines"] {
        let object = fs::read(folder.join("cache").join(name)).unwrap().into();
        let chunk = Chunk::open(object, &ChunkLimits::default()).unwrap();
        let packed = repack(&chunk, FrameCodec::Zstd { level: 1 }).unwrap();
        fs::write(folder.join(format!("cache/{name}-zstd")), &packed).unwrap();
        let packed = Chunk::open(packed.into(), &ChunkLimits::default()).unwrap();
        for (i, frame) in packed.frames().iter().enumerate() {
            assert_eq!(frame.encoding, FrameEncoding::Zstd);
            let frame = zstd::bulk::compress(&packed.frame(i).unwrap(), 1).unwrap();
            fs::write(folder.join(format!("packed/{name}-{i}")), frame).unwrap();
        }
    }
}

macro_rules! tests {
    ($($name:ident),+) => {
        $(#[test]
        fn $name() {
            holds(stringify!($name));
        })+

        #[test]
        fn every_target_is_tested() {
            let tested = [$(stringify!($name)),+];
            let targets: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(targets, tested);
        }
    };
}

tests!(
    chunk, pipeline, canonical, index, tfrecord, webdataset, example, jpeg, png, webp, raster, csv,
    jsonl, sources, gzip, frames, parquet, npy, cache, packed, message
);
