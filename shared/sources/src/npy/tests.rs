//! Files of numpy, read as numpy reads them.

use super::read;
use crate::{FileIndex, IndexBuilder, OpenedRecords, ParsedSource, RecordReader};
use bytes::Bytes;
use gristmill_kernel::FieldCell;
use serde_json::Value;

const FILES: &[u8] = include_bytes!("../../tests/golden/npy.bin");

/// The files that `scripts/make-golden npy` has made.
fn cases() -> Vec<Value> {
    let cases = include_str!("../../tests/golden/npy.json");
    serde_json::from_str::<Vec<Value>>(cases).unwrap()
}

fn source(features: &str) -> ParsedSource {
    ParsedSource::from_yaml(&format!("{{ npy: x, features: {features} }}")).unwrap()
}

fn number(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap() as usize
}

fn file(case: &Value) -> &'static [u8] {
    &FILES[number(case, "at")..][..number(case, "bytes")]
}

fn index(source: &ParsedSource, file: &[u8]) -> Result<FileIndex, String> {
    let mut builder = IndexBuilder::for_file(&source.format, file.len() as u64).unwrap();
    while let Some(range) = builder.wants() {
        builder.push(&file[range.start as usize..range.end as usize]).map_err(|error| error.0)?;
    }
    builder.finish().map_err(|error| error.0)
}

/// The values of the features of each record.
fn rows(
    source: &ParsedSource,
    file: &[u8],
    first: u32,
    n: u32,
) -> Result<Vec<Vec<Vec<u8>>>, String> {
    let index = index(source, file)?;
    assert_eq!(FileIndex::decode(&index.encode(), &source.format).as_ref(), Ok(&index));
    let ranges = index.stored_ranges(first, n, source).map_err(|error| error.0)?;
    let part = |range: &std::ops::Range<u64>| {
        Bytes::copy_from_slice(&file[range.start as usize..range.end as usize])
    };
    let parts: Vec<Bytes> = ranges.iter().map(part).collect();
    let OpenedRecords { data, index } = index.open(first, n, source, &parts).map_err(|e| e.0)?;
    let (index, reader) = (index.unwrap(), RecordReader::new(source));
    let row = |row: u32| {
        let range = index.byte_range(row, 1).unwrap();
        let record = &data[range.start as usize..range.end as usize];
        let mut cells: Vec<FieldCell> =
            source.features.iter().map(|_| FieldCell::default()).collect();
        let (record, _) = reader.read(record, &mut cells)?;
        Ok(cells.iter().map(|cell| cell.value(record, &[]).to_vec()).collect())
    };
    (first..first + n).map(row).collect()
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn files_are_what_numpy_reads() {
    let cases = cases();
    assert_eq!(cases.len(), 200);
    for (number_of_case, case) in cases.iter().enumerate() {
        let fields = case["fields"].as_object().unwrap();
        let mut features = serde_json::Map::new();
        for (i, (key, field)) in fields.iter().enumerate() {
            let mut feature = serde_json::json!({ "key": key, "dtype": field["dtype"] });
            if field["dtype"] != "bytes" {
                feature["shape"] = field["shape"].clone();
            }
            features.insert(format!("f{i}"), feature);
        }
        let source = source(&Value::from(features).to_string());
        let (file, n) = (file(case), number(case, "n") as u32);
        if let Some(fault) = case.get("fault") {
            let error = rows(&source, file, 0, n).unwrap_err();
            assert!(error.contains(fault.as_str().unwrap()), "{number_of_case}: {error}");
            continue;
        }
        let expected: Vec<Vec<Vec<u8>>> = (0..n as usize)
            .map(|row| fields.values().map(|field| hex(&field["rows"][row])).collect())
            .collect();
        let found = rows(&source, file, 0, n);
        assert_eq!(found.as_ref(), Ok(&expected), "{number_of_case}: {fields:?}");
        for first in 0..n {
            let part = rows(&source, file, first, (n - first).min(2)).unwrap();
            assert_eq!(part[..], expected[first as usize..][..part.len()], "{number_of_case}");
        }
        assert_eq!(index(&source, file).unwrap().len(), n);
    }
}

#[test]
fn damage_is_found_or_harmless() {
    for case in cases().iter().filter(|case| case.get("fault").is_none()) {
        let key = case["fields"].as_object().unwrap().keys().next().unwrap();
        let source = source(&format!("{{ v: {{ key: {key}, dtype: bytes }} }}"));
        let whole = file(case);
        for at in (0..whole.len()).step_by(37) {
            let mut file = whole.to_vec();
            file[at] ^= 0x41;
            let _ = rows(&source, &file, 0, 1);
            let cut = rows(&source, &whole[..at], 0, 1);
            assert!(cut.is_err() || number(case, "n") == 0, "{at}");
        }
    }
}

#[test]
fn declarations_that_do_not_fit_are_refused_by_name() {
    let of = |features: &str, wanted: fn(&Value) -> bool| {
        let cases = cases();
        let case = cases.iter().find(|case| case.get("fault").is_none() && wanted(case)).unwrap();
        rows(&source(features), file(case), 0, 1).unwrap_err()
    };
    let is_archive = |case: &Value| file(case).starts_with(b"PK");
    let error = of("{ v: { key: nothing, dtype: i64 } }", is_archive);
    assert!(error.contains("it has no array `nothing`; it has `"), "{error}");
    let error = of("{ v: { key: length, dtype: f64 } }", is_archive);
    assert!(error.contains("array `length` has 0 rows"), "{error}");
    let error = of("{ v: { key: other, dtype: f64 } }", is_archive);
    assert_eq!(error, "array `other`: it holds Python objects (pickled), which are not read");
    let is_array = |case: &Value| !file(case).starts_with(b"PK") && number(case, "n") > 0;
    let error = of("{ v: { dtype: f64, shape: [7, 7] } }", |case| {
        let mut fields = case["fields"].as_object().unwrap().values();
        !file(case).starts_with(b"PK") && fields.all(|field| field["dtype"] == "f64")
    });
    assert!(error.contains("has the shape [") && error.contains("reads [7, 7]"), "{error}");
    let error = of("{ v: { key: a, dtype: f64 }, w: { key: b, dtype: f64 } }", is_array);
    assert!(
        error.contains("an .npy file has one array, and the pipeline reads `a`, `b`"),
        "{error}"
    );
}

#[test]
fn members_of_tar_files_may_be_arrays() {
    let mut found = 0;
    for case in cases().iter().filter(|case| file(case).starts_with(b"\x93NUMPY")) {
        let (_, field) = case["fields"].as_object().unwrap().iter().next().unwrap();
        if case.get("fault").is_some() || field["dtype"] == "bytes" {
            continue;
        }
        let shape = field["shape"].as_array().unwrap().iter();
        let shape: Vec<String> = shape.map(Value::to_string).collect();
        let dims = std::iter::once("-1".to_owned()).chain(shape).collect::<Vec<_>>().join(", ");
        let dtype = field["dtype"].as_str().unwrap();
        let yaml = format!(
            "{{ webdataset: x, features: {{ v: {{ dtype: {dtype}, shape: [{dims}] }} }} }}"
        );
        let source = ParsedSource::from_yaml(&yaml).unwrap();
        let mut cell = FieldCell::default();
        read(&source.features["v"], file(case), &mut cell).unwrap();
        let expected: Vec<u8> = field["rows"].as_array().unwrap().iter().flat_map(hex).collect();
        assert_eq!(cell.value(&[], &[]), expected);
        found += 1;
        let wrong = crate::Feature { shape: vec![Some(99)], ..source.features["v"].clone() };
        let error = read(&wrong, file(case), &mut cell).unwrap_err();
        assert!(error.contains("and the pipeline reads [99]"), "{error}");
    }
    assert!(found > 30, "{found}");
}
