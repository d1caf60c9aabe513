//! Tables as people write them.

use super::*;
use crate::{FileFormat, ParsedSource, RecordReader, csv::Csv};
use gristmill_kernel::FieldCell;
use proptest::prelude::*;

const LIMITS: SourceLimits = SourceLimits { record_bytes: 200, records: 50 };

fn source(yaml: &str) -> ParsedSource {
    ParsedSource::from_yaml(&format!("{{ {yaml} }}")).unwrap()
}

fn index(format: &FileFormat, pieces: &[&[u8]]) -> Result<FileIndex, SourceError> {
    let mut builder = crate::IndexBuilder::with_limits(format, LIMITS).unwrap();
    pieces.iter().try_for_each(|piece| builder.push(piece))?;
    builder.finish()
}

/// The bytes of a record's features, or what is wrong with it.
type Read = Result<Vec<Vec<u8>>, String>;

/// Every record.
fn read(source: &ParsedSource, file: &[u8]) -> Result<Vec<Read>, SourceError> {
    let index = index(&source.format, &[file])?;
    assert_eq!(
        FileIndex::decode_with(&index.encode(), &source.format, LIMITS).as_ref(),
        Ok(&index)
    );
    let reader = RecordReader::new(source);
    let mut all = Vec::new();
    // In splits of two: a split does not begin where the file does.
    for first in (0..index.len()).step_by(2) {
        let n = 2.min(index.len() - first);
        let ranges = index.stored_ranges(first, n, source)?;
        let part = |range: &std::ops::Range<u64>| {
            Bytes::copy_from_slice(&file[range.start as usize..range.end as usize])
        };
        let parts: Vec<Bytes> = ranges.iter().map(part).collect();
        let records = index.open(first, n, source, &parts)?;
        let window = records.index.unwrap();
        let base = window.byte_range(first, 0).unwrap().start;
        for record in first..first + n {
            let range = window.byte_range(record, 1).unwrap();
            let stored = &records.data[(range.start - base) as usize..(range.end - base) as usize];
            let mut cells: Vec<FieldCell> =
                source.features.iter().map(|_| FieldCell::default()).collect();
            all.push(reader.read(stored, &mut cells).map(|(record, _)| {
                cells.iter_mut().map(|cell| cell.split(record, None).unwrap().0.to_vec()).collect()
            }));
        }
    }
    Ok(all)
}

fn texts(yaml: &str, file: &str) -> Vec<String> {
    let shown = |record: Result<Vec<Vec<u8>>, String>| match record {
        Ok(values) => {
            let values = values.iter().map(|value| String::from_utf8_lossy(value).into_owned());
            values.collect::<Vec<_>>().join("|")
        }
        Err(what) => format!("! {what}"),
    };
    read(&source(yaml), file.as_bytes()).unwrap().into_iter().map(shown).collect()
}

const AB: &str = "csv: x, features: { a: { dtype: bytes }, b: { dtype: bytes } }";

#[test]
fn values_are_found_by_the_names_of_their_columns() {
    assert_eq!(texts(AB, "b,a\n1,2\n3,4\n5,6"), ["2|1", "4|3", "6|5"]);
    assert_eq!(texts(AB, "\u{feff}\"a\",b\r\n1,2\r\n\r\n3,4\r\n"), ["1|2", "3|4"]);
    assert_eq!(texts(AB, "a,b\r1,2\r3,4"), ["1|2", "3|4"]);
    assert_eq!(texts(AB, "\n\na,x,b\n\n,,\n1,,2\n"), ["|", "1|2"]);
    for nothing in ["", "a,b", "a,b\r\n", "\n"] {
        assert!(texts(AB, nothing).is_empty(), "{nothing:?}");
    }
}

#[test]
fn quotes_hold_delimiters_line_ends_and_quotes() {
    let file = "a,b\n\"1,\n\"\"x\"\"\r\n\",2\n\"\",\"a\"\"\"\n3\"4,\"5\"6\n";
    assert_eq!(texts(AB, file), ["1,\n\"x\"\r\n|2", "|a\"", "3\"4|56"]);
    let plain = AB.replace("csv: x", "tsv: x, quotes: false");
    assert_eq!(texts(&plain, "a\tb\n\"1\t2,3\n"), ["\"1|2,3"]);
    let error = read(&source(AB), b"a,b\n1,2\n3,\"4\n5,6\n").unwrap_err().to_string();
    assert!(error.contains("line 3, record 1: a quote does not end"), "{error}");
}

#[test]
fn bad_records_are_named_by_their_line() {
    let file = "a,b\n\"\n\n\",2\n1\n1,2,3\n";
    let expected = [
        "\n\n|2",
        "! line 5: it has 1 values, and there are 2 columns",
        "! line 6: it has 3 values, and there are 2 columns",
    ];
    assert_eq!(texts(AB, file), expected);
    assert_eq!(
        texts(AB, "\n\na,b\r\n\r\n\n1\n")[0],
        "! line 6: it has 1 values, and there are 2 columns"
    );
    let lacks = read(&source(AB), b"a,c\n1,2\n").unwrap_err().to_string();
    assert!(lacks.contains("line 1: it has no column `b`, but a, c"), "{lacks}");
    let twice = read(&source(AB), b"a,b,b\n1,2,3\n").unwrap_err().to_string();
    assert!(twice.contains("two columns `b`"), "{twice}");
}

#[test]
fn numbers_are_exact_and_missing_ones_have_defaults() {
    let yaml = "csv: x, header: false, columns: [i, f], missing: [NA], defaults: { i: -1 }, \
                features: { i: { dtype: i64 }, f: { dtype: f32, shape: [2] } }";
    let file = "9007199254740993,0.1 2\n-9223372036854775808,1e-3 -0\nNA,1 2\n,1 2\n1,NA\n1.5,1 2\n9223372036854775808,1 2\n";
    let records = read(&source(yaml), file.as_bytes()).unwrap();
    let row = |f: [f32; 2], i: i64| {
        Ok(vec![f.iter().flat_map(|f| f.to_le_bytes()).collect(), i.to_le_bytes().to_vec()])
    };
    assert_eq!(records[0], row([0.1, 2.0], 9_007_199_254_740_993));
    assert_eq!(records[1], row([1e-3, -0.0], i64::MIN));
    assert_eq!((&records[2], &records[3]), (&row([1.0, 2.0], -1), &row([1.0, 2.0], -1)));
    let errors: Vec<&str> = records[4..].iter().map(|r| r.as_ref().unwrap_err().as_str()).collect();
    assert!(errors[0].starts_with("line 5: column `f` is missing"), "{errors:?}");
    assert_eq!(errors[1], "line 6: column `i` holds `1.5`, which is no i64");
    assert!(errors[2].contains("line 7: column `i` holds `9223372036854775808`"), "{errors:?}");
}

#[test]
fn a_column_that_a_file_lacks_has_the_default_of_its_feature() {
    let yaml = "csv: x, defaults: { i: -1, t: none, l: [1, 2] }, features: { a: { dtype: bytes }, \
                i: { dtype: i64 }, l: { dtype: i64, shape: [2] }, t: { dtype: bytes } }";
    let [one, two] = [1_i64, 2].map(i64::to_le_bytes);
    let row = |i: i64, text: &str| {
        Ok(vec![b"x".to_vec(), i.to_le_bytes().to_vec(), [one, two].concat(), text.into()])
    };
    let read = |file: &str| read(&source(yaml), file.as_bytes());
    assert_eq!(read("a\nx\nx\n").unwrap(), [row(-1, "none"), row(-1, "none")]);
    assert_eq!(read("t,a\n,x\ny,x\n").unwrap(), [row(-1, "none"), row(-1, "y")]);
    for (file, lacked) in [("i,t\n1,2\n", "`a`, but i, t"), ("b,c\n1,2\n", "`a`, but b, c")] {
        let error = read(file).unwrap_err().to_string();
        assert!(error.contains(&format!("it has no column {lacked}")), "{error}");
    }
    let all = "csv: x, defaults: { i: 0 }, features: { i: { dtype: i64 } }";
    let error = super::tests::read(&source(all), b"j\n1\n").unwrap_err().to_string();
    assert!(error.contains("it has no column `i`, but j"), "{error}");
}

#[test]
fn lists_lack_no_items_and_whole_numbers_may_be_fractions() {
    let yaml = "csv: x, defaults: { l: [7, 8] }, features: { l: { dtype: i64, shape: [-1] } }";
    let list = |text: &str| {
        let file = format!("l\n\"{text}\"\n");
        let read = read(&source(yaml), file.as_bytes()).unwrap().swap_remove(0);
        let numbers = |mut values: Vec<Vec<u8>>| {
            let bytes = values.swap_remove(0);
            bytes.as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect()
        };
        read.map(numbers)
    };
    assert_eq!(list("1,2 ,3.0 1e2").unwrap(), [1, 2, 3, 100]);
    assert_eq!(list(" ").unwrap(), [7, 8]);
    for text in ["1,,3", ",1", "1,", "1, ,2", ","] {
        let error: Result<Vec<i64>, String> = list(text);
        assert_eq!(error.unwrap_err(), "line 2: column `l` lacks an item beside one of its commas");
    }
}

#[test]
fn defaults_are_what_the_feature_is() {
    for (default, words) in [
        ("i: a", "the default of `i` holds `a`, which is no i64"),
        ("i: [1, 2]", "the default of `i` has more than 1 values"),
        ("i: \"\"", "the default of `i` has 0 values, the pipeline reads 1"),
        ("i: true", "a default is a number, a text"),
        ("b: [1]", "a default is a number, a text"),
        ("x: 1", "`x` is none of `features`"),
    ] {
        let yaml = format!(
            "{{ csv: x, defaults: {{ {default} }}, features: {{ b: {{ dtype: bytes }}, i: {{ dtype: i64 }} }} }}"
        );
        let error = ParsedSource::from_yaml(&yaml).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_the_same_index(
        file in "[\"a,\r\n\u{feff}]{0,60}", cuts in prop::collection::vec(0_usize..200, 0..6),
        header: bool, quotes: bool,
    ) {
        let file = file.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(file.len())).collect();
        cuts.extend([0, file.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &file[ends[0]..ends[1]]).collect();
        let layout = CsvLayout { delimiter: b',', header, quotes };
        let format = &FileFormat::from(Csv {
            layout,
            columns: Vec::new(),
            missing: Vec::new(),
        });
        let whole = index(format, &[file]);
        prop_assert_eq!(index(format, &pieces), whole.clone());
        if let Ok(index) = whole {
            prop_assert_eq!(FileIndex::decode_with(&index.encode(), format, LIMITS), Ok(index));
        }
    }

    #[test]
    fn written_tables_are_read_back(
        rows in prop::collection::vec(("[ab\",\n\r ]{0,8}", "[ab\",\n\r ]{1,8}"), 1..20), crlf: bool,
    ) {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let end = if crlf { "\r\n" } else { "\n" };
        let line = |(a, b): &(String, String)| format!("{},{}{end}", quoted(a), quoted(b));
        let file: String = rows.iter().map(line).collect();
        let read = read(&source(AB), format!("a,b{end}{file}").as_bytes()).unwrap();
        let expected: Vec<_> = rows
            .into_iter()
            .map(|(a, b)| Ok(vec![a.into_bytes(), b.into_bytes()]))
            .collect();
        prop_assert_eq!(read, expected);
    }
}
