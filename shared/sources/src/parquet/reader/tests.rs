//! Files as writers make them, and what is wrong with others.

mod blocks;
mod golden;

use super::*;
use crate::{
    Feature, FeatureDType, FileIndex, IndexBuilder, ParsedSource, RecordReader, parquet::Parquet,
};
use ::parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type},
    file::{
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion},
        writer::SerializedFileWriter,
    },
    schema::parser::parse_message_type,
};
use gristmill_kernel::FieldCell;

const SCHEMA: &str = "
message rows {
  required int64 id;
  optional double score;
  required boolean flag;
  optional binary text (STRING);
  optional group tokens (LIST) { repeated group list { optional int32 element; } }
  required group meta { required float x; }
}";

/// Options of a writer, and whether it says where pages are.
struct Style {
    properties: WriterPropertiesBuilder,
    rows: [usize; 2],
}

fn style(version: WriterVersion, compression: Compression) -> Style {
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(compression)
        .set_data_page_row_count_limit(7)
        .set_write_batch_size(5);
    Style { properties, rows: [60, 41] }
}

fn tokens(row: usize) -> Vec<i32> {
    (0..row % 5).map(|i| (row * 10 + i) as i32 - 50).collect()
}

/// Definition and repetition levels of the lists of some rows; every seventh is null.
fn list_levels(rows: Range<usize>) -> (Vec<i32>, Vec<i16>, Vec<i16>) {
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let tokens = if row % 7 == 3 { Vec::new() } else { tokens(row) };
        if tokens.is_empty() {
            definition.push(if row % 7 == 3 { 0 } else { 1 });
            repetition.push(0);
        }
        for (i, token) in tokens.iter().enumerate() {
            values.push(*token);
            definition.push(3);
            repetition.push(i16::from(i > 0));
        }
    }
    (values, definition, repetition)
}

fn file(style: Style) -> Bytes {
    let schema = parse_message_type(SCHEMA).unwrap().into();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema, style.properties.build().into()).unwrap();
    let mut first = 0;
    for rows in style.rows {
        let range = first..first + rows;
        first += rows;
        let mut group = writer.next_row_group().unwrap();
        let mut column = 0;
        while let Some(mut writer) = group.next_column().unwrap() {
            let rows = range.clone();
            match column {
                0 => {
                    let values: Vec<i64> = rows.map(|row| row as i64).collect();
                    writer.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
                }
                1 => {
                    let levels: Vec<i16> =
                        rows.clone().map(|row| i16::from(row % 10 != 9)).collect();
                    let values = rows.filter(|row| row % 10 != 9).map(|row| row as f64 / 8.0);
                    let values: Vec<f64> = values.collect();
                    writer.typed::<DoubleType>().write_batch(&values, Some(&levels), None).unwrap();
                }
                2 => {
                    let values: Vec<bool> = rows.map(|row| row % 2 == 1).collect();
                    writer.typed::<BoolType>().write_batch(&values, None, None).unwrap();
                }
                3 => {
                    let text = |row| ByteArray::from(format!("row {}", row % 4).into_bytes());
                    let values: Vec<ByteArray> = rows.clone().map(text).collect();
                    let levels = vec![1; rows.len()];
                    writer
                        .typed::<ByteArrayType>()
                        .write_batch(&values, Some(&levels), None)
                        .unwrap();
                }
                4 => {
                    let (values, definition, repetition) = list_levels(rows);
                    let writer = writer.typed::<Int32Type>();
                    writer.write_batch(&values, Some(&definition), Some(&repetition)).unwrap();
                }
                _ => {
                    let values: Vec<f32> = rows.map(|row| row as f32 / 2.0).collect();
                    writer.typed::<FloatType>().write_batch(&values, None, None).unwrap();
                }
            }
            writer.close().unwrap();
            column += 1;
        }
        group.close().unwrap();
    }
    Bytes::from(writer.into_inner().unwrap())
}

fn features(wanted: &[(&str, FeatureDType, &[Option<u32>])]) -> ParsedSource {
    let feature = |(key, dtype, shape): &(&str, FeatureDType, &[Option<u32>])| {
        let feature =
            Feature { key: (*key).into(), dtype: *dtype, shape: shape.to_vec(), default: None };
        (key.replace('.', "_"), feature)
    };
    let features = wanted.iter().map(feature).collect();
    ParsedSource { paths: Vec::new(), format: Parquet.into(), features }
}

fn source() -> ParsedSource {
    features(&[
        ("flag", FeatureDType::I64, &[]),
        ("id", FeatureDType::I64, &[]),
        ("meta.x", FeatureDType::F32, &[]),
        ("score", FeatureDType::F32, &[]),
        ("text", FeatureDType::Bytes, &[]),
        ("tokens", FeatureDType::I64, &[None]),
    ])
}

/// The index of a file, and how much of it was read for that.
fn index(file: &Bytes) -> (FileIndex, u64) {
    let mut builder = IndexBuilder::for_file(&Parquet.into(), file.len() as u64).unwrap();
    let mut bytes = 0;
    while let Some(range) = builder.wants() {
        bytes += range.end - range.start;
        builder.push(&file[range.start as usize..range.end as usize]).unwrap();
    }
    (builder.finish().unwrap(), bytes)
}

fn parts(index: &FileIndex, file: &Bytes, first: u32, n: u32, source: &ParsedSource) -> Vec<Bytes> {
    let ranges = index.stored_ranges(first, n, source).unwrap();
    ranges.into_iter().map(|range| file.slice(range.start as usize..range.end as usize)).collect()
}

/// The values of some rows, by feature.
fn rows(
    index: &FileIndex,
    file: &Bytes,
    first: u32,
    n: u32,
    source: &ParsedSource,
) -> Vec<Result<Vec<Vec<u8>>, String>> {
    let records = index.open(first, n, source, &parts(index, file, first, n, source)).unwrap();
    let window = records.index.unwrap();
    let all = window.byte_range(first, n).unwrap();
    assert_eq!(all, 0..records.data.len() as u64);
    let reader = RecordReader::new(source);
    let row = |row| {
        let range = window.byte_range(row, 1).unwrap();
        let record = &records.data[range.start as usize..range.end as usize];
        let mut cells: Vec<FieldCell> =
            source.features.iter().map(|_| FieldCell::default()).collect();
        reader.read(record, &mut cells)?;
        cells.iter_mut().map(|cell| Ok(cell.split(record, None)?.0.to_vec())).collect()
    };
    (first..first + n).map(row).collect()
}

fn expected(row: usize) -> Result<Vec<Vec<u8>>, String> {
    match row {
        _ if row % 10 == 9 => return Err("column `score` is null".into()),
        _ if row % 7 == 3 => return Err("column `tokens` is null".into()),
        _ => {}
    }
    Ok(vec![
        ((row % 2) as i64).to_le_bytes().to_vec(),
        (row as i64).to_le_bytes().to_vec(),
        (row as f32 / 2.0).to_le_bytes().to_vec(),
        (row as f32 / 8.0).to_le_bytes().to_vec(),
        format!("row {}", row % 4).into_bytes(),
        tokens(row).iter().flat_map(|token| i64::from(*token).to_le_bytes()).collect(),
    ])
}

#[test]
fn rows_of_every_writer_are_read() {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for (version, compression) in [
        (WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED),
        (WriterVersion::PARQUET_1_0, Compression::SNAPPY),
        (WriterVersion::PARQUET_2_0, zstd),
        (WriterVersion::PARQUET_2_0, Compression::LZ4_RAW),
        (WriterVersion::PARQUET_1_0, Compression::GZIP(Default::default())),
    ] {
        for (says_pages, dictionary) in [(true, true), (false, true), (false, false)] {
            let mut style = style(version, compression);
            style.properties = style
                .properties
                .set_offset_index_disabled(!says_pages)
                .set_statistics_enabled(EnabledStatistics::Chunk)
                .set_dictionary_enabled(dictionary)
                .set_column_encoding("id".into(), Encoding::DELTA_BINARY_PACKED);
            let file = file(style);
            let (index, _) = index(&file);
            assert_eq!(index.len(), 101);
            assert_eq!(index.byte_range(0, 1), None);
            let again = FileIndex::decode(&index.encode(), &Parquet.into()).unwrap();
            assert!(again == index);
            let mut builder = IndexBuilder::new(&Parquet.into()).unwrap();
            file.chunks(1000).for_each(|piece| builder.push(piece).unwrap());
            assert!(builder.finish().unwrap() == index);
            for (first, n) in [(0, 101), (0, 1), (13, 20), (55, 10), (59, 1), (60, 41), (100, 1)] {
                let rows = rows(&index, &file, first, n, &source());
                for (row, got) in (first as usize..).zip(rows) {
                    assert_eq!(got, expected(row), "{version:?} {compression} row {row}");
                }
            }
            assert!(index.stored_ranges(100, 2, &source()).is_err());
            // Pages are known either way.
            let Packed { some, all } = Packed::measure(&index, &file);
            assert!(some < all, "{some} of {all}");
        }
    }
}

/// How much of a file is read for ten rows of one column, and for all.
struct Packed {
    some: usize,
    all: usize,
}

impl Packed {
    fn measure(index: &FileIndex, file: &Bytes) -> Packed {
        let source = features(&[("tokens", FeatureDType::I64, &[None])]);
        let bytes = |first, n| parts(index, file, first, n, &source).iter().map(Bytes::len).sum();
        Packed { some: bytes(20, 10), all: bytes(0, 60) }
    }
}

#[test]
fn files_with_a_page_index_are_indexed_from_their_end() {
    let mut large = style(WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED);
    large.rows = [40_000, 40_000];
    large.properties =
        large.properties.set_data_page_row_count_limit(2000).set_dictionary_enabled(false);
    let file = file(large);
    let (index, read) = index(&file);
    assert!(read < file.len() as u64 / 4, "{read} of {}", file.len());
    let rows = rows(&index, &file, 39_990, 20, &source());
    assert!((39_990..).zip(rows).all(|(row, got)| got == expected(row)));
    assert!(index.encode().len() < 20_000 && index.memory_bytes() < 100_000);
}

#[test]
fn columns_that_cannot_be_read_are_named() {
    let file = file(style(WriterVersion::PARQUET_1_0, Compression::SNAPPY));
    let (index, _) = index(&file);
    use FeatureDType::{Bytes as Text, F32, I64};
    for (key, dtype, shape, words) in [
        ("nothing", I64, &[][..], "there is no column `nothing`; it has `id`, `score`, `flag`"),
        ("meta", F32, &[], "there is no column `meta`"),
        ("id", Text, &[], "column `id` is INT64, which cannot be read as bytes"),
        ("text", I64, &[], "column `text` is BYTE_ARRAY, which cannot be read as i64"),
        ("score", I64, &[], "column `score` is DOUBLE, which cannot be read as i64"),
        ("flag", F32, &[], "column `flag` is BOOLEAN, which cannot be read as f32"),
        ("tokens", I64, &[], "column `tokens` is a list, 1 deep, the pipeline reads 0 dimensions"),
        ("id", I64, &[None], "column `id` is one value a row: leave out `shape`"),
    ] {
        let error = index.stored_ranges(0, 1, &features(&[(key, dtype, shape)])).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }
    let stored = features(&[("tokens.list.element", F32, &[Some(2)])]);
    let rows = rows(&index, &file, 0, 4, &stored);
    let two: Vec<u8> = [-30_f32, -29.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let counts =
        |n| Err(format!("column `tokens.list.element` has {n} values, the pipeline reads 2"));
    assert_eq!(rows[..3], [counts(0), counts(1), Ok(vec![two])]);
}

#[test]
fn a_column_that_a_file_lacks_has_the_default_of_its_feature() {
    use FeatureDType::{Bytes as Text, F32, I64};
    let file = file(style(WriterVersion::PARQUET_1_0, Compression::SNAPPY));
    let (index, _) = index(&file);
    let mut source = features(&[
        ("id", I64, &[]),
        ("new", F32, &[Some(2)]),
        ("score", F32, &[]),
        ("word", Text, &[]),
    ]);
    let mut put = |field: &str, default: &str| {
        source.features.get_mut(field).unwrap().default = Some(default.to_owned());
    };
    put("new", "1 2");
    put("word", "none");
    // It is there, and null in the row 9.
    put("score", "7");
    let found = rows(&index, &file, 8, 2, &source);
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for (row, score, found) in [(8_i64, 1.0, &found[0]), (9, 7.0, &found[1])] {
        let (id, new) = (row.to_le_bytes().to_vec(), floats(&[1.0, 2.0]));
        assert_eq!(found, &Ok(vec![id, new, floats(&[score]), b"none".to_vec()]));
    }
    let mut none = features(&[("nothing", I64, &[])]);
    none.features.get_mut("nothing").unwrap().default = Some("1".to_owned());
    let error = index.stored_ranges(0, 1, &none).unwrap_err().to_string();
    assert!(error.contains("there is no column `nothing`; it has `id`"), "{error}");
}

#[test]
fn wide_numbers_are_exact_or_refused() {
    let schema = "message rows { required int64 u (INTEGER(64,false)); required double d; }";
    let schema = parse_message_type(schema).unwrap().into();
    let properties = WriterProperties::builder().build().into();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let (whole, real) = ([7, u64::MAX, i64::MAX as u64 + 1], [0.1, f64::MAX, -2.5e-300]);
    let mut column = group.next_column().unwrap().unwrap();
    let stored = whole.map(|value| value as i64);
    column.typed::<Int64Type>().write_batch(&stored, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<DoubleType>().write_batch(&real, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let file = Bytes::from(writer.into_inner().unwrap());
    let (index, _) = index(&file);
    use FeatureDType::{F32, F64, I64, U64};
    let of = |key, dtype| rows(&index, &file, 0, 3, &features(&[(key, dtype, &[])]));
    assert_eq!(of("u", U64), whole.map(|value| Ok(vec![value.to_le_bytes().to_vec()])));
    assert_eq!(of("d", F64), real.map(|value| Ok(vec![value.to_le_bytes().to_vec()])));
    let widened = whole.map(|value| Ok(vec![(value as f64).to_le_bytes().to_vec()]));
    assert_eq!(of("u", F64), widened);
    let error = of("u", I64)[1].clone().unwrap_err();
    assert_eq!(error, "column `u` holds 18446744073709551615, which is no i64");
    assert!(of("d", F32)[1].clone().unwrap_err().contains("which is no f32"));
    let error = index.stored_ranges(0, 1, &features(&[("d", U64, &[])])).unwrap_err().to_string();
    assert!(error.contains("column `d` is DOUBLE, which cannot be read as u64"), "{error}");
}

/// Two rows, as pyarrow 26 writes them.
const BROTLI: &[u8] = b"\
    PAR1\x15\x00\x15\x1c\x15\x1e,\x15\x04\x15\x00\x15\x06\x15\x06\x1c\x00\x00\x00\x1b\
    \x0d\x00\x00\xa4\x01\x02\x04\x08\x86-\x01\x1a\x9e\x00\x15\x04\x19,5\x00\x18\x06schem\
    a\x15\x02\x00\x15\x02%\x02\x18\x01a\x00\x16\x04\x19\x1c\x19\x1c&\x00\x1c\x15\x02\x19\
    %\x06\x00\x19\x18\x01a\x15\x08\x16\x04\x16B\x16D&\x08I\x1c\x15\x00\x15\x00\x15\x02\
    \x00<)\x06\x19&\x00\x04\x00\x00\x00\x16B\x16\x04&\x08\x16D\x00( parquet-cpp-arrow ve\
    rsion 26.0.1\x19\x1c\x1c\x00\x00\x00z\x00\x00\x00PAR1";

#[test]
fn codecs_that_are_not_read_are_named() {
    let mut builder = IndexBuilder::new(&Parquet.into()).unwrap();
    let outcome = builder.push(BROTLI).and_then(|()| builder.finish().map(|_| ()));
    assert!(outcome.unwrap_err().to_string().contains("compressed with Brotli"));
}

#[test]
fn files_that_lie_are_refused_or_harmless() {
    let good = file(style(WriterVersion::PARQUET_1_0, Compression::SNAPPY));
    let refused = |file: &[u8]| {
        let mut builder = IndexBuilder::new(&Parquet.into()).unwrap();
        builder.push(file).and_then(|()| builder.finish().map(|_| ())).unwrap_err().to_string()
    };
    for end in [0, 3, 7, 11, 100, good.len() - 1] {
        assert!(refused(&good[..end]).contains("does not end as a Parquet file"), "{end}");
    }
    let tail = |length: u32, magic: &[u8]| [&good[..50], &length.to_le_bytes(), magic].concat();
    assert!(refused(&tail(5, b"PARE")).contains("encrypted"));
    assert!(refused(&tail(u32::MAX, b"PAR1")).contains("the limit is"));
    assert!(refused(&tail(51, b"PAR1")).contains("does not end as a Parquet file"));
    refused(&tail(50, b"PAR1"));
    let mut random = 1_u32;
    let mut next = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % below
    };
    for _ in 0..400 {
        let mut bad = good.to_vec();
        for _ in 0..1 + next(3) {
            let at = next(bad.len());
            bad[at] ^= 1 << next(8);
        }
        let bad = Bytes::from(bad);
        let mut builder = IndexBuilder::new(&Parquet.into()).unwrap();
        let Ok(index) = builder.push(&bad).and_then(|()| builder.finish()) else { continue };
        let rows = index.len().min(30);
        let Ok(ranges) = index.stored_ranges(0, rows, &source()) else { continue };
        let parts: Option<Vec<Bytes>> = ranges
            .iter()
            .map(|range| {
                let (start, end) = (range.start as usize, range.end as usize);
                (end <= bad.len()).then(|| bad.slice(start..end))
            })
            .collect();
        let Some(parts) = parts else { continue };
        if let Err(error) = index.open(0, rows, &source(), &parts) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// Rows of 0, 1 and 2 lists of four, as JSON's `[]`, `[[..]]` and `[[..], [..]]`; then an empty list within
/// a list, which is none of four.
#[test]
fn an_outer_list_may_be_empty() {
    const LISTS: &str = "
message rows {
  optional group m (LIST) {
    repeated group list { optional group element (LIST) { repeated group list { optional int32 element; } } }
  }
}";
    let schema = parse_message_type(LISTS).unwrap().into();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<i32> = (0..12).collect();
    let definition = [&[1][..], &[5; 12], &[1, 3]].concat();
    let repetition = [0, 0, 2, 2, 2, 0, 2, 2, 2, 1, 2, 2, 2, 0, 0];
    let typed = column.typed::<Int32Type>();
    typed.write_batch(&values, Some(&definition), Some(&repetition)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let file = Bytes::from(writer.into_inner().unwrap());
    let source = features(&[("m", FeatureDType::I64, &[None, Some(4)])]);
    let (index, _) = index(&file);
    let found = rows(&index, &file, 0, 5, &source);
    let numbers =
        |range: Range<i64>| Ok(vec![range.flat_map(i64::to_le_bytes).collect::<Vec<u8>>()]);
    assert_eq!(found[..3], [numbers(0..0), numbers(0..4), numbers(4..12)]);
    assert_eq!(found[3], numbers(0..0));
    let refused = found[4].clone().unwrap_err();
    assert!(refused.contains("empty list at depth 2"), "{refused}");
}
