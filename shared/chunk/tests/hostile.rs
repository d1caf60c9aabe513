//! Damaged and malicious input is an error: no panic, no broken invariant.

#![allow(clippy::unwrap_used, reason = "clippy does not see that functions tests share are tests")]

use std::path::PathBuf;

use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkFrame, ChunkLimits, Footer};
use proptest::prelude::*;
use proptest::sample::Index;

#[path = "support/read_everything.rs"]
#[allow(dead_code)]
mod read_everything;

use read_everything::{limits, read_everything, reseal};

fn golden() -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// A frame from the golden file that has ragged tensors.
fn ragged_frame() -> Vec<u8> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/ragged.chunk");
    let object = Bytes::from(std::fs::read(file).unwrap());
    Chunk::open(object, &limits()).unwrap().frame(0).unwrap().to_vec()
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Set(Index, Vec<u8>),
    /// A number, where numbers are: eight-byte steps from the end.
    Number(usize, u64),
    Truncate(Index),
    CutFront(Index),
    Remove(Index, usize),
    Append(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let number = prop_oneof![
        any::<u64>(),
        0u64..512,
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u64..64).prop_map(|less| u64::MAX - less),
        (0u64..1 << 21),
    ];
    prop_oneof![
        3 => (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..16))
            .prop_map(|(at, bytes)| Damage::Set(at, bytes)),
        4 => (1usize..24, number).prop_map(|(words, number)| Damage::Number(words, number)),
        1 => any::<Index>().prop_map(Damage::Truncate),
        1 => any::<Index>().prop_map(Damage::CutFront),
        1 => (any::<Index>(), 1usize..80).prop_map(|(at, len)| Damage::Remove(at, len)),
        1 => prop::collection::vec(any::<u8>(), 1..100).prop_map(Damage::Append),
    ]
}

fn apply(damage: &Damage, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    let mut put = |at: usize, new: &[u8]| {
        for (old, new) in bytes[at..].iter_mut().zip(new) {
            *old = *new;
        }
    };
    match damage {
        Damage::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Damage::Set(at, new) => put(at.index(len), new),
        Damage::Number(words, number) => {
            put(len.saturating_sub(words * 8), &number.to_le_bytes());
        }
        Damage::Truncate(at) => bytes.truncate(at.index(len)),
        Damage::CutFront(at) => drop(bytes.drain(..at.index(len))),
        Damage::Remove(at, count) => {
            let at = at.index(len);
            bytes.drain(at..(at + count).min(len));
        }
        Damage::Append(more) => bytes.extend_from_slice(more),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn damaged_objects_are_errors(
        which in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let objects = golden();
        let mut bytes = objects[which.index(objects.len())].clone();
        damages.iter().for_each(|damage| apply(damage, &mut bytes));
        read_everything(&bytes);
    }

    #[test]
    fn damaged_frames_are_errors(damages in prop::collection::vec(damage(), 1..4)) {
        let mut bytes = ragged_frame();
        damages.iter().for_each(|damage| apply(damage, &mut bytes));
        read_everything(&bytes);
    }

    #[test]
    fn any_header_is_an_error_or_a_frame(
        json in "[ -~]{0,200}",
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.extend_from_slice(&data);
        read_everything(&bytes);
    }
}

#[test]
fn golden_files_hold_every_promise() {
    let frames: usize = golden().iter().map(|object| read_everything(object)).sum();
    // Twice each, once with corrected checksums.
    assert_eq!(frames, 2 * 10);
}

#[test]
fn every_single_flipped_bit_is_noticed() {
    for object in golden() {
        for bit in 0..object.len() * 8 {
            let mut damaged = object.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let noticed = Chunk::open(Bytes::from(damaged), &limits())
                .and_then(|chunk| {
                    (0..chunk.frames().len()).try_for_each(|i| chunk.frame(i).map(drop))
                })
                .is_err();
            assert!(noticed, "bit {bit}");
        }
    }
}

#[test]
fn every_truncation_is_noticed() {
    for object in golden() {
        for len in 0..object.len() {
            let cut = Bytes::copy_from_slice(&object[..len]);
            assert!(Chunk::open(cut, &limits()).is_err(), "{len} bytes");
        }
    }
}

#[test]
fn a_footer_is_read_from_any_tail_that_holds_it() {
    for object in golden() {
        let (len, limits) = (object.len() as u64, ChunkLimits::default());
        let whole = Footer::parse(&object, len, &limits).unwrap();
        for start in 0..object.len() {
            let tail = &object[start..];
            let needed = 24 + 40 * whole.frames().len();
            match Footer::parse(tail, len, &limits) {
                Ok(footer) => assert!(footer == whole && tail.len() >= needed),
                Err(ChunkFormatError::TailTooShort { tail_bytes }) => {
                    assert!(tail.len() < needed);
                    assert_eq!(tail_bytes, if tail.len() < 24 { 24 } else { needed as u64 });
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut object = golden()[0].clone();
    let at = object.len() - 16;
    object[at] = 2;
    reseal(&mut object).unwrap();
    assert_eq!(
        Chunk::open(Bytes::from(object), &limits()).unwrap_err(),
        ChunkFormatError::Unsupported { version: 2, supported: 1 }
    );
}

#[test]
fn limits_are_checked_by_name() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/zstd.chunk");
    let object = Bytes::from(std::fs::read(file).unwrap());
    let over = |limits: ChunkLimits| match Chunk::open(object.clone(), &limits)
        .and_then(|chunk| chunk.tensors(0))
        .unwrap_err()
    {
        ChunkFormatError::OverLimit { what, .. } => what,
        other => panic!("{other}"),
    };
    let most = ChunkLimits::default;
    assert_eq!(over(ChunkLimits { object_bytes: 100, ..most() }), "object size in bytes");
    assert_eq!(over(ChunkLimits { frames: 2, ..most() }), "number of frames");
    assert_eq!(over(ChunkLimits { frame_bytes: 1000, ..most() }), "frame size in bytes");
    assert_eq!(over(ChunkLimits { header_bytes: 32, ..most() }), "frame header size in bytes");
}

#[test]
fn frames_that_safetensors_would_misread_are_refused() {
    let frame = |json: &str, data_bytes: usize| {
        let json = format!("{json:<248}");
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 0);
        ChunkFrame::parse(Bytes::from(bytes), &limits())
    };
    let u8s = |name: &str, shape: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{from},{to}]}}"#)
    };
    // 256-byte headers require long names; the ones here would be canonical.
    let (a, b) = ("a".repeat(60), "b".repeat(60));
    let two = |first: String, second: String| format!("{{{first},{second}}}");
    assert!(frame(&two(u8s(&a, "2,4", 0, 8), u8s(&b, "2,1", 8, 10)), 10).is_ok());
    for (why, json, data_bytes) in [
        ("overlap", two(u8s(&a, "2,4", 0, 8), u8s(&b, "2,1", 7, 9)), 9),
        ("hole", two(u8s(&a, "2,4", 0, 8), u8s(&b, "2,1", 9, 11)), 11),
        ("trailing data", two(u8s(&a, "2,4", 0, 8), u8s(&b, "2,1", 8, 10)), 11),
        ("missing data", two(u8s(&a, "2,4", 0, 8), u8s(&b, "2,1", 8, 10)), 9),
        ("order", two(u8s(&b, "2,4", 0, 8), u8s(&a, "2,1", 8, 10)), 10),
        ("same name", two(u8s(&a, "2,4", 0, 8), u8s(&a, "2,1", 8, 10)), 10),
        ("other rows", two(u8s(&a, "2,4", 0, 8), u8s(&b, "1,2", 8, 10)), 10),
        ("no rows", two(u8s(&a, "0,4", 0, 0), u8s(&b, "0,1", 0, 0)), 0),
        ("scalar", two(u8s(&a, "2,4", 0, 8), u8s(&b, "", 8, 9)), 9),
        ("overflow", two(u8s(&a, "2,4", 0, 8), u8s(&b, "2,9223372036854775808", 8, 8)), 8),
        ("no bytes", two(u8s(&a, "2,0,4", 0, 0), u8s(&b, "2,0", 0, 0)), 0),
        ("metadata", two(u8s(&a, "2,4", 0, 8), r#""__metadata__":{"a":"b"}"#.into()), 8),
        ("nothing", "{}".into(), 0),
    ] {
        let error = frame(&json, data_bytes).unwrap_err();
        assert!(matches!(error, ChunkFormatError::Corrupt(_)), "{why}: {error}");
    }
}

#[test]
fn offsets_that_do_not_bound_rows_are_refused() {
    let frame = ragged_frame();
    let good = ChunkFrame::parse(Bytes::from(frame.clone()), &limits()).unwrap();
    let tensor = good.schema().index_of("text").unwrap();
    let at = good.layout().offsets(tensor).unwrap();
    let items = good.get("text").unwrap().shape()[0] as u64;
    for offsets in [
        [1, 1, 1, items],
        [0, 2, 1, items],
        [0, 0, 0, items + 1],
        [0, 0, 0, items - 1],
        [0, u64::MAX, 0, items],
    ] {
        let mut bytes = frame.clone();
        let words: Vec<u8> = offsets.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        bytes[at.clone()].copy_from_slice(&words);
        let error = ChunkFrame::parse(Bytes::from(bytes), &limits()).unwrap_err();
        assert!(error.to_string().contains("offsets of tensor \"text\""), "{error}");
    }
}

#[test]
fn nothing_hides_between_frames_and_index() {
    for object in golden() {
        let frames = Chunk::open(Bytes::from(object.clone()), &limits()).unwrap().frames().len();
        let footer = object.len() - 24 - 40 * frames;
        for more in [8, 64, 128] {
            let mut bytes = object.clone();
            bytes.splice(footer..footer, vec![0; more]);
            let error = Chunk::open(Bytes::from(bytes), &limits()).unwrap_err();
            assert!(matches!(error, ChunkFormatError::Corrupt(_)), "{error}");
        }
    }
}

/// Index entries with one false field each and a correct checksum.
#[test]
fn lying_index_entries_are_refused() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/remainder.chunk");
    let object = std::fs::read(file).unwrap();
    let first = object.len() - 24 - 80;
    let stored = u64::from_le_bytes(object[first + 16..first + 24].try_into().unwrap());
    let lies: [(&str, usize, Vec<u8>); 13] = [
        ("remainder first", first, vec![1]),
        ("unknown kind", first, vec![2]),
        ("unknown encoding", first + 1, vec![2]),
        ("reserved", first + 2, vec![1]),
        ("no rows", first + 4, vec![0; 4]),
        ("other rows", first + 4, vec![3]),
        ("inside the head", first + 8, 0u64.to_le_bytes().to_vec()),
        ("gap", first + 8, 128u64.to_le_bytes().to_vec()),
        ("end of numbers", first + 8, (u64::MAX - 63).to_le_bytes().to_vec()),
        ("longer", first + 16, (stored + 1).to_le_bytes().to_vec()),
        ("empty", first + 16, 0u64.to_le_bytes().to_vec()),
        ("other raw size", first + 24, (stored + 1).to_le_bytes().to_vec()),
        ("reserved", first + 36, vec![1]),
    ];
    for (why, at, lie) in lies {
        let mut bytes = object.clone();
        bytes[at..at + lie.len()].copy_from_slice(&lie);
        reseal(&mut bytes).unwrap();
        let opened = Chunk::open(Bytes::from(bytes), &limits());
        // The index alone does not determine the number of rows of a frame.
        let result = match opened {
            Ok(chunk) if why == "other rows" => chunk.tensors(0).map(drop),
            opened => opened.map(drop),
        };
        assert!(matches!(result, Err(ChunkFormatError::Corrupt(_))), "{why}: {result:?}");
    }
}
