//! Differences in words.

use super::super::UseScore;
use super::*;
use serde_json::json;

fn op(name: &str, params: Value) -> DescribedOp {
    DescribedOp { op: name.into(), version: 1, params, ordinal: None }
}

fn resnet() -> PrefixDescription {
    PrefixDescription {
        source: json!({ "format": "tfrecord", "features": { "image": { "dtype": "bytes" } } }),
        ops: vec![
            op("decode", json!({ "field": "image", "channels": 3 })),
            op("resize", json!({ "size": [256, 256], "filter": "triangle" })),
            op("cast", json!({ "dtype": "f16" })),
        ],
        dataset: Fingerprint::from_content("test", b"v1"),
        files: vec![file("train-0", "a"), file("train-1", "b")],
        numerics: "x86_64-1".into(),
        drawn: None,
    }
}

fn file(key: &str, etag: &str) -> SourceVersion {
    SourceVersion { key: key.into(), etag: etag.into() }
}

fn entry(name: &str, described: PrefixDescription) -> CachedPrefix {
    CachedPrefix {
        fingerprint: Fingerprint::from_content("test", name.as_bytes()),
        bytes: 1.0,
        elements_per_s: 1.0,
        saved_s: 1.0,
        uses: UseScore::default(),
        leased: false,
        described: Some(described),
    }
}

/// Differences after a change to the cached pipeline.
fn said(change: impl Fn(&mut PrefixDescription)) -> Vec<String> {
    let mut requested = resnet();
    change(&mut requested);
    let miss = explain_miss(&requested, &[entry("cached", resnet())]).unwrap();
    miss.differences.iter().map(PrefixDifference::to_string).collect()
}

#[test]
fn each_difference_is_one_line() {
    assert_eq!(said(|_| {}), [""; 0]);
    assert_eq!(
        said(|requested| requested.ops[1].params["size"] = json!([224, 224])),
        ["op 2 `resize`: size is [224,224], was [256,256]"]
    );
    assert_eq!(
        said(|requested| requested.ops[0].version = 2),
        ["op 1 `decode` has version 2, was 1"]
    );
    assert_eq!(
        said(|requested| requested.ops.insert(1, op("flip", json!({ "p": 0.5 })))),
        ["op 2 `flip` is new"]
    );
    assert_eq!(
        said(|requested| drop(requested.ops.pop())),
        ["op 3 `cast` of the cached prefix is missing"]
    );
    assert_eq!(
        said(|requested| requested.ops[2] = op("normalise", json!({}))),
        ["op 3 `normalise` is new", "op 3 `cast` of the cached prefix is missing"]
    );
    assert_eq!(
        said(|requested| requested.source["features"]["image"]["dtype"] = json!("i64")),
        [r#"source: features.image.dtype is "i64", was "bytes""#]
    );
    assert_eq!(
        said(|requested| requested.numerics = "aarch64-1".into()),
        ["the workers' numerics class is aarch64-1, was x86_64-1"]
    );
}

#[test]
fn files_are_named_where_they_are_known() {
    let renew = |requested: &mut PrefixDescription| {
        requested.dataset = Fingerprint::from_content("test", b"v2")
    };
    assert_eq!(
        said(|requested| {
            renew(requested);
            requested.files = vec![file("train-1", "c"), file("train-2", "d")];
        }),
        ["file train-1 has changed", "file train-2 is new", "file train-0 is missing"]
    );
    let unknown = said(|requested| {
        renew(requested);
        requested.files.clear();
    });
    assert!(unknown[0].starts_with("the dataset is version "), "{unknown:?}");
    assert_eq!(unknown.len(), 1);
    let many = said(|requested| {
        renew(requested);
        requested.files = (0..30).map(|i| file(&format!("other-{i:02}"), "x")).collect();
    });
    assert_eq!((many.len(), many[10].as_str()), (11, "and 22 more files"));
}

#[test]
fn draws_are_compared_by_seed_epoch_and_place() {
    let drawn = |drawn| {
        let mut described = resnet();
        described.ops.push(DescribedOp { ordinal: Some(3), ..op("flip", json!({ "p": 0.5 })) });
        described.drawn = drawn;
        described
    };
    let mut requested = drawn(Some((8, 1)));
    requested.ops[3].ordinal = Some(4);
    let miss = explain_miss(&requested, &[entry("cached", drawn(Some((7, 0))))]).unwrap();
    let said: Vec<String> = miss.differences.iter().map(PrefixDifference::to_string).collect();
    assert_eq!(
        said,
        [
            "op 4 `flip` draws as the file's op 5, drew as 4",
            "the seed is 8, was 7",
            "the epoch is 1, was 0"
        ]
    );
    let miss = explain_miss(&drawn(None), &[entry("cached", drawn(Some((7, 0))))]).unwrap();
    assert_eq!(miss.differences, [PrefixDifference::Drawn { requested: false }]);
}

#[test]
fn the_nearest_entry_is_compared_with() {
    let mut far = resnet();
    far.ops.truncate(1);
    far.ops[0].params["channels"] = json!(1);
    let mut near = resnet();
    near.ops[2].params["dtype"] = json!("f32");
    let undescribed = CachedPrefix { described: None, ..entry("undescribed", resnet()) };
    let entries = [entry("far", far), undescribed, entry("near", near)];
    let miss = explain_miss(&resnet(), &entries).unwrap();
    assert_eq!(miss.nearest, entries[2].fingerprint);
    assert_eq!(miss.differences[0].to_string(), r#"op 3 `cast`: dtype is "f16", was "f32""#);
    assert_eq!(explain_miss(&resnet(), &entries[1..2]), None);
}

#[test]
fn long_values_are_cut_and_parameters_reported_one_by_one() {
    let lines = said(|requested| {
        requested.ops[0].params =
            json!({ "field": "i".repeat(200), "channels": 1, "extra": {"deep": true} });
    });
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.chars().count() < 120), "{lines:?}");
    assert!(lines.contains(&"op 1 `decode`: channels is 1, was 3".to_owned()));
    assert!(lines.contains(&r#"op 1 `decode`: extra is {"deep":true}, was not set"#.to_owned()));
}

#[test]
fn pipelines_are_described_as_they_are_identified() {
    let pipeline = |size: u32, p: f64| {
        gristmill_operators::parse(&format!(
            "source: {{ tfrecord: x, features: {{ image: {{ dtype: bytes }} }} }}\nops:\n  - decode\n  - resize: {{ size: {size} }}\n  - autocache\n  - flip: {{ p: {p:?} }}\n  - autocache: {{ reuse_random: true }}\n  - batch: {{ size: 2 }}\n"
        ))
        .unwrap()
    };
    let describe = |pipeline: &Pipeline, point: usize, seed| {
        let point = &pipeline.cache_points()[point];
        PrefixDescription::new(
            pipeline,
            point,
            Fingerprint::from_content("test", b"v1"),
            vec![],
            "n",
            seed,
        )
    };
    let cached = entry("cached", describe(&pipeline(8, 0.5), 1, 7));
    let said = |requested: PrefixDescription| -> Vec<String> {
        let miss = explain_miss(&requested, std::slice::from_ref(&cached)).unwrap();
        miss.differences.iter().map(PrefixDifference::to_string).collect()
    };
    assert_eq!(said(describe(&pipeline(8, 0.5), 1, 7)), [""; 0]);
    assert_eq!(
        said(describe(&pipeline(9, 0.25), 1, 8)),
        [
            "op 2 `resize`: size is [9,9], was [8,8]",
            "op 3 `flip`: p is 0.25, was 0.5",
            "the seed is 8, was 7"
        ]
    );
    assert_eq!(
        said(describe(&pipeline(8, 0.5), 0, 7)),
        ["op 3 `flip` of the cached prefix is missing", "it draws nothing, the cached one did"]
    );
}
