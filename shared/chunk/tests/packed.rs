//! Foreign compressed frames: damaged ones, bombs, and valid zstd that no writer of objects produces.

#![allow(clippy::unwrap_used, reason = "clippy does not see that functions tests share are tests")]

use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkLimits};

#[path = "support/read_everything.rs"]
#[allow(dead_code)]
mod read_everything;

use read_everything::packed_object;

const ROWS: u32 = 3;

/// A frame's decoded content.
fn content() -> Vec<u8> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/stored.chunk");
    let object = Bytes::from(std::fs::read(file).unwrap());
    Chunk::open(object, &ChunkLimits::default()).unwrap().frame(0).unwrap().to_vec()
}

/// The header of a zstd frame (RFC 8878): without a window the frame is one segment.
#[derive(Clone, Copy, Default)]
struct Head {
    window_log: Option<u8>,
    dictionary: Option<u8>,
    content: Option<u32>,
}

impl Head {
    fn write(self) -> Vec<u8> {
        let flags = (u8::from(self.content.is_some()) << 7)
            | (u8::from(self.window_log.is_none()) << 5)
            | u8::from(self.dictionary.is_some());
        let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, flags];
        out.extend(self.window_log.map(|log| (log - 10) << 3));
        out.extend(self.dictionary);
        out.extend(self.content.into_iter().flat_map(u32::to_le_bytes));
        out
    }
}

/// A block that is stored as it is.
fn raw(bytes: &[u8], last: bool) -> Vec<u8> {
    let head = (bytes.len() as u32) << 3 | u32::from(last);
    [&head.to_le_bytes()[..3], bytes].concat()
}

/// A block of one byte, `size` times.
fn repeated(size: u32, last: bool) -> Vec<u8> {
    let head = size << 3 | 1 << 1 | u32::from(last);
    [&head.to_le_bytes()[..3], &[0]].concat()
}

fn stated(content: &[u8]) -> Head {
    Head { content: Some(content.len() as u32), ..Head::default() }
}

fn frame(head: Head, blocks: &[Vec<u8>]) -> Vec<u8> {
    [head.write(), blocks.concat()].concat()
}

/// Skippable bytes in zstd.
fn skippable() -> Vec<u8> {
    [&0x184d_2a50_u32.to_le_bytes()[..], &8_u32.to_le_bytes(), b"anything"].concat()
}

/// Frames that must be refused, with the sizes in the index.
fn refused() -> Vec<(&'static str, Vec<u8>, u64)> {
    let content = content();
    let size = content.len() as u64;
    let good = zstd::bulk::compress(&content, 1).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 4;
    let half = &content[..content.len() / 2];
    let (whole, none) = ([raw(&content, true)], Head::default());
    let twice = [raw(&content, false), raw(&content, true)];
    let endless: Vec<_> = (0..64).map(|i| repeated(128 << 10, i == 63)).collect();
    let dictionary = Head { dictionary: Some(7), ..stated(&content) };
    let unstated = Head { window_log: Some(20), ..none };
    let halves = [half, half].map(|half| zstd::bulk::compress(half, 1).unwrap()).concat();
    let empty = zstd::bulk::compress(&[], 1).unwrap();
    vec![
        ("cut", good[..good.len() - 3].to_vec(), size),
        ("flipped", flipped, size),
        ("index-less", good.clone(), size - 64),
        ("index-more", good.clone(), size + 64),
        ("no-zstd", content.clone(), size),
        ("unpacks-to-less", frame(stated(&content), &[raw(half, true)]), size),
        ("unpacks-to-more", frame(stated(&content), &twice), size),
        ("bomb", frame(stated(&content), &endless), size),
        (
            "bomb-of-a-window",
            frame(Head { window_log: Some(31), ..stated(&content) }, &endless),
            size,
        ),
        ("no-last-block", frame(stated(&content), &twice[..1]), size),
        ("unknown-block", frame(stated(&content), &[vec![7, 0, 0]]), size),
        ("no-size", frame(unstated, &whole), size),
        ("dictionary", frame(dictionary, &whole), size),
        ("skippable-before", [skippable(), good.clone()].concat(), size),
        ("skippable-behind", [good.clone(), skippable()].concat(), size),
        ("skippable-alone", skippable(), 64),
        ("two-frames", [&good[..], &good].concat(), size),
        ("two-frames-as-one", [&good[..], &good].concat(), 2 * size),
        ("two-halves", halves, size),
        ("empty-behind", [good.clone(), empty].concat(), size),
        ("garbage-behind", [&good[..], b"garbage"].concat(), size),
    ]
}

/// Unusual but valid frames.
fn accepted() -> Vec<(&'static str, Vec<u8>)> {
    let content = content();
    let whole = [raw(&content, true)];
    let window = |log| Head { window_log: Some(log), ..stated(&content) };
    vec![
        ("packed", zstd::bulk::compress(&content, 1).unwrap()),
        ("as-it-is", frame(stated(&content), &whole)),
        ("window-of-1-kb", frame(window(10), &whole)),
        ("window-of-2-gb", frame(window(31), &whole)),
    ]
}

fn read(stored: &[u8], raw_bytes: u64) -> Result<Vec<u8>, ChunkFormatError> {
    let object = Bytes::from(packed_object(stored, raw_bytes, ROWS));
    let chunk = Chunk::open(object, &ChunkLimits::default())?;
    let read = chunk.tensors(0).map(|frame| frame.bytes().to_vec());
    // The reused buffer must not affect the result.
    let used = |bytes| {
        let mut buffer = BytesMut::zeroed(bytes);
        buffer.fill(9);
        buffer.clear();
        buffer
    };
    let stored = Bytes::copy_from_slice(stored);
    let again = chunk.frames()[0].decode_with(stored, used, BytesMut::freeze);
    match &read {
        Ok(read) => assert_eq!(again.unwrap(), *read),
        Err(error) => assert_eq!(again.unwrap_err(), *error),
    }
    read
}

#[test]
fn one_whole_frame_of_the_stated_size_is_read() {
    for (name, stored) in accepted() {
        assert_eq!(read(&stored, content().len() as u64).unwrap(), content(), "{name}");
    }
}

#[test]
fn everything_else_is_refused_in_one_line() {
    for (name, stored, raw_bytes) in refused() {
        let error = read(&stored, raw_bytes).unwrap_err();
        assert!(matches!(error, ChunkFormatError::Corrupt(_)), "{name}: {error}");
        assert!(!error.to_string().contains(char::is_control), "{name}: {error}");
        assert!(error.to_string().contains("frame at byte 64 "), "{name}: {error}");
    }
}

/// Sizes impossible for such short zstd frames are refused with the object, before anything is allocated.
#[test]
fn a_few_bytes_are_not_said_to_be_many() {
    let block = |blocks: u32| frame(Head { content: Some(blocks << 17), ..Head::default() }, &[]);
    for (stored, raw_bytes, fits) in [
        (block(2), 2 << 17, true),
        (block(3), 3 << 17, false),
        (block(4096), 512 << 20, false),
        (block(4096), 1 << 30, false),
    ] {
        assert_eq!(stored.len(), 9);
        let opened =
            Chunk::open(Bytes::from(packed_object(&stored, raw_bytes, 1)), &ChunkLimits::default());
        assert_eq!(opened.is_ok(), fits, "{raw_bytes}");
    }
    // The maximum: blocks of one repeated byte each.
    let blocks: Vec<_> = (0..64).map(|i| repeated(128 << 10, i == 63)).collect();
    let zeros = frame(Head { content: Some(64 << 17), ..Head::default() }, &blocks);
    let chunk =
        Chunk::open(Bytes::from(packed_object(&zeros, 64 << 17, 1)), &ChunkLimits::default());
    assert_eq!(chunk.unwrap().frame(0).unwrap(), vec![0; 64 << 17]);
}

#[test]
#[ignore = "writes inputs of the fuzz target"]
fn write_the_corpus() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/packed");
    std::fs::create_dir_all(&folder).unwrap();
    let refused = refused().into_iter().map(|(name, stored, _)| (name, stored));
    let mut written = std::collections::BTreeSet::new();
    for (name, stored) in accepted().into_iter().chain(refused) {
        if written.insert(stored.clone()) {
            std::fs::write(folder.join(name), stored).unwrap();
        }
    }
}
