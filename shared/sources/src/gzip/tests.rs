//! Files that were compressed, whole, cut, damaged and lying.

use super::*;
use crate::{
    FileIndex, IndexBuilder, ParsedSource, SourceLimits, jsonl::Jsonl, parquet::Parquet,
    tfrecord::TfRecord,
};
use bytes::Bytes;
use miniz_oxide::deflate::compress_to_vec;
use proptest::prelude::*;

/// One member with all optional parts of a header.
fn member(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0b1_1110, 1, 2, 3, 4, 0, 255];
    out.extend([3, 0, b'a', b'b', b'c']);
    out.extend(b"name\0comment\0\x12\x34");
    out.extend(compress_to_vec(content, 6));
    out.extend(crc32fast::hash(content).to_le_bytes());
    out.extend((content.len() as u32).to_le_bytes());
    out
}

/// Lines that compress well but not to nothing.
fn lines(n: u32) -> Vec<u8> {
    let mut state = 1_u32;
    let mut line = |i: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        format!("{{\"v\": [{i}, {}, {}]}}\n", state >> 8, state % 97)
    };
    (0..n).flat_map(|i| line(i).into_bytes()).collect()
}

fn index(file: &[u8], piece: usize) -> Result<FileIndex, String> {
    let mut builder = IndexBuilder::new(&Jsonl.into()).unwrap();
    let pushed = file.chunks(piece).try_for_each(|piece| builder.push(piece));
    pushed.and_then(|()| builder.finish()).map_err(|error| error.to_string())
}

fn points(file: &[u8]) -> GzipAccessPoints {
    let mut unpacker = GzipUnpacker::default();
    unpacker.push(file, |what| what, |_| Ok(())).unwrap();
    unpacker.check_end().unwrap();
    unpacker.stop()
}

fn unpack(points: &GzipAccessPoints, file: &[u8], range: Range<u64>) -> Vec<u8> {
    let packed = points.packed_range(&range);
    points.unpack(&file[packed.start as usize..packed.end as usize], range).unwrap()
}

#[test]
fn any_part_can_be_read_from_the_point_before_it() {
    let content = lines(220_000);
    assert!(content.len() > 6 << 20);
    let (first, second) = content.split_at(2_500_000);
    let file = [member(first), member(second), vec![0; 700]].concat();
    let points = points(&file);
    assert!(points.points.len() > 5, "{}", points.points.len());
    assert!(points.points.iter().any(|point| !matches!(point.bits, None | Some((0, _)))));
    let bytes = content.len() as u64;
    for start in [0, 1, 1 << 20, 2_499_999, 2_500_000, 3 << 20, bytes - 10] {
        for length in [0, 1, 10, 100_000, 2 << 20] {
            let range = start..(start + length).min(bytes);
            let wanted = &content[range.start as usize..range.end as usize];
            assert!(unpack(&points, &file, range.clone()) == wanted, "{range:?}");
        }
    }
    // A part costs about its own bytes, not those before it.
    let packed = points.packed_range(&(5 << 20..(5 << 20) + 1000));
    assert!(packed.end - packed.start < file.len() as u64 / 2, "{packed:?}");
    assert_eq!(points.packed_range(&(0..bytes)).start, 0);

    let mut stored = Vec::new();
    points.encode(&mut stored);
    let mut rest = stored.as_slice();
    assert_eq!(GzipAccessPoints::decode(&mut rest), Ok(points));
    assert!(rest.is_empty());
    for end in (0..stored.len()).step_by(1001) {
        assert!(GzipAccessPoints::decode(&mut &stored[..end]).is_err());
    }
}

#[test]
fn splits_of_a_compressed_file_are_those_of_the_file() {
    let content = lines(60_000);
    let file = member(&content);
    let (plain, packed) = (index(&content, 1 << 20).unwrap(), index(&file, 1 << 20).unwrap());
    assert_eq!(packed.len(), plain.len());
    assert_eq!(index(&file, 1013), Ok(packed.clone()));
    let stored = packed.encode();
    assert_eq!(FileIndex::decode(&stored, &Jsonl.into()), Ok(packed.clone()));
    assert!(FileIndex::decode(&stored, &Parquet.into()).is_err());
    let source =
        ParsedSource::from_yaml("{ jsonl: x, features: { v: { dtype: i64, shape: [3] } } }")
            .unwrap();
    for (first, n) in [(0, 10), (30_000, 64), (59_999, 1), (0, 60_000)] {
        let ranges = packed.stored_ranges(first, n, &source).unwrap();
        let part = |range: &Range<u64>| {
            Bytes::copy_from_slice(&file[range.start as usize..range.end as usize])
        };
        let parts: Vec<Bytes> = ranges.iter().map(part).collect();
        let records = packed.open(first, n, &source, &parts).unwrap();
        let range = plain.byte_range(first, n).unwrap();
        assert!(records.data == content[range.start as usize..range.end as usize]);
        assert_eq!((packed.byte_range(first, n), records.index), (Some(range), None));
        if n < 1000 {
            continue;
        }
        let cut: Vec<Bytes> = parts.iter().map(|part| part.slice(..part.len() / 2)).collect();
        let error = packed.open(first, n, &source, &cut).unwrap_err().to_string();
        assert!(error.contains("gzip: it ends at unpacked byte"), "{error}");
    }
    assert!(packed.stored_ranges(59_999, 2, &source).is_err());
}

#[test]
fn files_that_are_not_whole_or_lie_are_refused() {
    let content = lines(20);
    let file = member(&content);
    for end in HEAD..file.len() {
        let error = index(&file[..end], 7).unwrap_err();
        assert!(error.contains("it is cut short"), "{end}: {error}");
    }
    let damaged = |at: usize, bits: u8| {
        let mut file = file.clone();
        file[at] ^= bits;
        index(&file, 1000).unwrap_err()
    };
    assert!(damaged(file.len() - 1, 1).contains("checksum does not match its content"));
    assert!(damaged(file.len() - 8, 1).contains("checksum does not match its content"));
    assert!(damaged(3, 0x80).contains("flags that nobody has defined"));
    let more = |tail: &[u8]| index(&[&file[..], tail].concat(), 1000).unwrap_err();
    assert!(more(b"rubbish").contains("does not start as one"));
    assert!(more(&[0, 0, 1]).contains("something behind its gzip members"));
    assert!(more(&file[..3]).contains("it is cut short"));
    // The unpacked content is checked as any file.
    let bomb = member(&vec![b'x'; 3000]);
    let mut builder =
        IndexBuilder::with_limits(&Jsonl.into(), SourceLimits { record_bytes: 1000, records: 9 })
            .unwrap();
    let error = builder.push(&bomb).unwrap_err().to_string();
    assert!(error.contains("record 0 at byte 0: its line has more than 1000 bytes"), "{error}");
    assert!(builder.push(b"").is_err() && builder.finish().is_err());
}

/// Bytes by which a file is known.
const HEAD: usize = 12;

#[test]
fn a_record_may_begin_as_a_compressed_file_does() {
    let record = crate::samples::framed(&vec![7; 0x08_8b1f]);
    assert!(record.starts_with(&MAGIC));
    let mut builder = IndexBuilder::new(&TfRecord.into()).unwrap();
    builder.push(&record).unwrap();
    assert_eq!(builder.finish().unwrap().len(), 1);
    let mut builder = IndexBuilder::new(&TfRecord.into()).unwrap();
    builder.push(&member(&record)).unwrap();
    assert_eq!(builder.finish().unwrap().len(), 1);
}

#[test]
fn there_are_never_too_many_points() {
    // Bytes of little content, in members of their own: a point could be at each.
    let part = member(&vec![b'\n'; 1 << 20]);
    let points = points(&part.repeat(700));
    assert!((100..=MAX_POINTS).contains(&points.points.len()), "{}", points.points.len());
    assert_eq!(points.memory_bytes(), points.points.len() * size_of::<Point>());
}

proptest! {
    #[test]
    fn damage_is_found_or_harmless(at in any::<prop::sample::Index>(), bit in 0_u32..8, piece in 1_usize..50) {
        let mut file = member(&lines(40));
        let at = at.index(file.len());
        file[at] ^= 1_u8 << bit;
        let whole = index(&file, file.len());
        prop_assert_eq!(index(&file, piece).ok(), whole.clone().ok());
        if let Err(error) = whole {
            prop_assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn pieces_of_any_size_give_the_same_index(n in 0_u32..3000, piece in 1_usize..2000, cut in 0_usize..1000) {
        let content = lines(n);
        let (first, second) = content.split_at(cut.min(content.len()));
        let file = [member(first), member(second)].concat();
        prop_assert_eq!(index(&file, piece), index(&file, file.len()));
        prop_assert_eq!(index(&file, piece).unwrap().len(), n);
    }
}
