//! Formats and shapes in pipeline files.

use super::*;
use crate::MAX_VALUES;

/// Parses only the source, since only its features matter here.
fn parse(source: &str) -> Result<PipelineSource, String> {
    // Operators that make lengths equal are out of scope here.
    let text = format!("{source}\n");
    let node = SyntaxNode::parse(&text).map_err(|error| error.to_string())?;
    PipelineSource::parse(&node).map_err(|error| error.to_string())
}

fn feature(format: &str, feature: &str) -> Result<Feature, String> {
    let source = parse(&format!("{format}: x\nfeatures: {{ v: {feature} }}"))?;
    Ok(source.features["v"].clone())
}

#[test]
fn the_first_dimension_may_be_unknown() {
    let varying = feature("jsonl", "{ dtype: i64, shape: [-1, 80] }").unwrap();
    assert_eq!(varying.shape, [None, Some(80)]);
    assert_eq!((varying.values(), varying.inner_values()), (None, 80));
    assert_eq!(varying.check_values(160), Ok(()));
    assert_eq!(varying.check_values(0), Ok(()));
    let odd = varying.check_values(81).unwrap_err();
    assert_eq!(odd, "has 81 values, which is no multiple of the 80 of a row");
    let many = varying.check_values(MAX_VALUES as usize + 80).unwrap_err();
    assert!(many.contains("the limit is 1048576"), "{many}");

    let fixed = feature("parquet", "{ dtype: f32, shape: [2, 3] }").unwrap();
    assert_eq!((fixed.values(), fixed.inner_values()), (Some(6), 3));
    assert_eq!(fixed.check_values(5).unwrap_err(), "has 5 values, the pipeline reads 6");
    let scalar = feature("tfrecord", "{ dtype: f32 }").unwrap();
    assert_eq!((scalar.values(), scalar.check_values(1)), (Some(1), Ok(())));

    let source = parse("tfrecord: x\nfeatures: { v: { dtype: f32, shape: [-1, 4] } }").unwrap();
    assert_eq!(source.schema().fields["v"].to_string(), "f32 [?, 4]");
}

#[test]
fn the_canonical_form_says_unknown_as_minus_one() {
    let source = parse("jsonl: x\nfeatures: { v: { key: a.b, dtype: f32, shape: [-1, 4] } }");
    let canonical = serde_json::to_string(&source.clone().unwrap()).unwrap();
    assert_eq!(canonical, r#"{"jsonl":{"v":{"key":"a.b","dtype":"f32","shape":[-1,4]}}}"#);
    let again = PipelineSource::parse_canonical(&SyntaxNode::parse(&canonical).unwrap()).unwrap();
    assert_eq!(again, PipelineSource { paths: Vec::new(), ..source.unwrap() });
}

#[test]
fn other_unknown_dimensions_are_refused_at_their_line() {
    for (shape, words) in [
        ("[3, -1]", "the first also -1 where records differ, not -1"),
        ("[-2]", "not -2"),
        ("[0]", "must be a whole number from 1"),
        ("[x]", "not `x`"),
        ("-1", "must be a list of dimensions"),
        ("[-1, 1048577]", "not 1048577"),
        ("[-1, 1024, 1025]", "8 dimensions or 1048576 values"),
        ("[-1, 1, 1, 1, 1, 1, 1, 1, 1]", "8 dimensions"),
    ] {
        let error = feature("tfrecord", &format!("{{ dtype: i64, shape: {shape} }}")).unwrap_err();
        assert!(error.contains(words) && error.starts_with("line 2: "), "{shape}: {error}");
    }
    let bytes = feature("jsonl", "{ dtype: bytes, shape: [-1] }").unwrap_err();
    assert!(bytes.contains("leave out `shape`"), "{bytes}");
    let image = parse("images: x\nfeatures: { label: { dtype: i64, shape: [-1] } }").unwrap_err();
    assert!(image.contains("with a shape"), "{image}");
}

#[test]
fn a_source_is_of_one_known_format() {
    let none = parse("features: { v: { dtype: i64 } }").unwrap_err();
    assert!(none.contains("`parquet: PATH` or `npy: PATH`, the files to read"), "{none}");
    let two = parse("jsonl: x\nparquet: x\nfeatures: { v: { dtype: i64 } }").unwrap_err();
    assert!(two.contains("names both `jsonl` and `parquet`"), "{two}");
    for format in gristmill_sources::FORMATS.iter().filter(|format| format.features.is_empty()) {
        let missing = parse(&format!("{}: x", format.name)).unwrap_err();
        assert!(missing.contains("`features`"), "{missing}");
    }
}
