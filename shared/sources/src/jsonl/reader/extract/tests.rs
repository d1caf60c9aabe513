//! Good and bad lines.

use super::*;
use crate::{FeatureDType, MAX_VALUES};
use gristmill_kernel::CellStorage;
use proptest::prelude::*;

fn feature(key: &str, dtype: FeatureDType, shape: &[Option<u32>]) -> (String, Feature) {
    (key.to_owned(), Feature { key: key.to_owned(), dtype, shape: shape.to_vec(), default: None })
}

/// The bytes of one feature of one line.
fn read(line: impl AsRef<[u8]>, feature: (String, Feature)) -> Result<Vec<u8>, String> {
    let record = line.as_ref();
    let mut cells = [FieldCell::default()];
    let found = JsonlRecordReader::new(&[feature].into()).find(record, &mut cells)?;
    let [mut cell] = cells;
    let (value, _) = cell.split(record, None)?;
    assert_eq!(value.len(), found);
    Ok(value.to_vec())
}

fn ints(line: &str, shape: &[Option<u32>]) -> Result<Vec<i64>, String> {
    let bytes = read(line, feature("v", FeatureDType::I64, shape))?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|value| i64::from_le_bytes(*value)).collect())
}

fn floats(line: &str, shape: &[Option<u32>]) -> Result<Vec<f32>, String> {
    let bytes = read(line, feature("v", FeatureDType::F32, shape))?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

fn text(line: impl AsRef<[u8]>) -> Result<String, String> {
    Ok(String::from_utf8(read(line, feature("v", FeatureDType::Bytes, &[]))?).unwrap())
}

#[test]
fn numbers_are_read_as_the_pipeline_asks() {
    assert_eq!(ints(r#"{"v": [1, -2, 3]}"#, &[None]).unwrap(), [1, -2, 3]);
    assert_eq!(ints(r#"{"v": []}"#, &[None]).unwrap(), [0; 0]);
    assert_eq!(ints("\n \r\n{\"v\":[7,8]}\r\n", &[Some(2)]).unwrap(), [7, 8]);
    assert_eq!(ints("\u{feff}{\"v\": 7}", &[]).unwrap(), [7]);
    assert_eq!(ints(r#"{"v": [true, false, -0]}"#, &[None]).unwrap(), [1, 0, 0]);
    let ends = format!("{{\"v\": [{}, {}]}}", i64::MIN, i64::MAX);
    assert_eq!(ints(&ends, &[None]).unwrap(), [i64::MIN, i64::MAX]);
    assert_eq!(floats(r#"{"v": [1, 0.1, -2.5e3]}"#, &[None]).unwrap(), [1.0, 0.1, -2500.0]);
    assert_eq!(floats(r#"{"v": 18446744073709551615}"#, &[]).unwrap(), [u64::MAX as f32]);
    // The last of two equal keys counts; other keys do not.
    assert_eq!(ints(r#"{"v": [1], "w": [[{}]], "v": [2, 3]}"#, &[None]).unwrap(), [2, 3]);
}

#[test]
fn wide_numbers_are_exact_or_refused() {
    let of = |dtype, value: &str| read(format!("{{\"v\": {value}}}"), feature("v", dtype, &[]));
    use FeatureDType::{F64, I64, U64};
    for value in [0, 1, i64::MAX as u64 + 1, u64::MAX] {
        assert_eq!(of(U64, &value.to_string()).unwrap(), value.to_le_bytes());
    }
    for value in [0.1, -2.5e-300, 9_007_199_254_740_992.0, f64::MAX] {
        assert_eq!(of(F64, &format!("{value:?}")).unwrap(), value.to_le_bytes());
    }
    assert_eq!(of(F64, "-7").unwrap(), (-7.0_f64).to_le_bytes());
    assert_eq!(of(U64, "true").unwrap(), 1_u64.to_le_bytes());
    for (dtype, value, words) in [
        (I64, "9223372036854775808", "holds `9223372036854775808`, which is no i64"),
        (U64, "-1", "holds `-1`, which is no u64"),
        (U64, "18446744073709551616", "which is no u64"),
        (I64, "9007199254740993.5", "holds `9007199254740993.5`, which is no i64"),
        (U64, "-1e-400", "holds `-1e-400`, which is no u64"),
        (F64, "\"1\"", "holds a string, which is no f64"),
        (F64, "1e400", "holds `1e400`, which is no f64"),
    ] {
        let error = of(dtype, value).unwrap_err();
        assert!(error.contains(words), "{value}: {error}");
    }
}

#[test]
fn whole_numbers_may_be_written_as_fractions() {
    assert_eq!(
        ints(r#"{"v": [3.0, 1e2, -0.0, 9007199254740993.0]}"#, &[None]).unwrap(),
        [3, 100, 0, 9_007_199_254_740_993]
    );
    // Half way between two f32, or just above it: read as f64 first, both would be half way.
    let line = r#"{"v": [1.000000059604644775390625, 1.00000005960464477539062500000001]}"#;
    assert_eq!(floats(line, &[None]).unwrap(), [1.0, 1.000_000_1]);
    // The largest f32, and what is rounded to it.
    assert_eq!(
        floats(r#"{"v": 340282356779733661637539395458142568447.9}"#, &[]).unwrap(),
        [f32::MAX]
    );
}

#[test]
fn missing_and_null_values_have_defaults() {
    let yaml = "{ jsonl: x, defaults: { i: -1, t: none, l: [1, 2], f: .nan }, features: {
        f: { dtype: f32 }, i: { key: a.i, dtype: i64 }, l: { dtype: i64, shape: [2] }, t: { dtype: bytes } } }";
    let features = crate::ParsedSource::from_yaml(yaml).unwrap().features;
    let reader = JsonlRecordReader::new(&features);
    let values = |line: &str| {
        let mut cells: Vec<FieldCell> = features.iter().map(|_| FieldCell::default()).collect();
        let found = reader.find(line.as_bytes(), &mut cells)?;
        let values: Vec<Vec<u8>> = cells
            .iter_mut()
            .map(|cell| cell.split(line.as_bytes(), None).unwrap().0.to_vec())
            .collect();
        assert_eq!(found, values.iter().map(Vec::len).sum::<usize>());
        Ok::<_, String>(values)
    };
    let list = |values: [i64; 2]| values.map(i64::to_le_bytes).concat();
    let default = vec![
        f32::NAN.to_le_bytes().to_vec(),
        (-1_i64).to_le_bytes().to_vec(),
        list([1, 2]),
        b"none".to_vec(),
    ];
    for line in [
        "{}",
        r#"{"a": null, "t": null, "l": null, "f": null}"#,
        r#"{"a": {"i": null}}"#,
        r#"{"a": {"i": 3}, "a": {"i": null}, "t": "x", "t": null}"#,
    ] {
        assert_eq!(values(line).as_ref(), Ok(&default), "{line}");
    }
    let some = values(r#"{"a": {"i": 7}, "l": null, "t": "x", "f": 0.5}"#).unwrap();
    assert_eq!(some[1..], [7_i64.to_le_bytes().to_vec(), list([1, 2]), b"x".to_vec()]);
    for (line, words) in [
        (r#"{"l": [null, 1]}"#, "key `l` holds `null`"),
        (r#"{"l": []}"#, "has 0 values"),
        (r#"{"t": 1}"#, "is a number, the pipeline reads bytes"),
    ] {
        let error = values(line).unwrap_err();
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn lists_are_as_deep_as_the_shape_or_flat() {
    let shape = [None, Some(2)];
    assert_eq!(ints(r#"{"v": [[1, 2], [3, 4]]}"#, &shape).unwrap(), [1, 2, 3, 4]);
    assert_eq!(ints(r#"{"v": [1, 2, 3, 4]}"#, &shape).unwrap(), [1, 2, 3, 4]);
    assert_eq!(ints(r#"{"v": [[1, 2]]}"#, &[Some(1), Some(2)]).unwrap(), [1, 2]);
    for (line, shape, words) in [
        ("[[1, 2, 3], [4]]", &shape[..], "has a list of 3 at depth 2, the pipeline reads 2"),
        ("[[]]", &shape, "has a list of 0 at depth 2"),
        ("[1, 2, 3]", &shape, "has 3 values, which is no multiple of the 2 of a row"),
        ("[[1, 2], 3, 4]", &shape, "numbers and lists side by side"),
        ("[[[1], [2]]]", &shape, "has lists 3 deep"),
        ("[[[]]]", &shape, "a list where the pipeline reads one value"),
        ("[1, 2]", &[Some(3)], "has 2 values, the pipeline reads 3"),
        ("[1, 2, 3, 4]", &[Some(3)], "has 4 values, the pipeline reads 3"),
        ("[1]", &[], "is a list, the pipeline reads one value"),
        ("1", &[None], "is one value, the pipeline reads a list"),
    ] {
        let error = ints(&format!("{{\"v\": {line}}}"), shape).unwrap_err();
        assert!(error.contains(words) && error.starts_with("key `v` "), "{line}: {error}");
    }
}

#[test]
fn strings_are_their_utf_8() {
    assert_eq!(text(r#"{"v": "plain \u00e9"}"#).unwrap(), "plain é");
    assert_eq!(text(r#"{"v": "\"\ud83d\ude00\n"}"#).unwrap(), "\"😀\n");
    assert_eq!(text(r#"{"\u0076": ""}"#).unwrap(), "");
    // Without escapes they are not copied.
    let line = br#"{"v": "where it is"}"#;
    let mut cells = [FieldCell::default()];
    let wanted = [feature("v", FeatureDType::Bytes, &[])].into();
    JsonlRecordReader::new(&wanted).find(line, &mut cells).unwrap();
    assert_eq!(cells[0].place, CellStorage::Record(7..18));
}

#[test]
fn keys_lead_into_objects() {
    let key = |key: &str| feature(key, FeatureDType::I64, &[]);
    let value = |line: &str, wanted: &str| Ok::<_, String>(read(line, key(wanted))?[0]);
    let line = r#"{"a": {"x": 0, "b": {"c": 5}}, "a.b.c": 6}"#;
    assert_eq!(value(line, "a.x").unwrap(), 0);
    assert_eq!(value(r#"{"a.b": 1, "a": {"x": 0, "b": {"c": 5}}}"#, "a.b.c").unwrap(), 5);
    assert_eq!(value(line, "a.b.c").unwrap(), 6, "the last counts");
    for missing in ["a.y", "a.b.c.d", "b", "a.x.y", "..", "a."] {
        assert_eq!(value(line, missing).unwrap_err(), format!("key `{missing}` is missing"));
    }
    assert!(value(line, "a").unwrap_err().contains("holds an object"));

    // A value that is wanted more than once, and within which something is wanted.
    let mut features: FeatureMap =
        [("one".to_owned(), key("a").1), ("two".to_owned(), key("a").1)].into();
    features.insert("three".into(), key("a.b").1);
    features.insert("text".into(), feature("t", FeatureDType::Bytes, &[]).1);
    features.insert("copy".into(), feature("t", FeatureDType::Bytes, &[]).1);
    let extractor = JsonlRecordReader::new(&features);
    let mut cells: Vec<FieldCell> = features.iter().map(|_| FieldCell::default()).collect();
    let line = br#"{"a": {"b": 3}, "t": "same", "a": 4}"#;
    let error = extractor.find(line, &mut cells).unwrap_err();
    assert!(error.contains("key `a` holds an object"), "{error}");
    let line = br#"{"a.b": 3, "t": "same", "a": 4}"#;
    assert_eq!(extractor.find(line, &mut cells), Ok(8 * 3 + 2 * 4));
    assert_eq!((&cells[0].place, &cells[2].place), (&cells[2].place, &CellStorage::Record(17..21)));
}

#[test]
fn lines_without_the_object_are_errors_of_one_line() {
    let deep = format!("{{\"v\": {}", "[".repeat(100_000));
    let ignored = format!("{{\"w\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (line, words) in [
        ("", "not valid JSON: EOF while parsing a value"),
        ("{", "not valid JSON: EOF"),
        ("tokens: 1", "not valid JSON: expected ident"),
        ("[1, 2]", "it is a list, not a JSON object"),
        ("3", "it is a number"),
        ("null", "it is null"),
        ("\"v\"", "it is text"),
        ("{}", "key `v` is missing"),
        ("{\"v\": [1, 2}", "not valid JSON: expected `,` or `]` (column 12)"),
        ("{\"v\": [1]} x", "not valid JSON: trailing characters (column 12)"),
        ("{\"v\": [1]}{}", "not valid JSON: trailing characters"),
        ("{\"v\": NaN}", "expected value (column 7); NaN and Infinity are no JSON: write null"),
        ("{\"v\": [-Infinity]}", "invalid number (column 9); NaN and Infinity are no JSON"),
        ("\n{\"v\": [1,]}", "expected value (column 10); remove the comma before it"),
        ("{\"v\": \"1}", "EOF while parsing a string (column 9); end the string with `\"`"),
        ("{\"v\": \"1}\r\n", "EOF while parsing a string (column 9); end the string with `\"`"),
        ("{'v': 1}", "key must be a string (column 2); put keys and strings in double quotes"),
        ("{\n", "EOF while parsing an object (column 1); is the line cut short"),
        ("{\"v\": null}", "key `v` is null"),
        ("{\"v\": [null]}", "key `v` holds `null`, which is no i64"),
        ("{\"v\": [1.5]}", "key `v` holds `1.5`, which is no i64"),
        ("{\"v\": [1e400]}", "holds `1e400`, which is no i64"),
        ("{\"v\": [9223372036854775808]}", "holds `9223372036854775808`, which is no i64"),
        ("{\"v\": [123456789012345678901234567890]}", "which is no i64"),
        ("{\"v\": [\"1\"]}", "holds a string, which is no i64"),
        ("{\"v\": [{\"a\": 1}]}", "holds an object"),
        (&deep, "EOF while parsing a list"),
        (&ignored, "key `v` is missing"),
    ] {
        let error = ints(line, &[None]).unwrap_err();
        assert!(error.contains(words) && error.len() < 200, "{line:.40}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    assert!(floats("{\"v\": [1e39]}", &[None]).unwrap_err().contains("which is no f32"));
    assert!(floats("{\"v\": [true]}", &[None]).unwrap_err().contains("holds `true`"));
    for (line, words) in [("1", "a number"), ("[]", "a list"), ("{}", "an object")] {
        let error = text(format!("{{\"v\": {line}}}")).unwrap_err();
        assert!(
            error.contains(&format!("key `v` is {words}, the pipeline reads bytes")),
            "{error}"
        );
    }
    assert!(text(b"{\"v\": \"\xff\"}").unwrap_err().contains("not valid JSON: invalid unicode"));
    assert!(text(b"\xff").unwrap_err().contains("not valid JSON"));
    assert!(text(r#"{"v": "\ud800"}"#).unwrap_err().contains("not valid JSON"));
}

#[test]
fn more_values_than_there_may_be_are_refused() {
    let line = format!("{{\"v\": [0{}]}}", ",0".repeat(MAX_VALUES as usize));
    let error = ints(&line, &[None]).unwrap_err();
    assert_eq!(error, "key `v` has 1048577 values; the limit is 1048576");
}

proptest! {
    #[test]
    fn numbers_round_trip(values in prop::collection::vec(any::<i64>(), 0..40)) {
        let line = format!("{{\"x\": null, \"v\": {values:?}}}");
        prop_assert_eq!(ints(&line, &[None]), Ok(values));
    }

    #[test]
    fn floats_round_trip(values in prop::collection::vec(-3e38_f32..3e38, 0..40)) {
        prop_assert_eq!(floats(&format!("{{\"v\": {values:?}}}"), &[None]), Ok(values));
    }

    #[test]
    fn numbers_are_rounded_once(digits in "-?[1-9]\\.[0-9]{6,30}", exponent in -50_i32..40) {
        let text = format!("{digits}e{exponent}");
        let number: f32 = text.parse().unwrap();
        let read = floats(&format!("{{\"v\": {text}}}"), &[]);
        prop_assert_eq!(read.ok(), Some(vec![number]).filter(|_| number.is_finite()));
    }

    #[test]
    fn numbers_half_way_are_rounded_once(number in -3e38_f32..3e38, more in "0{0,30}1?") {
        let next = f32::from_bits(number.to_bits() + 1);
        let half = (f64::from(number) + f64::from(next)) / 2.0;
        let text = format!("{half:.160}{more}");
        let read = floats(&format!("{{\"v\": {text}}}"), &[]);
        prop_assert_eq!(read, Ok(vec![text.parse::<f32>().unwrap()]));
    }

    #[test]
    fn any_line_is_an_object_or_an_error(line in "[\\[\\]{}:,\"v0-9.eE\\\\u -]{0,60}") {
        for error in [ints(&line, &[None]).err(), text(&line).err()].into_iter().flatten() {
            prop_assert!(!error.is_empty() && !error.contains('\n'));
        }
    }
}
