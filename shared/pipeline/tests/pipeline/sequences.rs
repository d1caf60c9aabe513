//! Operators on token sequences: shapes, and errors with their advice.

use super::*;

/// A pipeline over fields of fixed length, of any length, and of rows.
fn with(op: &str) -> String {
    format!(
        "source:\n  tfrecord: x\n  features:\n    tokens: {{ dtype: i64, shape: [4] }}\n    \
         any: {{ dtype: i64, shape: [-1] }}\n    rows: {{ dtype: f32, shape: [-1, 3] }}\n    \
         text: {{ dtype: bytes }}\nops:\n  - {op}\n  - batch: {{ size: 2, ragged: true }}\n"
    )
}

fn refused(op: &str) -> String {
    gristmill_operators::parse(&with(op)).expect_err(op).to_string()
}

#[test]
fn sequences_are_padded_to_a_length() {
    for (op, field, shape) in [
        ("pad_sequence: { field: tokens, length: 16 }", "tokens", "i64 [16]"),
        ("pad_sequence: { field: tokens, length: 3, truncate: true }", "tokens", "i64 [3]"),
        ("pad_sequence: { field: any, length: 16, value: -100 }", "any", "i64 [16]"),
        ("pad_sequence: { field: rows, length: 5, value: 0.5 }", "rows", "f32 [5, 3]"),
    ] {
        let pipeline = gristmill_operators::parse(&with(op)).unwrap();
        assert_eq!(pipeline.output_schema().field(field).unwrap().to_string(), shape, "{op}");
        let again = gristmill_operators::from_canonical(&pipeline.canonical_json()).unwrap();
        assert_eq!(again.canonical_json(), pipeline.canonical_json(), "{op}");
    }
    for (op, advice) in [
        ("pad_sequence: { field: tokens }", "needs `length`"),
        ("pad_sequence: { field: tokens, length: 4, value: 0.5 }", "a whole number from"),
        ("pad_sequence: { field: tokens, length: 3 }", "`truncate: true`"),
        ("pad_sequence: { field: text, length: 3 }", "needs a sequence of numbers"),
        ("pad_sequence: { field: any, length: 0 }", "from 1 to"),
    ] {
        let error = refused(op);
        assert!(error.starts_with("line 9: ") && error.contains(advice), "{op}: {error}");
    }
}

#[test]
fn text_becomes_tokens_of_a_file_that_is_named_by_its_content() {
    let op = "tokenise: { field: text, tokenizer: a/tokenizer.json, max_length: 8, dtype: u16 }";
    let pipeline = gristmill_operators::parse(&with(op)).unwrap();
    assert_eq!(pipeline.output_schema().field("text").unwrap().to_string(), "u16 [?]");
    assert_eq!((pipeline.asset_paths(), pipeline.assets()), (vec!["a/tokenizer.json"], vec![]));
    // A job cannot keep a path.
    let unresolved =
        gristmill_operators::from_canonical(&pipeline.canonical_json()).unwrap_err().to_string();
    assert!(unresolved.contains("`a/tokenizer.json` and not its content"), "{unresolved}");
    let missing = pipeline.clone().with_assets(&mut |path| Err(format!("no file {}", path.len())));
    assert_eq!(
        missing.unwrap_err().to_string(),
        "line 9: `tokenise` needs `a/tokenizer.json`: no file 16"
    );
    let of =
        |content: &[u8]| pipeline.clone().with_assets(&mut |_| Ok(AssetReference::hash(content)));
    let resolved = of(b"one").unwrap();
    assert_eq!(
        (resolved.asset_paths(), resolved.assets()),
        (vec![], vec![AssetReference::hash(b"one")])
    );
    let json = resolved.canonical_json();
    assert!(!json.contains("a/tokenizer"), "{json}");
    let again = gristmill_operators::from_canonical(&json).unwrap();
    assert_eq!((again.canonical_json(), again.assets()), (json, resolved.assets()));
    // The fingerprint depends on the file's content and not on its path.
    let fingerprint = |p: &Pipeline| p.fingerprint(&Fingerprint([1; 32]), "x86");
    let elsewhere = gristmill_operators::parse(&with(&op.replace("a/", "b/"))).unwrap();
    let elsewhere = elsewhere.with_assets(&mut |_| Ok(AssetReference::hash(b"one"))).unwrap();
    assert_eq!(fingerprint(&elsewhere), fingerprint(&resolved));
    assert_ne!(fingerprint(&of(b"two").unwrap()), fingerprint(&resolved));
    for (op, advice) in [
        ("tokenise: { field: text }", "needs `tokenizer`"),
        ("tokenise: { field: tokens, tokenizer: x }", "needs text, but `tokens` is i64 [4]"),
        ("tokenise: { field: text, tokenizer: x, dtype: u8 }", "i64, i32 or u16"),
        ("tokenise: { field: text, tokenizer: x, max_length: 0 }", "from 1 to"),
        ("tokenise: { field: text, tokenizer: \"blake3:12\" }", "64 hexadecimal digits"),
    ] {
        assert!(refused(op).contains(advice), "{op}: {}", refused(op));
    }
}
