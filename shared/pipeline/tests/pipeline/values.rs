//! Numbers to compare with fields or to fill them with, and new fields beside the existing ones.

use super::*;

fn parse(ops: &str) -> Result<Pipeline, String> {
    let text = format!(
        "source:\n  jsonl: x\n  features:\n    id: {{ dtype: i64 }}\n    score: {{ dtype: f32 }}\n    \
         label: {{ dtype: i64 }}\n    name: {{ dtype: bytes }}\n    tokens: {{ dtype: i64, shape: [-1] }}\n\
         ops:\n{}",
        ops.lines().map(|op| format!("  - {op}\n")).collect::<String>()
    );
    gristmill_operators::parse(&text).map_err(|error| error.to_string())
}

/// A pipeline with a batch that accepts any fields.
fn element(op: &str) -> Result<Pipeline, String> {
    parse(&format!("{op}\npadded_batch: {{ size: 4 }}"))
}

#[test]
fn a_number_that_its_field_cannot_hold_is_refused() {
    for (op, wanted) in [
        (
            "filter: { field: id, min: 1.5 }",
            "`filter` `min` must be a whole number from -9223372036854775808 to 9223372036854775807, not 1.5: it tests `id`, which is i64 in the source",
        ),
        ("filter: { field: id, in: [1, 9223372036854775808] }", "not 9223372036854775808"),
        ("filter: { field: id, max: 99999999999999999999 }", "not 100000000000000000000"),
        ("filter: { field: name, min: -1 }", "it tests the length of `name`"),
        ("filter: { field: tokens, in: [2.5] }", "not 2.5"),
        ("filter: { field: score, min: 1e39 }", "not 1000000000000000000000000000000000000000"),
        (
            "cast: { field: id, dtype: u8 }\nfilter: { field: id, min: -1 }",
            "a whole number from 0 to 255, not -1",
        ),
        ("clip: { field: id, max: 0.5 }", "`clip` `max` must be a whole number"),
        ("cast: { field: id, dtype: u16 }\nclip: { field: id, max: 65536 }", "65535, not 65536"),
    ] {
        let error = element(op).expect_err(op);
        assert!(error.starts_with("line 1") && error.contains(wanted), "{op}: {error}");
    }
    let padded = "padded_batch: { size: 4, values: { tokens: 0.5 } }";
    let error = parse(padded).unwrap_err();
    assert!(error.contains("pads `tokens`, which is i64 [?], with a whole number"), "{error}");
}

#[test]
fn whole_numbers_of_64_bits_are_kept() {
    for (op, kept) in [
        (
            "filter: { field: id, in: [9007199254740993, -9223372036854775808] }",
            "[9007199254740993,-9223372036854775808]",
        ),
        ("filter: { field: id, min: 2.0 }", "\"min\":2,"),
        ("filter: { field: score, in: [0.1, 3] }", "[0.1,3]"),
        ("clip: { field: id, max: 9223372036854775807 }", "9223372036854775807"),
        ("pad_sequence: { field: tokens, length: 4, value: 9007199254740993 }", "9007199254740993"),
    ] {
        let canonical = element(op).expect(op).canonical_json();
        assert!(canonical.contains(kept), "{op}: {canonical}");
        let again = gristmill_operators::from_canonical(&canonical).unwrap();
        assert_eq!(again.canonical_json(), canonical, "{op}");
    }
    let padded = parse("padded_batch: { size: 4, values: { tokens: -9007199254740993 } }").unwrap();
    assert!(padded.canonical_json().contains("-9007199254740993"));
}

#[test]
fn paddings_of_floats_are_any_number() {
    for (value, kept) in [(".nan", "\".nan\""), ("-.inf", "\"-.inf\""), ("\".inf\"", "\".inf\"")] {
        for op in [
            format!(
                "cast: {{ field: tokens, dtype: f16 }}\npadded_batch: {{ size: 4, values: {{ tokens: {value} }} }}"
            ),
            format!(
                "cast: {{ field: tokens, dtype: f32 }}\npad_sequence: {{ field: tokens, length: 4, value: {value} }}\npadded_batch: {{ size: 4 }}"
            ),
        ] {
            let pipeline = parse(&op).expect(&op);
            let canonical = pipeline.canonical_json();
            assert!(canonical.contains(kept), "{op}: {canonical}");
            let again = gristmill_operators::from_canonical(&canonical).unwrap();
            assert_eq!(again.canonical_json(), canonical, "{op}");
        }
        let error = parse(&format!("padded_batch: {{ size: 4, values: {{ tokens: {value} }} }}"));
        assert!(error.unwrap_err().contains("with a whole number from"), "{value}");
        // A bound is finite.
        element(&format!("filter: {{ field: score, max: {value} }}")).unwrap_err();
    }
    let error = parse("padded_batch: { size: 4, values: { tokens: none } }").unwrap_err();
    assert!(error.contains("must be a number, not `none`"), "{error}");
}

#[test]
fn ranges_without_a_number_are_refused() {
    for (op, wanted) in [
        (
            "filter: { field: id, min: 3, max: 1 }",
            "`filter` `min` must be at most `max`, not 3 and 1",
        ),
        ("filter: { field: score, min: 0.5, max: 0.25 }", "not 0.5 and 0.25"),
        ("filter: { field: id, min: 3, in: [1, 2] }", "`filter` keeps nothing: no value of `in`"),
        ("clip: { field: id, min: 3, max: 1 }", "`clip` `min` must be at most `max`, not 3 and 1"),
    ] {
        let error = element(op).expect_err(op);
        assert!(error.contains(wanted), "{op}: {error}");
    }
    element("filter: { field: id, min: 3, max: 3 }").unwrap();
    element("filter: { field: id, min: 2, in: [1, 2] }").unwrap();
}

#[test]
fn arithmetic_has_the_dtype_and_shape_of_numpy() {
    let made = |ops: &str, name: &str| {
        element(ops).map(|pipeline| pipeline.output_schema().field(name).unwrap().to_string())
    };
    for (ops, name, wanted) in [
        ("add: { field: id, value: 3 }", "id", "i64"),
        ("add: { field: id, value: 0.5 }", "id", "f64"),
        ("divide: { field: id, value: 1000 }", "id", "f64"),
        ("multiply: { field: score, by: id }", "score", "f64"),
        ("subtract: { field: id, by: tokens }", "id", "i64 [?]"),
        ("multiply: { field: tokens, by: tokens }", "tokens", "i64 [?]"),
        (
            "cast: { field: tokens, dtype: f16 }\nadd: { field: tokens, by: score }",
            "tokens",
            "f32 [?]",
        ),
    ] {
        assert_eq!(made(ops, name).expect(ops), wanted, "{ops}");
    }
    for (ops, wanted) in [
        ("add: { field: id }", "`add` needs `value`, a number, or `by`, a field"),
        (
            "add: { field: id, value: 1, by: score }",
            "`add` needs `value`, a number, or `by`, a field",
        ),
        ("divide: { field: id, value: 0.0 }", "`divide` `value` must not be 0"),
        ("multiply: { field: name, value: 2 }", "`multiply` needs numbers, but `name` is bytes"),
        ("multiply: { field: id, by: name }", "`multiply` needs numbers, but `name` is bytes"),
        ("add: { field: id, by: nome }", "`nome`"),
        (
            "cast: { field: id, dtype: u8 }\nadd: { field: id, value: 256 }",
            "`add` `value` must be a whole number from 0 to 255, not 256: `id` is u8 after `cast`",
        ),
        (
            "cast: { field: score, dtype: bf16 }\nadd: { field: score, value: 1 }",
            "`cast` it to f32 before",
        ),
        (
            "pad_sequence: { field: tokens, length: 3 }\none_hot: { field: id, classes: 4 }\nadd: { field: id, by: tokens }",
            "`add` needs fields of one shape, or one number: `id` is f32 [4]",
        ),
    ] {
        let error = element(ops).expect_err(ops);
        assert!(error.contains(wanted), "{ops}: {error}");
    }
}

#[test]
fn a_new_field_takes_no_name_that_there_is() {
    for (op, made) in [
        ("copy: { field: id, into: label }", "`copy` makes the new field `label`"),
        ("copy: { field: id, into: id }", "`copy` makes the new field `id`"),
        ("length: { field: tokens, into: label }", "`length` makes the new field `label`"),
        (
            "copy: { field: id, into: a }\nlength: { field: name, into: a }",
            "one of that name after `copy`",
        ),
    ] {
        let error = element(op).expect_err(op);
        assert!(error.contains(made) && error.contains("drop"), "{op}: {error}");
    }
    element("drop: { fields: [label] }\ncopy: { field: id, into: label }").unwrap();
}

#[test]
fn ordered_pipelines_refuse_buckets() {
    let buckets = "bucket_by_sequence_length: { size: 4, field: tokens, boundaries: [8] }";
    let error = parse(&format!("in_order\n{buckets}")).unwrap_err();
    assert!(error.starts_with("line 10: `in_order` keeps the order of records"), "{error}");
    assert!(parse("in_order\npadded_batch: { size: 4 }").unwrap().is_in_order());
    assert!(!parse("padded_batch: { size: 4 }").unwrap().is_in_order());
}
