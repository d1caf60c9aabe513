//! Operators that parse several fields from one.

use super::*;

fn with(ops: &str) -> String {
    format!(
        "source: {{ tfrecord: x, features: {{ line: {{ dtype: bytes }}, id: {{ dtype: i64 }} }} }}\n\
         ops:\n{ops}  - batch: {{ size: 2, ragged: true }}\n"
    )
}

fn parsed(ops: &str) -> Pipeline {
    let pipeline =
        gristmill_operators::parse(&with(ops)).unwrap_or_else(|error| panic!("{ops}: {error}"));
    let again = gristmill_operators::from_canonical(&pipeline.canonical_json()).unwrap();
    assert_eq!(again.canonical_json(), pipeline.canonical_json(), "{ops}");
    pipeline
}

fn fields(pipeline: &Pipeline) -> Vec<String> {
    let fields = pipeline.schemas().last().unwrap().fields.iter();
    fields.map(|(name, field)| format!("{name}: {field}")).collect()
}

const FEATURES: &str =
    "features: { tokens: { key: a.b, dtype: i64, shape: [-1] }, text: { dtype: bytes } }";

#[test]
fn features_take_the_place_of_their_bytes() {
    for op in ["parse_json", "parse_example"] {
        let pipeline = parsed(&format!("  - {op}: {{ field: line, {FEATURES} }}\n"));
        assert_eq!(fields(&pipeline), ["id: i64", "text: bytes", "tokens: i64 [?]"]);
        let kept = parsed(&format!("  - {op}: {{ field: line, keep: true, {FEATURES} }}\n"));
        assert_eq!(fields(&kept), ["id: i64", "line: bytes", "text: bytes", "tokens: i64 [?]"]);
    }
    let csv = "  - parse_csv: { field: line, columns: [x, x, w], delimiter: \"\\t\",\n      \
               features: { line: { key: w, dtype: f32, shape: [3] } } }\n";
    assert_eq!(fields(&parsed(csv)), ["id: i64", "line: f32 [3]"]);
}

#[test]
fn y_and_n_are_names() {
    let csv = "  - parse_csv: { field: line, columns: [x, y, on], features: { y: { dtype: f32 }, n: { key: on, dtype: i64 } } }\n";
    assert_eq!(fields(&parsed(csv)), ["id: i64", "n: i64", "y: f32"]);
    let keep = csv.replace("columns", "keep: yes, columns");
    assert!(error(&with(&keep)).contains("`keep` must be true or false, not `yes`"));
}

#[test]
fn unparsable_fields_are_refused() {
    let csv = |more: &str| format!("  - parse_csv: {{ field: line, {more} }}\n");
    let json = |more: &str| format!("  - parse_json: {{ field: {more} }}\n");
    let one = "features: { a: { dtype: i64 } }";
    for (ops, advice) in [
        (json("line"), "needs `features`"),
        (json(&format!("id, {one}")), "needs a byte string, but `id` is i64 in the source"),
        (json(&format!("lime, {one}")), "the element has `id`, `line`"),
        (json("line, features: { id: { dtype: i64 } }"), "has a field of that name in the source"),
        (
            json("line, keep: true, features: { line: { dtype: bytes } }"),
            "`parse_json` makes `line`",
        ),
        (json("line, features: { __a: { dtype: i64 } }"), "reserved"),
        (json("line, features: { a: { dtype: u8 } }"), "bytes, i64, u64, f32 or f64"),
        (csv(one), "needs `columns`"),
        (csv(&format!("columns: [], {one}")), "a list of 1 to 4096 names"),
        (csv(&format!("columns: [b], {one}")), "key `a` of `features` is none of `columns`"),
        (csv(&format!("columns: [a, a], {one}")), "is more than one of `columns`"),
        (csv(&format!("columns: [a], delimiter: \"é\", {one}")), "one ASCII character"),
        (csv(&format!("columns: [a], delimiter: '\"', {one}")), "one ASCII character"),
        (csv(&format!("columns: [a], delimiter: ', ', {one}")), "one ASCII character"),
    ] {
        let message = error(&with(&ops));
        assert!(message.starts_with("line 3: ") && message.contains(advice), "{ops}: {message}");
    }
}

#[test]
fn passes_know_every_field_that_is_written() {
    let optimised = |ops: &str| {
        let pipeline = parsed(ops);
        let names = |p: &Pipeline| p.stages().iter().map(|s| s.op.name()).collect::<Vec<_>>();
        names(&gristmill_pipeline::passes::optimise(&pipeline, &Default::default()).pipeline)
    };
    let parse = format!("  - parse_json: {{ field: line, keep: true, {FEATURES} }}\n");
    // A filter on another field moves before the parser; a filter on a parsed field does not.
    let other = format!("{parse}  - filter: {{ field: id, min: 1 }}\n");
    assert_eq!(optimised(&other), ["filter", "parse_json", "batch"]);
    let found = format!("{parse}  - filter: {{ field: text, min: 1 }}\n");
    assert_eq!(optimised(&found), ["parse_json", "filter", "batch"]);
    // A parser of unused fields is removed, unless it takes its input away: without it, the input
    // would be delivered.
    let unseen = format!("{parse}  - drop: {{ fields: [text, tokens] }}\n");
    assert_eq!(optimised(&unseen), ["batch"]);
    let one_seen = format!("{parse}  - drop: {{ fields: [tokens] }}\n");
    assert_eq!(optimised(&one_seen), ["parse_json", "drop", "batch"]);
    let taken = unseen.replace("keep: true, ", "");
    assert_eq!(optimised(&taken), ["parse_json", "drop", "batch"]);
}

#[test]
fn how_objects_are_kept_is_chosen_and_changes_no_result() {
    use gristmill_model::Compression;
    let parse = |line: &str| gristmill_operators::parse(&format!("{line}\n{RESNET}"));
    let plain = gristmill_operators::parse(RESNET).unwrap();
    assert_eq!(plain.compression(), Compression::Auto);
    for (name, compression) in Compression::CHOICES {
        let pipeline = parse(&format!("compress: {name}")).unwrap();
        assert_eq!(pipeline.compression(), compression);
        assert_eq!(pipeline.canonical_json(), plain.canonical_json());
        assert_eq!(pipeline.with_batch_size(7).unwrap().compression(), compression);
    }
    let error = parse("compress: gzip").unwrap_err().to_string();
    let expected = "line 1: the pipeline `compress` must be none, zstd or auto, not `gzip`";
    assert_eq!(error, expected);
}

/// Stored pipelines are read by the JSON reader: no YAML syntax, no duplicate keys, no deep
/// nesting.
#[test]
fn a_canonical_form_is_json_and_nothing_else() {
    let yaml =
        "source: { tfrecord: x, features: { i: { dtype: i64 } } }\nops: [batch: { size: 2 }]";
    let json = gristmill_operators::parse(yaml).unwrap().canonical_json();
    let refused = |json: &str| gristmill_operators::from_canonical(json).unwrap_err().to_string();
    assert!(gristmill_operators::from_canonical(&format!(" {json}\n")).is_ok());
    assert!(refused(&json[1..json.len() - 1]).contains("not valid JSON"));
    assert!(refused(&format!("# a comment\n{json}")).contains("not valid JSON"));
    let twice = json.replacen("{\"", "{\"version\":1,\"", 1);
    assert!(refused(&twice).contains("a key twice"), "{}", refused(&twice));
    let deep = format!("{}{}", "[".repeat(90), "]".repeat(90));
    assert!(refused(&deep).contains("nested too deep"));
    let deeper = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    assert!(!refused(&deeper).contains('\n'));
    let wide = format!("[{}0]", "0,".repeat(200_000));
    assert!(refused(&wide).contains("too many values"));
}

#[test]
fn fixed_shapes_keep_their_canonical_form() {
    let yaml = "source: { tfrecord: x, features: { v: { dtype: f32, shape: [2, 3] } } }\n\
                ops: [batch: { size: 2 }]";
    let canonical = gristmill_operators::parse(yaml).unwrap().canonical_json();
    assert!(canonical.contains(r#"{"v":{"key":"v","dtype":"f32","shape":[2,3]}}"#), "{canonical}");
}
