//! Zips in pipeline files and in frozen jobs.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_model::Fingerprint;
use gristmill_pipeline::Pipeline;

const TWO: &str = "source:
  zip:
    - tfrecord: [images/a-*, images/b-*]
      features: { image: { key: image/encoded, dtype: bytes } }
    - jsonl: captions.jsonl
      features: { caption: { dtype: bytes }, score: { dtype: f32 } }
      repeat: 10
ops:
  - filter: { field: score, min: 1 }
  - batch: { size: 2, drop_remainder: true }
";

/// A pipeline whose fields all have fixed length.
fn pipeline(source: &str, ops: &str) -> Result<Pipeline, String> {
    let text = format!("source:\n{source}\nops: [{ops}batch: {{ size: 2 }}]\n");
    gristmill_operators::parse(&text).map_err(|error| error.to_string())
}

fn refusal(source: &str, ops: &str) -> String {
    pipeline(source, ops).unwrap_err()
}

const A: &str = "    - tfrecord: a\n      features: { x: { dtype: i64 } }";
const B: &str = "    - jsonl: b\n      features: { y: { dtype: i64 } }";

#[test]
fn the_fields_of_all_datasets_are_one_elements() {
    // Byte fields vary in length; this test only checks the source.
    let text = TWO.replace("batch: { size: 2, drop_remainder: true }", "padded_batch: { size: 2 }");
    let pipeline = gristmill_operators::parse(&text).unwrap();
    let source = pipeline.source();
    assert_eq!(pipeline.source_paths(), ["images/a-*", "images/b-*", "captions.jsonl"]);
    let repeats: Vec<u32> = source.members().map(|member| member.repeat).collect();
    assert_eq!((source.stored_as().as_str(), repeats.as_slice()), ("tfrecord+jsonl", &[1, 10][..]));
    let fields: Vec<&str> = pipeline.schemas()[0].fields.keys().map(String::as_str).collect();
    assert_eq!(fields, ["caption", "image", "score"]);
}

#[test]
fn the_canonical_form_has_all_datasets_and_none_of_their_paths() {
    let repeated = format!("  zip:\n{A}\n{B}\n      repeat: 3");
    let zip = pipeline(&repeated, "").unwrap();
    let canonical = zip.canonical_json();
    let source = r#""source":{"zip":[{"tfrecord":{"x":{"key":"x","dtype":"i64","shape":[]}}},{"jsonl":{"y":{"key":"y","dtype":"i64","shape":[]}},"repeat":3}]}"#;
    assert!(canonical.contains(source), "{canonical}");
    let read = gristmill_operators::from_canonical(&canonical).unwrap();
    assert_eq!(read.canonical_json(), canonical);
    assert_eq!(read.source().zipped[0].repeat, 3);
    assert!(read.source_paths().is_empty());
    // The fingerprint covers the features of each dataset, how often it repeats, and the order of
    // datasets.
    let version = Fingerprint::from_content("test", b"");
    let fingerprint = |source: &str| pipeline(source, "").unwrap().fingerprint(&version, "");
    let all = [
        repeated.clone(),
        format!("  zip:\n{A}\n{B}"),
        format!("  zip:\n{B}\n      repeat: 3\n{A}"),
        repeated.replace("{ y:", "{ z:"),
        "  tfrecord: a\n  features: { x: { dtype: i64 } }".to_owned(),
    ];
    let mut named: Vec<_> = all.iter().map(|source| fingerprint(source)).collect();
    assert_eq!(named[0], fingerprint(&repeated.replace("jsonl: b", "jsonl: c")), "paths are not");
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), all.len());
    // Differences between pipelines are listed by dataset.
    let cached = pipeline(&repeated, "autocache, ").unwrap();
    let described = cached.described_prefix(&cached.cache_points()[0], 0).source;
    assert_eq!(
        (&described["dataset 1"]["repeat"], &described["dataset 2"]["repeat"]),
        (&serde_json::Value::Null, &3.into())
    );
}

#[test]
fn a_dataset_by_itself_is_what_it_was() {
    let alone = pipeline("  tfrecord: a\n  features: { x: { dtype: i64 } }", "").unwrap();
    let source = r#""source":{"tfrecord":{"x":{"key":"x","dtype":"i64","shape":[]}}}"#;
    assert!(alone.canonical_json().contains(source), "{}", alone.canonical_json());
    assert_eq!(alone.source().stored_as(), "tfrecord");
}

#[test]
fn mistakes_are_named_at_their_line() {
    let with = |other: &str| format!("  zip:\n{A}\n{other}");
    for (source, line, words) in [
        ("  zip: x".to_owned(), 2, "`zip` must be a list of datasets"),
        (format!("  zip:\n{A}"), 3, "`zip` puts 2 to 16 datasets side by side, not 1"),
        (with(&A.replace("tfrecord", "jsonl")), 6, "both have the field `x`; give one of them"),
        (with(&B.replace("jsonl", "jsnol")), 5, "dataset 2 of `zip` needs `tfrecord: PATH`"),
        (with("    - images: folder"), 5, "`images` cannot be zipped"),
        (with("    - zip: []"), 5, "a `zip` within a `zip`"),
        (with(&format!("{B}\n      repeat: 0")), 7, "dataset 2 of `zip` `repeat` must be a whole"),
        (with(&format!("{B}\n      repaet: 2")), 7, "did you mean `repeat`?"),
        (with("    - jsonl: b"), 5, "dataset 2 of `zip` needs `features`"),
        (with(&format!("{B}\n  features: {{ x: {{ dtype: i64 }} }}")), 7, "no key `features`"),
        (format!("  zip:\n{A}\n      parquet: b\n{B}"), 5, "names both `tfrecord` and `parquet`"),
        ("  tfrecord: a\n  features: { x: { dtype: i64 } }\n  repeat: 2".to_owned(), 4, "no key"),
    ] {
        let error = refusal(&source, "");
        let place = format!("line {line}: ");
        assert!(error.starts_with(&place) && error.contains(words), "{source}\n{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let many =
        (0..17).map(|i| format!("    - jsonl: b\n      features: {{ f{i}: {{ dtype: i64 }} }}"));
    let many = format!("  zip:\n{}", many.collect::<Vec<_>>().join("\n"));
    assert!(refusal(&many, "").contains("2 to 16 datasets side by side, not 17"));
    let interleave = refusal(&with(B), "interleave, ");
    assert!(interleave.starts_with("line 7: `interleave` takes the files of one"), "{interleave}");
}

#[test]
fn fields_are_counted_together() {
    let features = |prefix: &str| {
        let features = (0..200).map(|i| format!("{prefix}{i}: {{ dtype: i64 }}"));
        features.collect::<Vec<_>>().join(", ")
    };
    let one = |prefix: &str| format!("    - jsonl: b\n      features: {{ {} }}", features(prefix));
    let error = refusal(&format!("  zip:\n{}\n{}", one("a"), one("b")), "");
    assert_eq!(error, "line 5: the datasets of `zip` have more than 256 fields together");
}
