//! Operators on token sequences: shapes, and what is refused with what advice.

use super::*;

/// A pipeline over fields of known length, of any length, and of rows.
fn with(op: &str) -> String {
    format!(
        "source:\n  tfrecord: x\n  features:\n    tokens: {{ dtype: i64, shape: [4] }}\n    \
         any: {{ dtype: i64, shape: [-1] }}\n    rows: {{ dtype: f32, shape: [-1, 3] }}\n    \
         text: {{ dtype: bytes }}\nops:\n  - {op}\n  - batch: {{ size: 2, ragged: true }}\n"
    )
}

fn refused(op: &str) -> String {
    Pipeline::parse(&with(op)).expect_err(op).to_string()
}

#[test]
fn sequences_are_padded_to_a_length() {
    for (op, field, shape) in [
        ("pad_sequence: { field: tokens, length: 16 }", "tokens", "i64 [16]"),
        ("pad_sequence: { field: tokens, length: 3, truncate: true }", "tokens", "i64 [3]"),
        ("pad_sequence: { field: any, length: 16, value: -100 }", "any", "i64 [16]"),
        ("pad_sequence: { field: rows, length: 5, value: 0.5 }", "rows", "f32 [5, 3]"),
    ] {
        let pipeline = Pipeline::parse(&with(op)).unwrap();
        assert_eq!(pipeline.output_schema().field(field).unwrap().to_string(), shape, "{op}");
        let again = Pipeline::from_canonical(&pipeline.canonical_json()).unwrap();
        assert_eq!(again.canonical_json(), pipeline.canonical_json(), "{op}");
    }
    for (op, advice) in [
        ("pad_sequence: { field: tokens }", "needs `length`"),
        ("pad_sequence: { field: tokens, length: 4, value: 0.5 }", "i64 can hold"),
        ("pad_sequence: { field: tokens, length: 3 }", "`truncate: true`"),
        ("pad_sequence: { field: text, length: 3 }", "needs a sequence of numbers"),
        ("pad_sequence: { field: any, length: 0 }", "from 1 to"),
    ] {
        let error = refused(op);
        assert!(error.starts_with("line 9: ") && error.contains(advice), "{op}: {error}");
    }
}
