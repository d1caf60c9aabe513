//! Files of one and of many frames, whole, cut, damaged and lying.

use super::*;
use crate::{FileIndex, IndexBuilder, ParsedSource, jsonl::Jsonl, samples, tfrecord::TfRecord};
use bytes::Bytes;
use proptest::prelude::*;
use std::fs;

/// Lines that compress well but not to nothing.
fn lines(n: u32, mut state: u32) -> Vec<u8> {
    let mut line = |i: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let more = "x".repeat((state >> 24) as usize % 40);
        format!("{{\"v\": {i}, \"t\": \"{} {more}\"}}\n", state >> 8)
    };
    (0..n).flat_map(|i| line(i).into_bytes()).collect()
}

fn index(file: &[u8], piece: usize) -> Result<FileIndex, String> {
    let mut builder = IndexBuilder::new(&Jsonl.into()).unwrap();
    let pushed = file.chunks(piece).try_for_each(|piece| builder.push(piece));
    pushed.and_then(|()| builder.finish()).map_err(|error| error.to_string())
}

fn source() -> ParsedSource {
    ParsedSource::from_yaml("{ jsonl: x, features: { v: { dtype: i64 } } }").unwrap()
}

fn read(index: &FileIndex, file: &[u8], first: u32, n: u32) -> Result<Bytes, String> {
    let source = source();
    let ranges = index.stored_ranges(first, n, &source).unwrap();
    let part = |range: Range<u64>| file[range.start as usize..range.end as usize].to_vec().into();
    let parts: Vec<Bytes> = ranges.into_iter().map(part).collect();
    index.open(first, n, &source, &parts).map(|opened| opened.data).map_err(|error| error.0)
}

/// Compares records `first .. first + n` of a packed file, read alone and with their blocks, with those of the file.
fn compare(packed: (&FileIndex, &[u8]), plain: (&FileIndex, &[u8]), first: u32, n: u32) {
    let (index, file) = packed;
    let range = plain.0.byte_range(first, n).unwrap();
    let wanted = &plain.1[range.start as usize..range.end as usize];
    assert_eq!(index.byte_range(first, n), Some(range));
    assert!(read(index, file, first, n).unwrap() == wanted, "{first} {n}");
    let Some(blocks) = index.blocks(first, n, &source()) else { return };
    assert!(blocks.windows(2).all(|pair| pair[0].rows.end == pair[1].rows.start));
    let (rows, end) = (blocks[0].rows.start, blocks.last().unwrap().rows.end);
    assert!(rows <= first && end >= first + n && blocks.iter().all(|block| !block.rows.is_empty()));
    let of_block = |block: &crate::BlockRange| {
        let n = block.rows.end - block.rows.start;
        let bytes = read(index, file, block.rows.start, n).unwrap();
        assert_eq!(bytes.len() as u64, block.bytes);
        bytes
    };
    let all: Vec<u8> = blocks.iter().flat_map(of_block).collect();
    let range = plain.0.byte_range(rows, end - rows).unwrap();
    assert!(all == plain.1[range.start as usize..range.end as usize], "{first} {n}");
}

#[test]
fn files_of_any_frames_have_the_records_of_the_unpacked_file() {
    for kind in FrameKind::ALL {
        for seed in 0..200_u32 {
            let mut draw = seed.wrapping_mul(2_654_435_761);
            let mut next = |below: u32| {
                draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (draw >> 8) % below
            };
            let content = lines([0, 1, 30, 3_000, 12_000][next(5) as usize], seed);
            let mut cuts: Vec<usize> =
                (0..next(6)).map(|_| next(content.len() as u32 + 1) as usize).collect();
            cuts.extend([0, content.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> =
                cuts.windows(2).map(|ends| &content[ends[0]..ends[1]]).collect();
            let together = next(4) as usize + 1;
            let mut file = Vec::new();
            for parts in parts.chunks(together) {
                file.extend(samples::frames(kind, parts));
                file.extend(vec![0; next(2) as usize * 8]);
            }
            let plain = index(&content, usize::MAX).unwrap();
            let packed = index(&file, 1 << next(20)).unwrap();
            assert_eq!(packed.len(), plain.len(), "{kind:?} {seed}");
            assert_eq!(FileIndex::decode(&packed.encode(), &Jsonl.into()), Ok(packed.clone()));
            for _ in 0..3 {
                let first = next(plain.len() + 1);
                let n = next(plain.len() - first + 1);
                compare((&packed, &file), (&plain, &content), first, n);
            }
        }
    }
}

/// Files that `scripts/make-golden packed` has made, by the content that they have.
#[test]
fn files_of_other_programs_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/packed");
    let content = samples::golden_lines();
    let plain = index(&content, usize::MAX).unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let file = fs::read(&path).unwrap();
        if name.starts_with("empty") {
            assert_eq!(index(&file, 5).unwrap().len(), 0, "{name}");
            continue;
        }
        let packed = index(&file, 10_001).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (first, n) in [(0, 10), (7_000, 9_000), (19_999, 1), (0, 20_000)] {
            compare((&packed, &file), (&plain, &content), first, n);
        }
        // Frames are a reason to read less.
        let is_split = packed.stored_ranges(19_000, 9, &source()).unwrap()[0].start > 0;
        assert_eq!(is_split, !name.contains("one"), "{name}");
        names.push(name);
    }
    assert!(names.len() >= 9, "{names:?}");
}

#[test]
fn files_that_are_not_whole_or_lie_are_refused() {
    for kind in FrameKind::ALL {
        let name = kind.name();
        let content = lines(400, 1);
        let (first, second) = content.split_at(content.len() / 2);
        let file = samples::frames(kind, &[first, second]);
        // A file of zstd or bzip2 that is cut between two frames does not show it.
        let whole = samples::frames(kind, &[first]).len();
        for end in (12..file.len()).filter(|end| end % 7 == 0 && *end != whole) {
            let error = index(&file[..end], 50).unwrap_err();
            let starts_none = index(&file[..end], 1).unwrap_err();
            assert_eq!(error, starts_none);
            assert!(
                error.contains(&format!("the {name} file ends at byte {end}: it is cut")),
                "{error}"
            );
        }
        let more = |tail: &[u8]| index(&[&file[..], tail].concat(), 1000).unwrap_err();
        let behind =
            format!("no {} of {name} begins here", if name == "zstd" { "frame" } else { "stream" });
        for tail in [&b"rubbish"[..], &[0, 0, 0, 0, 9, 9, 9, 9, 9]] {
            let error = more(tail);
            assert!(error.contains(&behind) && error.starts_with("byte "), "{error}");
        }
        let mut damaged = file.clone();
        let at = file.len() / 3;
        damaged[at..at + 40].fill(0x55);
        let error = index(&damaged, 1000).unwrap_err();
        assert!(
            error.contains(&format!("of the {name} file: its compressed data is damaged")),
            "{error}"
        );
        // The unpacked content is checked as any file.
        let bad = samples::frames(kind, &[b"\xff\xfe{\0}\0"]);
        assert!(index(&bad, 100).unwrap_err().contains("the text is UTF-16"));
    }
}

#[test]
fn large_windows_are_refused_by_name() {
    // A frame's header: no single segment, a window of 256 MiB.
    let zstd = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, (28 - 10) << 3][..], &[0; 40]].concat();
    let error = index(&zstd, 100).unwrap_err();
    assert!(error.contains("its window is larger than 128 MiB, the limit"), "{error}");
    // A block's header: LZMA2 with a dictionary of 96 MiB.
    let mut block = vec![2, 0, 0x21, 1, 29, 0, 0, 0];
    block.extend(crc32fast::hash(&block).to_le_bytes());
    let xz = [&xz::header(1)[..], &block, &[0; 40]].concat();
    let error = index(&xz, 100).unwrap_err();
    assert!(error.contains("its dictionary is larger than 64 MiB, the limit"), "{error}");
}

#[test]
fn other_packings_are_refused_by_name() {
    let files: [(&[u8], &str); 5] = [
        (b"\x78\x9c\xab\x56\x2a\x4b\xcc\x29\x4d\x05\0\0\0\0", "zlib"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7\0\0\0\0\0\0", "lz4"),
        (b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0\x3d", "lzma"),
        (b"PK\x03\x04\x14\0\0\0\0\0\0\0\0", "zip"),
        (b"\xff\x06\0\0sNaPpY\0\0\0\0", "snappy"),
    ];
    for (file, name) in files {
        let error = index(file, 1).unwrap_err();
        assert!(error.contains(&format!("compressed with {name}, and gzip, zstd")), "{error}");
    }
    // The length of a record may begin like any of them.
    let record = samples::framed(&vec![7; 0x9c78]);
    let mut builder = IndexBuilder::new(&TfRecord.into()).unwrap();
    builder.push(&record).unwrap();
    assert_eq!(builder.finish().unwrap().len(), 1);
}

#[test]
fn there_are_never_too_many_points() {
    let part = samples::frames(FrameKind::Zstd, &[&vec![b'\n'; MIN_SPACING_BYTES as usize]]);
    let mut unpacker = FrameUnpacker::new(FrameKind::Zstd);
    for _ in 0..MAX_POINTS + 100 {
        unpacker.push(&part, |what| what, |_| Ok(())).unwrap();
    }
    unpacker.check_end().unwrap();
    let points = unpacker.stop();
    assert!((MAX_POINTS / 3..=MAX_POINTS).contains(&points.points.len()));
    let mut stored = Vec::new();
    points.encode(&mut stored);
    assert!(stored.len() < MAX_STORED_BYTES);
    assert_eq!(FramePoints::decode(&mut stored.as_slice()), Ok(points));
}

proptest! {
    #[test]
    fn damage_is_found_or_harmless(
        kind in 0_usize..3, at in any::<prop::sample::Index>(), bit in 0_u32..8, piece in 1_usize..50,
    ) {
        let content = lines(40, 3);
        let (first, second) = content.split_at(content.len() / 2);
        let mut file = samples::frames(FrameKind::ALL[kind], &[first, second]);
        let at = at.index(file.len());
        file[at] ^= 1_u8 << bit;
        let whole = index(&file, file.len());
        prop_assert_eq!(index(&file, piece).ok(), whole.clone().ok());
        if let Err(error) = whole {
            prop_assert!(!error.contains('\n'));
        }
    }
}
