//! Fields parsed from a byte string: the same elements in every notation.

use super::*;
use proptest::prelude::*;

/// One element: any number of integers, two floats, and a text.
#[derive(Clone, Debug)]
struct Words {
    tokens: Vec<i64>,
    weights: [f32; 2],
    text: String,
}

fn elements() -> impl Strategy<Value = Vec<Words>> {
    let element =
        (prop::collection::vec(any::<i64>(), 0..9), -1e6_f32..1e6, -1.0_f32..1.0, ".{0,12}");
    let element = element.prop_map(|(tokens, a, b, text)| Words { tokens, weights: [a, b], text });
    prop::collection::vec(element, 1..20)
}

fn json(Words { tokens, weights, text }: &Words) -> Vec<u8> {
    let text = serde_json::to_string(text).unwrap();
    format!("{{\"tokens\":{tokens:?},\"more\":{{}},\"weights\":{weights:?},\"text\":{text}}}")
        .into_bytes()
}

fn csv(Words { tokens, weights: [a, b], text }: &Words) -> Vec<u8> {
    let tokens: Vec<String> = tokens.iter().map(i64::to_string).collect();
    let (tokens, text) = (tokens.join(" "), text.replace('"', "\"\""));
    format!("\"{text}\",,{tokens},\"{a:?},{b:?}\"\r\n").into_bytes()
}

fn message(Words { tokens, weights, text }: &Words) -> Vec<u8> {
    example([
        ("tokens", ints(tokens)),
        ("weights", floats(weights)),
        ("text", bytes(text.as_bytes())),
    ])
}

const FEATURES: &str = "{ tokens: { dtype: i64, shape: [-1] }, \
                        weights: { dtype: f32, shape: [2] }, text: { dtype: bytes } }";

/// A pipeline over records with one byte string, which `op` parses.
fn parsing(op: &str, before: &str, more: &str) -> String {
    format!(
        "source: {{ tfrecord: x, features: {{ line: {{ dtype: bytes }}, id: {{ dtype: i64 }} }} }}\n\
         ops:\n{before}  - {op}: {{ field: line, features: {FEATURES}{more} }}\n  \
         - drop: {{ fields: [id] }}\n  - batch: {{ size: 3, ragged: true }}\n"
    )
}

fn record(line: &[u8]) -> Vec<u8> {
    example([("line", bytes(line)), ("id", ints(&[5]))])
}

fn run(yaml: &str, lines: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let records: Vec<Vec<u8>> = lines.map(|line| record(&line)).collect();
    Bench::new(yaml, &records).all().object
}

/// The object made from the lines of a JSONL file.
fn from_lines(elements: &[Words]) -> Vec<u8> {
    let yaml = format!(
        "source: {{ jsonl: x, features: {FEATURES} }}\nops: [batch: {{ size: 3, ragged: true }}]\n"
    );
    let lines = elements.iter().map(|element| [json(element), b"\n".to_vec()].concat());
    let file: Vec<u8> = lines.flatten().collect();
    let mut builder = IndexBuilder::new(&Jsonl.into()).unwrap();
    builder.push(&file).unwrap();
    let index = builder.finish().unwrap();
    let program = CompiledPipeline::compile(&gristmill_operators::parse(&yaml).unwrap()).unwrap();
    let bench = Bench { program, file: Bytes::from(file), index, on_error: ErrorPolicy::Fail };
    bench.all().object
}

const COLUMNS: &str = ", columns: [text, unused, tokens, weights]";
/// Keeps the value, but moves it out of the record's bytes.
const ELSEWHERE: &str = "  - copy: { field: line, into: other }\n  - drop: { fields: [line] }\n  \
                         - copy: { field: other, into: line }\n  - drop: { fields: [other] }\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn elements_are_the_same_however_they_are_written(elements in elements()) {
        let wanted = from_lines(&elements);
        for before in ["", ELSEWHERE] {
            let json = run(&parsing("parse_json", before, ""), elements.iter().map(json));
            prop_assert_eq!(&json, &wanted);
            let csv = run(&parsing("parse_csv", before, COLUMNS), elements.iter().map(csv));
            prop_assert_eq!(&csv, &wanted);
            let example = run(&parsing("parse_example", before, ""), elements.iter().map(message));
            prop_assert_eq!(&example, &wanted);
        }
    }
}

#[test]
fn a_field_may_take_the_place_of_what_it_was_found_in() {
    let yaml = "
source: { tfrecord: x, features: { line: { dtype: bytes }, id: { dtype: i64 } } }
ops:
  - duplicate: { copies: 2 }
  - parse_json: { field: line, features: { line: { key: a.b, dtype: bytes }, num: { key: a.n, dtype: i64 } } }
  - truncate: { field: line, length: 4 }
  - parse_csv: { field: line, columns: [x, z], delimiter: ;, keep: true, features: { x: { dtype: i64 } } }
  - batch: { size: 4, ragged: true }
";
    let line = br#"{ "a": { "n": -7, "b": "12;3456" } }"#;
    let output = Bench::new(yaml, &[record(line), record(line)]).all();
    assert_eq!((output.rows, output.batches), (4, 1));
    let frame = &frames(&output)[0];
    for row in 0..4 {
        assert_eq!(frame.get("line").unwrap().row(row).unwrap(), b"12;3");
    }
    let longs = |name| values(frame, name).into_iter().map(i64::from_le_bytes).collect::<Vec<_>>();
    assert_eq!(longs("num"), [-7; 4]);
    assert_eq!(longs("x"), [12; 4]);
    assert_eq!(longs("id"), [5; 4]);
    let metric = output.metrics.iter().find(|metric| metric.op == "parse_json").unwrap();
    let (given, found) = (metric.bytes_in, metric.bytes_produced);
    assert_eq!((given, found), (4 * line.len() as u64, 4 * (7 + 8)));
}

#[test]
fn operators_work_on_what_was_found() {
    let yaml = "
source: { tfrecord: x, features: { line: { dtype: bytes } } }
ops:
  - parse_csv: { field: line, columns: [label, pixels], features: { label: { dtype: i64 }, pixels: { dtype: f32, shape: [2] } } }
  - one_hot: { field: label, classes: 3 }
  - clip: { field: pixels, max: 2 }
  - batch: { size: 2 }
";
    let records: Vec<_> =
        [&b"2,1 5"[..], b"0,3 -1"].map(|line| example([("line", bytes(line))])).into();
    let output = Bench::new(yaml, &records).all();
    let frame = &frames(&output)[0];
    let floats = |name| values(frame, name).into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
    assert_eq!(floats("label"), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(floats("pixels"), [1.0, 2.0, 2.0, -1.0]);
}

#[test]
fn bad_input_is_the_records_error() {
    let wide = "x,".repeat(5000);
    for (op, line, wanted) in [
        ("parse_json", "", "not valid JSON"),
        ("parse_json", "[1]", "it is a list, not a JSON object"),
        ("parse_json", "{\"tokens\": [1], \"weights\": [1, 2]}", "key `text` is missing"),
        ("parse_json", "{\"tokens\": [1.5]}", "key `tokens` holds `1.5`, which is no i64"),
        ("parse_csv", "", "the line is blank"),
        ("parse_csv", "\r\n\r\n", "the line is blank"),
        ("parse_csv", "a,b,1", "the line has 3 values, the pipeline reads 4 columns"),
        ("parse_csv", "a,b,1\n", "the line has 3 values, the pipeline reads 4 columns"),
        ("parse_csv", "a,b,1,2,3,4", "the line has 5 or more values, the pipeline reads 4 columns"),
        ("parse_csv", &wide, "the line has 5 or more values, the pipeline reads 4 columns"),
        ("parse_csv", "a,b,1,\"1,2\n", "a quote does not end"),
        ("parse_csv", "a,b,1,1 2\na,b,1,1 2", "it is more than one line"),
        (
            "parse_csv",
            "a,b,1,1 2,\n",
            "the line has 5 or more values, the pipeline reads 4 columns",
        ),
        ("parse_csv", "a,b,one,1 2", "column `tokens` holds `one`, which is no i64"),
        ("parse_csv", "a,b,1,1e99 2", "column `weights` holds `1e99`, which is no f32"),
        ("parse_csv", "a,b,1,2", "column `weights` has 1 values, the pipeline reads 2"),
        ("parse_example", "\u{1}", "not a tf.Example"),
        ("parse_example", "", "feature `text` is missing"),
    ] {
        let more = if op == "parse_csv" { COLUMNS } else { "" };
        for before in ["", ELSEWHERE] {
            let yaml = parsing(op, before, more);
            let (at, reason) = Bench::new(&yaml, &[record(line.as_bytes())]).reason();
            assert_eq!(at, op);
            assert!(reason.starts_with(wanted), "{op} {line:?}: {reason}");
        }
    }
    // A bad record does not affect the records after it.
    let good = "a,b,1,1 2";
    let lines = [good, "a,b,\"", good, "a"].map(|line| record(line.as_bytes()));
    let yaml = parsing("parse_csv", "", COLUMNS);
    let output = Bench::new(&yaml, &lines).policy(ErrorPolicy::Skip).all();
    assert_eq!((output.rows, output.skipped.len()), (2, 2));
    let texts = &frames(&output)[0];
    assert_eq!(texts.get("text").unwrap().row(1).unwrap(), b"a");
}

/// A pipeline over byte strings that are numbers.
fn raw(dtype: &str, shape: &str, batch: &str) -> String {
    format!(
        "source: {{ tfrecord: x, features: {{ line: {{ dtype: bytes }} }} }}\n\
         ops:\n  - parse_raw: {{ field: line, dtype: {dtype}, shape: {shape} }}\n  - batch: {{ {batch} }}\n"
    )
}

#[test]
fn bytes_are_taken_for_numbers() {
    let record = |line: &[u8]| example([("line", bytes(line))]);
    let lines = [[1.5, -0.0, f32::NAN, 1e-45], [f32::MAX, 2.0, 3.0, 4.0]];
    let lines = lines.map(|numbers| numbers.map(f32::to_le_bytes).concat());
    let output = Bench::new(&raw("f32", "[2, 2]", "size: 2"), &lines.each_ref().map(|l| record(l)));
    let output = output.all();
    let batch = &frames(&output)[0];
    assert_eq!(batch.get("line").unwrap().values(), lines.concat());
    let ragged = raw("u16", "[-1, 2]", "size: 2, ragged: true");
    let output = Bench::new(&ragged, &[record(&lines[0][..8]), record(b"")]).all();
    assert_eq!(frames(&output)[0].get("line").unwrap().row(0).unwrap(), &lines[0][..8]);
    for (dtype, shape, length, wanted) in [
        ("f32", "[3]", 10, "`line` has 10 bytes, and f32 [3] takes 12"),
        ("f64", "[]", 4, "`line` has 4 bytes, and f64 takes 8"),
        ("i32", "[-1, 3]", 25, "`line` has 25 bytes, and each item of i32 [?, 3] takes 12"),
    ] {
        let yaml = raw(dtype, shape, "size: 1, ragged: true");
        let (op, reason) = Bench::new(&yaml, &[record(&vec![0; length])]).reason();
        assert_eq!((op.as_str(), reason.as_str()), ("parse_raw", wanted));
    }
}
