//! Valid pipeline files, errors in others, and forms that must never change.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_model::Fingerprint;
use gristmill_operators::{
    ColorJitter, Flip, GaussianBlur, RandomCrop, RandomResizedCrop, Shear, registry,
};
use gristmill_pipeline::{
    AssetReference, CachePoint, FeatureDType, FieldDType, FieldSchema, MAX_TEXT_BYTES,
    OperatorEffect, Pipeline, Randomness, ValueRange, passes,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

mod caching;
mod images;
mod parsing;
mod sequences;
mod together;
mod values;

const RESNET: &str = "\
name: resnet50
source:
  tfrecord: data/train-*.tfrecord
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - decode: { field: image }
  - random_resized_crop: { size: 224 }
  - flip: { p: 0.5 }
  - batch: { size: 64 }
deliver:
  normalise: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }
";

/// A pipeline over an image and a label with these lines under `ops:`; the first is line 7.
fn with_ops(ops: &str) -> String {
    let head = RESNET.split("  - decode").next().unwrap().replace("name: resnet50\n", "");
    format!("{head}{ops}")
}

fn error(yaml: &str) -> String {
    let error = gristmill_operators::parse(yaml).unwrap_err().to_string();
    assert!(!error.contains('\n') && error.len() < 400, "{error}");
    error
}

fn ops_error(ops: &str) -> String {
    error(&with_ops(ops))
}

#[test]
fn the_documented_pipeline_parses() {
    let pipeline = gristmill_operators::parse(RESNET).unwrap();
    assert_eq!(pipeline.name(), Some("resnet50"));
    assert_eq!(pipeline.source_paths(), ["data/train-*.tfrecord"]);
    assert_eq!((pipeline.batch_size(), pipeline.drop_remainder()), (64, false));
    assert_eq!(pipeline.element_bytes(), Some(224 * 224 * 3 + 8 + 8 + 4));
    let shown: Vec<String> = pipeline
        .schemas()
        .iter()
        .map(|schema| schema.field("image").unwrap().to_string())
        .collect();
    let pixels = "u8 [224, 224, 3]";
    assert_eq!(shown, ["bytes", "u8 [?, ?, 3]", pixels, pixels, pixels]);
    let fields: Vec<&str> = pipeline.output_schema().fields.keys().map(String::as_str).collect();
    assert_eq!(fields, ["__copy__", "__key__", "image", "label"]);
    assert_eq!(pipeline.stages()[3].line, Some(11));
    assert!(pipeline.deliver().normalise.is_some());
}

#[test]
fn bare_names_take_defaults_and_keep_position_is_recorded() {
    let ops = "  - decode\n  - random_resized_crop: { size: [8, 9], keep_position: true }\n  - flip\n  - batch: { size: 2 }\n";
    let pipeline = gristmill_operators::parse(&with_ops(ops)).unwrap();
    let keep: Vec<bool> = pipeline.stages().iter().map(|stage| stage.keep_position).collect();
    assert_eq!(keep, [false, true, false, false]);
    let crop: &RandomResizedCrop = pipeline.stages()[1].op.downcast_ref().unwrap();
    assert_eq!((crop.size, crop.scale, crop.filter.antialias), ([8, 9], [0.08, 1.0], true));
    assert_eq!(crop.ratio, [3.0 / 4.0, 4.0 / 3.0]);
    let flip: &Flip = pipeline.stages()[2].op.downcast_ref().unwrap();
    assert_eq!((flip.p, flip.fields.field.as_str()), (0.5, "image"));
}

#[test]
fn studies_need_no_image() {
    let yaml = "
source: { tfrecord: x, features: { id: { dtype: i64 }, v: { dtype: f32, shape: [2, 3] } } }
ops:
  - sleep: { ms: 2.5, per: element }
  - inflate: { field: v, factor: 10 }
  - batch: { size: 8, drop_remainder: true }
";
    let pipeline = gristmill_operators::parse(yaml).unwrap();
    assert_eq!(pipeline.element_bytes(), Some(8 + 240 + 12));
    assert!(pipeline.drop_remainder());
    assert_eq!(
        pipeline.output_schema().field("v"),
        Some(&FieldSchema::fixed(FieldDType::F32, [10, 2, 3]))
    );
}

#[test]
fn ranges_follow_the_values() {
    let ops = "  - decode\n  - resize: { size: 8 }\n  - normalise: { mean: [0.5, 0.5, 0], std: [0.5, 0.25, 1] }\n  - cast: { dtype: bf16 }\n  - batch: { size: 2 }\n";
    let pipeline = gristmill_operators::parse(&with_ops(ops)).unwrap();
    let image = pipeline.output_schema().field("image").unwrap();
    assert_eq!(
        (image.dtype, image.range),
        (FieldDType::BF16, Some(ValueRange { min: -2.0, max: 2.0 }))
    );
    let pipeline = gristmill_operators::parse(&with_ops(&ops.replace("bf16", "u8"))).unwrap();
    let image = pipeline.output_schema().field("image").unwrap();
    let saturated = Some(ValueRange { min: 0.0, max: 2.0 });
    assert_eq!((image.dtype, image.range), (FieldDType::U8, saturated));
}

#[test]
fn operators_and_keys_that_are_not_known_are_guessed() {
    assert_eq!(
        ops_error("  - decode\n  - resze: { size: 8 }\n"),
        "line 8: op `resze` is not known; did you mean `resize`?"
    );
    assert!(
        ops_error("  - teleport\n")
            .starts_with("line 7: op `teleport` is not known; docs/operators.md has the ")
    );
    assert_eq!(
        ops_error("  - decode\n  - resize: { siz: 8 }\n"),
        "line 8: `resize` has no key `siz`; did you mean `size`?"
    );
    assert_eq!(
        ops_error("  - decode\n  - resize: { size: 8, antialas: no }\n"),
        "line 8: `resize` has no key `antialas`; did you mean `antialias`?"
    );
    assert_eq!(
        ops_error("  - decode: { colour: 3 }\n"),
        "line 7: `decode` has no key `colour`; it takes apply_exif_orientation, assume_commutes, channels, dtype, field, keep_position, mode, typical_size"
    );
    assert_eq!(
        error(&RESNET.replace("ops:", "opps:")),
        "line 7: the pipeline has no key `opps`; did you mean `ops`?"
    );
    assert_eq!(
        error(&RESNET.replace("features:", "feature:")),
        "line 4: `source` has no key `feature`; did you mean `features`?"
    );
}

#[test]
fn shapes_must_be_known_at_the_batch() {
    assert_eq!(
        ops_error("  - decode\n  - flip\n  - batch: { size: 8 }\n"),
        "line 9: `batch` needs every element of one shape, but `image` is u8 [?, ?, 3] after `flip`; put a resize or crop before it, or say `ragged: true`"
    );
    assert_eq!(
        ops_error("  - batch: { size: 8 }\n"),
        "line 7: `batch` needs every element of one shape, but `image` is bytes in the source; decode it, leave it out, or say `ragged: true`"
    );
    assert_eq!(
        ops_error("  - resize: { size: 8 }\n"),
        "line 7: `resize` needs an image (u8 or f32 [h, w, 1] or [h, w, 3]), but `image` is bytes in the source; put `decode` before it"
    );
    assert_eq!(
        ops_error("  - decode: { field: label }\n"),
        "line 7: `decode` needs bytes, but `label` is i64 in the source"
    );
    assert_eq!(
        ops_error("  - decode: { field: img }\n"),
        "line 7: `decode` works on field `img`, but the element has `image`, `label`; name one with `field:`"
    );
}

#[test]
fn batch_comes_once_and_last() {
    let good = "  - decode\n  - resize: { size: 8 }\n";
    assert!(ops_error(good).contains("the pipeline has no `batch`; end `ops` with"));
    let twice = format!("{good}  - batch: {{ size: 2 }}\n  - batch: {{ size: 2 }}\n");
    assert_eq!(ops_error(&twice), "line 10: `batch` comes after a batch; keep one of them");
    let after = format!("{good}  - batch: {{ size: 2 }}\n  - flip\n");
    assert_eq!(
        ops_error(&after),
        "line 10: `flip` comes after `batch`; move it before: after `batch` only `autocache` may come"
    );
}

#[test]
fn values_out_of_range_are_refused() {
    let bad = |op: &str, message: &str| {
        let error = ops_error(&format!("  - decode\n  - {op}\n"));
        assert_eq!(error, format!("line 8: {message}"), "{op}");
    };
    let sizes = "a whole number from 1 to 16384";
    bad("resize: { size: 0 }", &format!("`resize` `size` must be {sizes}, not 0"));
    bad("resize: { size: 16385 }", &format!("`resize` `size` must be {sizes}, not 16385"));
    bad("resize: { size: [8, -1] }", &format!("`resize` `size` must be {sizes}, not -1"));
    bad("resize: { size: [8] }", &format!("`resize` `size` must be {sizes}, not a list"));
    bad("resize: { size: 8.5 }", &format!("`resize` `size` must be {sizes}, not 8.5"));
    bad("resize: { size: big }", &format!("`resize` `size` must be {sizes}, not `big`"));
    bad(
        "resize: { size: 99999999999999999999999999 }",
        &format!("`resize` `size` must be {sizes}, not 100000000000000000000000000"),
    );
    bad("flip: { p: -0.1 }", "`flip` `p` must be a number from 0 to 1, not -0.1");
    bad("flip: { p: 1.5 }", "`flip` `p` must be a number from 0 to 1, not 1.5");
    bad("flip: { p: true }", "`flip` `p` must be a number from 0 to 1, not true");
    bad("flip: 0.5", "`flip` must be a mapping of keys, not 0.5");
    bad("batch: { size: 0 }", "`batch` `size` must be a whole number from 1 to 1048576, not 0");
    bad(
        "batch: { size: 2, drop_remainder: 1 }",
        "`batch` `drop_remainder` must be true or false, not 1",
    );
    bad("sleep: { ms: 60001 }", "`sleep` `ms` must be a number from 0 to 60000, not 60001");
    bad("sleep: { ms: 1, per: batch }", "`sleep` `per` must be element, not `batch`");
    bad(
        "cast: { dtype: f128 }",
        "`cast` `dtype` must be u8, u16, i32, i64, u64, f16, bf16, f32 or f64, not `f128`",
    );
    bad(
        "random_resized_crop: { size: 8, scale: [0.5, 0.1] }",
        "`random_resized_crop` `scale` must be [low, high] with 0.000001 <= low <= high, not [0.5, 0.1]",
    );
    bad(
        "random_resized_crop: { size: 8, scale: [0, 2] }",
        "`random_resized_crop` `scale` must be a number from 0 to 1, not 2",
    );
    bad(
        "normalise: { mean: [0, 0], std: [1, 1, 1] }",
        "`normalise` `mean` must be a list of 3 numbers, not a list",
    );
    bad(
        "normalise: { mean: [0, 0, 0], std: [1, 0, 1] }",
        "`normalise` `std` must be a number from 0.000001 to 1000000, not 0",
    );
    bad(
        "inflate: { factor: 2 }",
        "`inflate` needs numbers of one shape, but `image` is u8 [?, ?, 3] after `decode`",
    );
}

#[test]
fn texts_in_place_of_numbers_are_refused() {
    for (bad, shown) in [(".nan", "NaN"), (".inf", "inf"), ("-.inf", "-inf"), ("1e999", "inf")] {
        assert_eq!(
            ops_error(&format!("  - flip: {{ p: {bad} }}\n")),
            format!("line 7: `flip` `p` must be a number from 0 to 1, not {shown}")
        );
    }
}

#[test]
fn batches_must_fit_a_frame() {
    let ops = "  - decode\n  - resize: { size: 16384 }\n  - batch: { size: 1 }\n";
    let message = ops_error(ops);
    assert!(
        message.starts_with("line 9: a batch of 1 elements has 805306388 bytes; the limit is"),
        "{message}"
    );
    let message = ops_error(
        "  - inflate: { field: label, factor: 1000000 }\n  - inflate: { field: label, factor: 1000 }\n",
    );
    assert!(
        message.starts_with("line 8: `inflate` makes `label` i64 [1000, 1000000]"),
        "{message}"
    );
    let pipeline = gristmill_operators::parse(RESNET).unwrap();
    let message = pipeline.clone().with_batch_size(100_000).unwrap_err().to_string();
    assert!(message.starts_with("a batch of 100000 elements has"), "{message}");
    assert!(pipeline.clone().with_batch_size(0).is_err());
    let other = pipeline.with_batch_size(7).unwrap();
    assert_eq!(other.batch_size(), 7);
    assert!(other.canonical_json().contains("\"size\":7"));
}

#[test]
fn the_shape_of_the_file_is_checked() {
    assert_eq!(error(""), "the pipeline is empty; it needs `source` and `ops`");
    assert_eq!(error("ops: []"), "the pipeline needs `source`");
    assert!(error("- a").contains("the pipeline must be a mapping of keys, not a list"));
    assert!(
        error(&RESNET.replace("tfrecord: data", "tfrecrd: data"))
            .starts_with("line 3: `source` needs `tfrecord: PATH`, `webdataset: PATH`,")
    );
    assert!(
        ops_error("  decode: 3\n").contains("`ops` must be a list of operators, not a mapping")
    );
    assert_eq!(
        ops_error("  - decode:\n    field: image\n"),
        "line 8: an op is one name with its parameters below it; `field` stands beside `decode`: indent it further, or start it with a dash"
    );
    assert!(
        ops_error("  - [decode]\n").contains("an op is a name with its parameters, not a list")
    );
    assert_eq!(
        error("a: b: c"),
        "line 1: this is not valid YAML: mapping values are not allowed in this context"
    );
    assert!(error("ops: [\n\n  {").contains("this is not valid YAML"));
    let twice = RESNET.replace("deliver:", "ops: []\ndeliver:");
    assert_eq!(
        error(&twice),
        "line 12: this is not valid YAML: duplicate mapping key: ops not allowed here"
    );
    let long = format!("# {}\n{RESNET}", "x".repeat(MAX_TEXT_BYTES));
    assert!(error(&long).contains("the limit is 4194304"));
}

#[test]
fn features_are_checked() {
    let bad = |from: &str, to: &str| error(&RESNET.replace(from, to));
    assert!(
        bad("dtype: i64", "dtype: int64")
            .contains("feature `label` `dtype` must be bytes, i64, u64, f32 or f64, not `int64`")
    );
    assert!(bad("label:", "__key__:").contains("field `__key__` is reserved"));
    assert!(bad("label:", "my label:").contains("field `my label` is not a name"));
    assert!(bad("label:", "3d:").contains("field `3d` is not a name"));
    assert!(
        bad("dtype: i64", "dtype: i64, shape: [0]")
            .contains("`shape` must be a whole number from 1")
    );
    assert!(bad("dtype: bytes", "dtype: bytes, shape: [2]").contains("leave out `shape`"));
    assert!(bad("dtype: i64", "dtype: i64, shape: [1048576, 1048576]").contains("1048576 values"));
    assert!(bad("key: image/class/label", "key: 7").contains("`key` must be text"));
    assert!(
        bad("dtype: i64", "dtype: i64, default: 7")
            .contains("`default`; write `defaults: { label: .. }` beside the path of the source")
    );
    assert!(
        bad("key: image/class/label", r#"key: "a\tb""#)
            .contains("`key` must be text without control characters")
    );
}

#[test]
fn deliver_must_fit_what_is_delivered() {
    let message = error(&RESNET.replace("normalise: { mean", "normalise: { field: label, mean"));
    assert!(
        message.starts_with(
            "line 13: `normalise` needs an image (u8 or f32 [h, w, 3]), but `label` is i64"
        ),
        "{message}"
    );
    let message = error(&RESNET.replace("  normalise: { mean", "  normalize: { mean"));
    assert!(message.contains("did you mean `normalise`?"), "{message}");
}

#[test]
fn alias_bombs_are_refused_quickly() {
    let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let before = format!("*a{}, ", i - 1).repeat(10);
        yaml.push_str(&format!("a{i}: &a{i} [{before}]\n"));
    }
    assert!(error(&yaml).contains("not valid YAML"), "{}", error(&yaml));
    assert!(error(&"[".repeat(10_000)).contains("not valid YAML"));
    assert!(error(&"- ".repeat(10_000)).contains("not valid YAML"));
}

/// Frozen jobs carry this text: a change needs a new version of the canonical form.
#[test]
fn the_canonical_form_is_what_it_was() {
    let expected = concat!(
        r#"{"version":1,"source":{"tfrecord":{"image":{"key":"image/encoded","dtype":"bytes","shape":[]},"#,
        r#""label":{"key":"image/class/label","dtype":"i64","shape":[]}}},"ops":["#,
        r#"{"op":"decode","version":1,"ordinal":0,"keep_position":false,"params":{"field":"image"}},"#,
        r#"{"op":"random_resized_crop","version":1,"ordinal":1,"keep_position":false,"params":{"field":"image","#,
        r#""size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],"antialias":true}},"#,
        r#"{"op":"flip","version":1,"ordinal":2,"keep_position":false,"params":{"field":"image","p":0.5}},"#,
        r#"{"op":"batch","version":1,"ordinal":3,"keep_position":false,"params":{"size":64,"drop_remainder":false}}],"#,
        r#""deliver":{"normalise":{"field":"image","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}}}"#,
    );
    assert_eq!(gristmill_operators::parse(RESNET).unwrap().canonical_json(), expected);
}

#[test]
fn the_canonical_form_refuses_what_this_build_has_not() {
    let json = gristmill_operators::parse(RESNET).unwrap().canonical_json();
    let bad = |from: &str, to: &str| {
        let error = gristmill_operators::from_canonical(&json.replacen(from, to, 1)).unwrap_err();
        assert_eq!(error.line, None);
        error.to_string()
    };
    assert!(bad(r#""version":1"#, r#""version":2"#).contains("has version 2, this build reads 1"));
    assert!(
        bad(r#""decode","version":1"#, r#""decode","version":2"#)
            .contains("op `decode` is needed in version 2, this build has 1")
    );
    assert!(bad(r#""op":"flip""#, r#""op":"warp""#).contains("op `warp` is not known"));
    assert!(bad(r#""ordinal":2"#, r#""ordinal":1"#).contains("the same ordinal"));
    assert!(bad(r#""p":0.5"#, r#""q":0.5"#).contains("`flip` has no key `q`"));
    assert!(gristmill_operators::from_canonical("").is_err());
    assert!(gristmill_operators::from_canonical("{}").is_err());
}

#[test]
fn fingerprints_change_with_what_they_name_and_with_nothing_else() {
    let parse = |yaml: &str| gristmill_operators::parse(yaml).unwrap();
    let (a, b) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
    let base = parse(RESNET).fingerprint(&a, "x86");
    assert_ne!(base, parse(RESNET).fingerprint(&b, "x86"));
    assert_ne!(base, parse(RESNET).fingerprint(&a, "arm"));
    let same =
        |from: &str, to: &str| parse(&RESNET.replace(from, to)).fingerprint(&a, "x86") == base;
    assert!(same("resnet50", "other"));
    assert!(same("data/train-*", "elsewhere/*"));
    assert!(same("0.485", "0.5"));
    assert!(same("size: 224", "size: [224, 224], antialias: true, keep_position: true"));
    assert!(!same("size: 224", "size: 225"));
    assert!(!same("p: 0.5", "p: 0.4"));
    assert!(!same("image/encoded", "image/other"));
    // A random operator that moves behind another has another ordinal, which keys its draws.
    assert!(!same("  - random", "  - sleep: { ms: 0 }\n  - random"));
}

#[test]
fn prefixes_take_seed_and_epoch_from_the_first_random_op_on() {
    let pipeline = gristmill_operators::parse(RESNET).unwrap();
    let dataset = Fingerprint([1; 32]);
    let at = |seed, epoch| pipeline.prefix_fingerprints(&dataset, "x86", seed, epoch);
    let base = at(1, 0);
    assert_eq!(base.len(), 5);
    let differs = |other: Vec<Fingerprint>| -> Vec<bool> {
        base.iter().zip(&other).map(|(a, b)| a != b).collect()
    };
    assert_eq!(differs(at(1, 0)), [false; 5]);
    assert_eq!(differs(at(2, 0)), [false, false, true, true, true]);
    assert_eq!(differs(at(1, 1)), [false, false, true, true, true]);
    let fixed = gristmill_operators::parse(&with_ops(
        "  - decode\n  - resize: { size: 8 }\n  - batch: { size: 2 }\n",
    ))
    .unwrap();
    let prefixes = fixed.prefix_fingerprints(&dataset, "x86", 9, 9);
    assert_eq!(prefixes[3], fixed.fingerprint(&dataset, "x86"));
    assert_eq!(prefixes[1], base[1]);
}

#[test]
fn every_operator_declares_itself_consistently() {
    let names: BTreeSet<&str> = registry().names().collect();
    assert_eq!(names.len(), registry().entries().len());
    assert!(registry().entries().iter().all(|entry| entry.declaration.version > 0));
}

#[test]
fn data_can_be_elsewhere() {
    let pipeline = gristmill_operators::parse(RESNET).unwrap();
    let moved = RESNET.replace(pipeline.source_paths()[0].as_str(), "s3://bucket/prefix");
    let moved = gristmill_operators::parse(&moved).unwrap();
    assert_eq!(moved.source_paths(), ["s3://bucket/prefix"]);
    assert_eq!(moved.canonical_json(), pipeline.canonical_json());
}

fn number(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (low..=high).prop_map(|x| x + 0.0)
}

/// Operators that make an image of fixed size from an encoded one.
fn any_ops() -> impl Strategy<Value = String> {
    let size = || (1_u32..600, 1_u32..600);
    let shaped = prop_oneof![
        (size(), any::<bool>())
            .prop_map(|((h, w), aa)| format!("resize: {{ size: [{h}, {w}], antialias: {aa} }}")),
        (size(), number(0.01, 0.4), number(0.4, 1.0)).prop_map(|((h, w), low, high)| format!(
            "random_resized_crop: {{ size: [{h}, {w}], scale: [{low:?}, {high:?}] }}"
        )),
    ];
    let pixels = prop_oneof![
        Just("autocache: { reuse_random: true }\n  - flip".to_owned()),
        number(0.0, 1.0).prop_map(|p| format!("flip: {{ p: {p:?} }}")),
        (0.0..100.0).prop_map(|ms| format!("sleep: {{ ms: {ms:?}, keep_position: true }}")),
        Just("cast: { dtype: u8 }".to_owned()),
    ];
    let last = prop_oneof![
        Just("flip".to_owned()),
        prop::array::uniform3(number(-2.0, 2.0)).prop_map(|[a, b, c]| format!(
            "normalise: {{ mean: [{a:?}, {b:?}, {c:?}], std: [1, {:?}, 0.5] }}",
            a.abs() + 0.1
        )),
        Just("cast: { dtype: f16 }".to_owned()),
        (1_u32..5).prop_map(|factor| format!("inflate: {{ factor: {factor} }}")),
    ];
    (shaped, prop::collection::vec(pixels, 0..5), last, 1_u32..64, any::<bool>()).prop_map(
        |(shaped, pixels, last, size, drop)| {
            let batch = format!("batch: {{ size: {size}, drop_remainder: {drop} }}");
            let ops = ["decode".to_owned(), shaped].into_iter().chain(pixels).chain([last, batch]);
            ops.map(|op| format!("  - {op}\n")).collect()
        },
    )
}

proptest! {
    #[test]
    fn canonical_round_trips(ops in any_ops(), key in "[ -~é漢]{1,40}") {
        let quoted = serde_json::to_string(&key).unwrap();
        let yaml = with_ops(&ops).replace("image/encoded", &quoted);
        let pipeline = gristmill_operators::parse(&yaml).map_err(|e| TestCaseError::fail(format!("{e}\n{yaml}")))?;
        let json = pipeline.canonical_json();
        let again = gristmill_operators::from_canonical(&json).map_err(|e| TestCaseError::fail(format!("{e}\n{json}")))?;
        prop_assert_eq!(&again.canonical_json(), &json);
        prop_assert_eq!(again.schemas(), pipeline.schemas());
        let dataset = Fingerprint([3; 32]);
        prop_assert_eq!(again.fingerprint(&dataset, "n"), pipeline.fingerprint(&dataset, "n"));
        prop_assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = gristmill_operators::parse(&text);
        let _ = gristmill_operators::from_canonical(&text);
    }

    #[test]
    fn no_mutation_panics(
        at in any::<prop::sample::Index>(),
        length in 0_usize..12,
        with in prop_oneof![
            Just(String::new()),
            "[-\\[\\]{}:,#&*!|>'\"%@` \n\t0-9a-z]{0,6}",
            Just("&a".to_owned()), Just("*a".to_owned()), Just("\n---\n".to_owned()),
            Just("<<: *a".to_owned()), Just("é\u{feff}".to_owned()), Just("!!int".to_owned()),
        ],
        ops in any_ops(),
    ) {
        for text in [with_ops(&ops), gristmill_operators::parse(&with_ops(&ops)).unwrap().canonical_json()] {
            let start = at.index(text.len());
            let end = (start + length).min(text.len());
            let mutated = format!("{}{with}{}", &text[..start], &text[end..]);
            for error in [gristmill_operators::parse(&mutated).err(), gristmill_operators::from_canonical(&mutated).err()] {
                prop_assert!(error.is_none_or(|e| !e.to_string().contains('\n')));
            }
        }
    }
}

#[test]
fn sources_say_how_their_records_are_stored() {
    let pipeline = |source: &str| {
        format!(
            "source: {{ {source} }}\nops: [decode, resize: {{ size: 8 }}, batch: {{ size: 2 }}]"
        )
    };
    let parsed = |source: &str| gristmill_operators::parse(&pipeline(source)).unwrap();
    let images = parsed("images: data/train");
    assert_eq!(images.source().format.name(), "images");
    assert_eq!(images.source_paths(), ["data/train"]);
    let keys: Vec<_> =
        images.source().features.values().map(|f| (f.key.as_str(), f.dtype)).collect();
    assert_eq!(keys, [("image", FeatureDType::Bytes), ("label", FeatureDType::I64)]);
    let named = parsed(
        "images: x, features: { image: { dtype: bytes }, class: { key: label, dtype: i64 } }",
    );
    assert_eq!(named.source().features["class"].key, "label");
    let tar = parsed("webdataset: x, features: { image: { key: jpg;png, dtype: bytes } }");
    for pipeline in [&images, &named, &tar] {
        let read = gristmill_operators::from_canonical(&pipeline.canonical_json()).unwrap();
        assert_eq!(read.source().format, pipeline.source().format);
        assert_eq!(read.canonical_json(), pipeline.canonical_json());
    }
    assert_ne!(images.canonical_json(), named.canonical_json());

    let error =
        |source: &str| gristmill_operators::parse(&pipeline(source)).unwrap_err().to_string();
    let both = error("images: x, tfrecord: y");
    assert_eq!(
        both,
        "line 1: `source` names both `tfrecord` and `images`; a dataset has one format, and `zip` is \
         for several datasets side by side"
    );
    let features = error("webdataset: x");
    assert!(features.contains("`source` needs `features`"), "{features}");
    for key in ["JPG", "'jpg;'", "a/b"] {
        let error =
            error(&format!("webdataset: x, features: {{ image: {{ key: {key}, dtype: bytes }} }}"));
        assert!(error.contains("names no member: give what follows the first dot"), "{error}");
    }
    let other = error("images: x, features: { image: { dtype: bytes }, size: { dtype: i64 } }");
    assert!(other.contains("has `image` (bytes) and `label` (i64), not `size` (i64)"), "{other}");
    let dtype = error("images: x, features: { image: { dtype: bytes }, label: { dtype: f32 } }");
    assert!(dtype.contains("not `label` (f32)"), "{dtype}");
}

#[test]
fn operators_of_users_are_planned_without_them() {
    let json = include_str!("../../../../fuzz/corpus/canonical/custom_good").trim();
    let pipeline = gristmill_operators::from_canonical(json).unwrap();
    assert_eq!(pipeline.canonical_json(), json);
    assert_eq!(pipeline.output_schema().field("cut").unwrap().to_string(), "f32 [2, 3, 1]");
    let declared = pipeline.stages()[0].op.declaration();
    assert!(declared.pins_position && declared.randomness == Randomness::Random);
    assert_eq!(declared.effect, OperatorEffect::Window);
    for (from, to, why) in [
        ("\"a.b\"", "\"a..b\"", "lower-case letters"),
        ("\"a.b\"", "\"A.b\"", "lower-case letters"),
        ("\"window\"", "\"select\"", "opaque"),
        ("[2,3,1],\"range\"", "[2,3,-1],\"range\"", "whole number"),
        ("\"into\":\"cut\"", "\"into\":\"__key__\"", "reserved"),
        ("\"field\":\"image\"", "\"field\":\"picture\"", "the element has `image`"),
        ("\"params\":{\"holes\"", "\"other\":{\"holes\"", "needs `params`"),
    ] {
        assert!(json.contains(from), "{from}");
        let error =
            gristmill_operators::from_canonical(&json.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{to}: {error}");
    }
}
