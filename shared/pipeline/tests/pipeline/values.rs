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

#[test]
fn buckets_have_one_size_or_one_each() {
    let buckets = |sizes: &str| {
        parse(&format!(
            "bucket_by_sequence_length: {{ field: tokens, boundaries: [8, 16], {sizes} }}"
        ))
    };
    let several = buckets("sizes: [9, 4, 2]").unwrap();
    assert_eq!((several.batch_size(), several.batching().largest_size()), (2, 9));
    assert!(several.canonical_json().contains(r#""boundaries":[8,16],"sizes":[9,4,2],"drop"#));
    let again = gristmill_operators::from_canonical(&several.canonical_json()).unwrap();
    assert_eq!(again.canonical_json(), several.canonical_json());
    // Equal sizes are one, and the same job.
    let one = buckets("size: 4").unwrap().canonical_json();
    assert_eq!(buckets("sizes: [4, 4, 4]").unwrap().canonical_json(), one);
    for (sizes, why) in [
        (
            "drop_remainder: true",
            "needs `size`, or `sizes` with one number for each of its 3 buckets",
        ),
        ("size: 4, sizes: [1, 2, 3]", "has `size` and `sizes`; leave one of them out"),
        ("sizes: [1, 2]", "has 2 `sizes` for 3 buckets"),
        ("sizes: [1, 2, 0]", "`sizes` must be a whole number from 1"),
    ] {
        let error = buckets(sizes).unwrap_err();
        assert!(error.contains(why), "{sizes}: {error}");
    }
    let error = several.clone().with_batch_size(8).unwrap_err().to_string();
    assert!(
        error.contains("batches of `bucket_by_sequence_length` differ in size; change its own"),
        "{error}"
    );
    let error = buckets("sizes: [9, 4, 2] }\nautocache: { reuse_random: true").unwrap_err();
    assert!(error.contains("cannot count them; put it before the batch"), "{error}");
}

#[test]
fn lists_of_one_length_are_unbatched() {
    let lists = "drop: { fields: [id, score, label, name] }\n";
    let padded = format!("{lists}pad_sequence: {{ field: tokens, length: 8, truncate: true }}\n");
    let twice = "copy: { field: tokens, into: again }\n";
    let shorter = "pad_sequence: { field: again, length: 4, truncate: true }\n";
    let all = element(&format!("{padded}{twice}unbatch")).unwrap();
    assert!(all.output_schema().field("again").unwrap().shape.is_empty());
    assert!(all.canonical_json().contains(r#""fields":null"#));
    let again = gristmill_operators::from_canonical(&all.canonical_json()).unwrap();
    assert_eq!(again.canonical_json(), all.canonical_json());
    // A split of as many bytes has an eighth of the records.
    let one = element(&format!("{padded}unbatch: {{ fields: tokens }}")).unwrap();
    assert_eq!(one.bytes_per_record(1), 8 * (8 + 8 + 4));
    for (ops, why) in [
        ("unbatch".to_owned(), "`id` is i64 in the source; name the lists with `fields`"),
        (
            "unbatch: { fields: [tokens, label] }".to_owned(),
            "`unbatch` needs lists of items of one shape, but `label`",
        ),
        ("unbatch: { fields: name }".to_owned(), "but `name` is bytes"),
        ("unbatch: { fields: [tokens, tokens] }".to_owned(), "names `tokens` twice"),
        (
            format!("{lists}{twice}{}{shorter}unbatch", &padded[lists.len()..]),
            "`again` has 4 and `tokens` 8",
        ),
        (
            "unbatch: { fields: tokens }\ntake: { count: 3 }".to_owned(),
            "`take` counts records, but comes after `unbatch`",
        ),
    ] {
        let error = element(&ops).expect_err(&ops);
        assert!(error.contains(why), "{ops}: {error}");
    }
}

#[test]
fn groups_are_of_numbers_or_lengths() {
    let groups = |more: &str| parse(&format!("group_by_window: {{ {more} }}"));
    let labels = groups("field: label, size: 8").unwrap();
    assert_eq!((labels.batch_size(), labels.batching().smallest_size()), (8, 1));
    assert!(labels.batching().has_sizes() && !labels.drop_remainder());
    let lengths = groups("field: tokens, boundaries: [1, 16], sizes: [9, 4, 2]").unwrap();
    assert_eq!(lengths.batching().batches_together(), 32);
    let again = gristmill_operators::from_canonical(&lengths.canonical_json()).unwrap();
    assert_eq!(again.canonical_json(), lengths.canonical_json());
    for (more, why) in [
        ("field: score, size: 8", "a whole number or a sequence, but `score` is f32"),
        ("field: label", "needs `size`"),
        ("field: label, sizes: [1, 2]", "are those between `boundaries`, which it lacks"),
        ("field: label, boundaries: [4, 3], size: 2", "ascending"),
        ("field: label, boundaries: [4], sizes: [1]", "has 1 `sizes` for 2 buckets"),
    ] {
        let error = groups(more).unwrap_err();
        assert!(error.contains(why), "{more}: {error}");
    }
    let error = parse("in_order\ngroup_by_window: { field: label, size: 2 }").unwrap_err();
    assert!(error.contains("`group_by_window` puts like keys together"), "{error}");
    // The fetcher does not take over what decides the key.
    let cast = "cast: { field: label, dtype: i32 }\nclip: { field: label, min: 0, max: 9 }\ncast: { field: label, dtype: i64 }";
    let ordered = |batch: &str| {
        let pipeline = parse(&format!("{cast}\n{batch}")).unwrap();
        let optimised = passes::optimise(&pipeline, &passes::MeasuredBytes::new());
        optimised.pipeline.deliver().stages.len()
    };
    assert_eq!(ordered("group_by_window: { field: label, size: 2 }"), 0);
    assert!(ordered("padded_batch: { size: 2 }") > 0);
}
