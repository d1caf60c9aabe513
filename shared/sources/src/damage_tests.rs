//! Damaged files of every format in every packing: what lies before the damage is there, and what is lost is said.

use crate::{
    FORMATS, FileFormat, FileIndex, IndexBuilder, OpenedRecords, ParsedSource, RecordReader,
    samples,
    samples::{SampleRow, SampleValue},
};
use bytes::Bytes;
use gristmill_kernel::FieldCell;

const RECORDS: u32 = 2_000;

fn source(format: &FileFormat) -> ParsedSource {
    let name = format.name();
    let yaml = format!("{{ {name}: x, features: {{ v: {{ dtype: i64, shape: [1] }} }} }}");
    ParsedSource::from_yaml(&yaml).unwrap()
}

/// Formats of files that are scanned, with a file of each.
fn files() -> Vec<(FileFormat, Vec<u8>)> {
    let row = |i: u32| -> SampleRow { vec![("v", SampleValue::Ints(vec![i64::from(i)]))] };
    let rows: Vec<SampleRow> = (0..RECORDS).map(row).collect();
    let formats = FORMATS.iter().filter(|format| !format.is_packed);
    let formats = formats.map(|format| FileFormat::with_defaults(format.name).unwrap());
    formats.filter_map(|format| Some((format.clone(), format.sample(&rows)?))).collect()
}

fn rescued(format: &FileFormat, file: &[u8], piece: usize) -> FileIndex {
    let mut builder = IndexBuilder::for_file(format, file.len() as u64).unwrap();
    let mut pushed = 0;
    while let Some(range) = builder.wants() {
        let end = range.end.min(range.start.max(pushed) + piece as u64);
        let range = if format.name() == "parquet" { range } else { pushed..end };
        pushed = range.end;
        if builder.push(&file[range.start as usize..range.end as usize]).is_err() {
            break;
        }
    }
    builder.finish_or_rescue().unwrap()
}

/// The records of a split: their values, or why they cannot be read.
fn read(
    source: &ParsedSource,
    index: &FileIndex,
    file: &[u8],
    first: u32,
    n: u32,
) -> Vec<Result<i64, String>> {
    let ranges = index.stored_ranges(first, n, source).unwrap();
    let part = |range: &std::ops::Range<u64>| {
        Bytes::copy_from_slice(&file[range.start as usize..range.end as usize])
    };
    let parts: Vec<Bytes> = ranges.iter().map(part).collect();
    let OpenedRecords { data, index: own } = index.open_each(first, n, source, &parts).unwrap();
    let (index, reader) = (own.as_ref().unwrap_or(index), RecordReader::new(source));
    let mut at = 0;
    let sizes: Vec<u64> = index.sizes(first, n).collect();
    assert_eq!(sizes.len(), n as usize);
    let value = |(record, bytes): (u32, u64)| {
        let stored = &data[at..at + bytes as usize];
        at += bytes as usize;
        if let Some(fault) = index.fault_of(record) {
            return Err(fault.to_owned());
        }
        let mut cells = vec![FieldCell::default()];
        let (record, _) = reader.read(stored, &mut cells)?;
        let bytes = cells[0].value(record, &[]);
        Ok(i64::from_le_bytes(*bytes.first_chunk().unwrap()))
    };
    (first..).zip(sizes).map(value).collect()
}

/// Checks a damaged file; returns how many of its records are there.
fn check(format: &FileFormat, file: &[u8], what: &str) -> u32 {
    let source = source(format);
    let index = rescued(format, file, 1 << 20);
    assert_eq!(FileIndex::decode(&index.encode(), format), Ok(index.clone()), "{what}");
    let all = read(&source, &index, file, 0, index.len());
    let whole = all.iter().take_while(|value| value.is_ok()).count() as u32;
    for (i, value) in (0..).zip(&all[..whole as usize]) {
        assert_eq!(value, &Ok(i), "{what}: {:?}", index.lost_rest());
    }
    // Splits have what the file has.
    for first in (0..index.len()).step_by(97) {
        let n = 97.min(index.len() - first);
        let part = read(&source, &index, file, first, n);
        assert_eq!(part, all[first as usize..(first + n) as usize], "{what} {first}");
    }
    assert_eq!(index.weights(0, index.len()).len(), index.len() as usize, "{what}");
    if let Some(lost) = index.lost_rest() {
        assert!(
            lost.contains(" bytes of the file from byte ") || lost.contains("all of the file"),
            "{what}: {lost}"
        );
        assert_eq!(all.last().unwrap(), &Err(lost.to_owned()), "{what}");
    }
    whole
}

#[test]
fn a_file_that_is_cut_has_the_records_before_the_cut() {
    for (format, plain) in files() {
        let name = format.name();
        if name == "parquet" {
            let cut = &plain[..plain.len() / 2];
            assert_eq!(check(&format, cut, name), 0);
            assert_eq!(rescued(&format, cut, 1).len(), 1);
            continue;
        }
        let mut all = vec![plain.clone()];
        all.extend(samples::packed(&plain));
        for (packing, file) in (0..).zip(all) {
            assert_eq!(check(&format, &file, name), RECORDS, "{name} {packing}");
            assert_eq!(rescued(&format, &file, 1 << 20).lost_rest(), None);
            let cut = &file[..file.len() * 3 / 4];
            assert_eq!(rescued(&format, cut, 777), rescued(&format, cut, 1 << 20), "{name}");
            let found = check(&format, cut, name);
            // A stream of bzip2 that is cut has no whole block in it, and xz is read by chunks.
            assert!(found > RECORDS / 3, "{name} in packing {packing}: {found}");
        }
    }
}

#[test]
fn a_damaged_file_has_records_before_the_damage_and_none_that_is_wrong() {
    for (format, plain) in files().into_iter().filter(|(format, _)| format.name() != "parquet") {
        let name = format.name();
        let mut all = vec![plain.clone()];
        all.extend(samples::packed(&plain));
        for (packing, mut file) in (0..).zip(all) {
            let at = file.len() * 3 / 4;
            file[at..at + 60].fill(0xaa);
            let found = check(&format, &file, &format!("{name} in packing {packing}"));
            // The first of two frames is whole; the one member of gzip has no part that is certain.
            if packing != 1 {
                assert!(found >= RECORDS / 3, "{name} in packing {packing}: {found}");
            }
        }
    }
}

#[test]
fn rows_of_damaged_pages_are_faulty() {
    let (format, mut file) = files().pop().unwrap();
    assert_eq!(format.name(), "parquet");
    let (source, index) = (source(&format), rescued(&format, &file, 0));
    let good = read(&source, &index, &file, 0, RECORDS);
    assert!((0..).zip(&good).all(|(i, value)| value == &Ok(i)));
    // The header of a page.
    let at = index.stored_ranges(RECORDS / 2, 1, &source).unwrap()[0].start as usize;
    file[at..at + 9].fill(0xaa);
    let found = read(&source, &index, &file, 0, RECORDS);
    let faulty = found.iter().filter(|value| value.is_err()).count();
    assert!(faulty > 0, "{faulty}");
    assert!(good.iter().zip(&found).all(|(good, found)| found.is_err() || good == found));
    for (first, n) in [(0, 7), (RECORDS / 2 - 3, 9), (RECORDS - 1, 1)] {
        let part = read(&source, &index, &file, first, n);
        assert_eq!(part, found[first as usize..(first + n) as usize]);
    }
}

#[test]
fn files_of_another_kind_are_not_damaged() {
    let format = FileFormat::with_defaults("csv").unwrap();
    for file in [
        "\u{feff}v\n1\n".encode_utf16().flat_map(u16::to_le_bytes).collect(),
        b"\x04\x22\x4d\x18\x64\x40\xa7\0\0\0\0\0\0".to_vec(),
    ] {
        let mut builder = IndexBuilder::new(&format).unwrap();
        let _ = builder.push(&file);
        builder.finish_or_rescue().unwrap_err();
    }
}
