//! Cache points: valid positions, what they leave unchanged, and the fingerprints of stored
//! elements.

use super::*;

fn parsed(ops: &str) -> Pipeline {
    gristmill_operators::parse(&with_ops(ops)).unwrap()
}

fn ordinals(pipeline: &Pipeline) -> Vec<(&'static str, u32)> {
    let others = pipeline.stages().iter().filter(|stage| stage.op.cache_point().is_none());
    others.map(|stage| (stage.op.name(), stage.ordinal)).collect()
}

const PLAIN: &str = "  - take: { count: 9 }\n  - decode\n  - resize: { size: 8 }\n  - flip\n  - normalise: { mean: [0, 0, 0], std: [1, 1, 1] }\n  - batch: { size: 2 }\n";
/// The same with cache points everywhere. Nothing is random before the first three.
const POINTS: &str = "  - take: { count: 9 }\n  - autocache\n  - decode\n  - autocache\n  - resize: { size: 8 }\n  - autocache: { reuse_random: false }\n  - flip\n  - autocache: { reuse_random: true }\n  - normalise: { mean: [0, 0, 0], std: [1, 1, 1] }\n  - batch: { size: 2 }\n  - autocache: { reuse_random: true, keep_position: true }\n";

#[test]
fn points_say_where_they_are() {
    let point = |stage: usize, after: &str, random, whole| CachePoint {
        stage,
        after: after.into(),
        random,
        reuse_random: random,
        whole,
    };
    let expected = [
        point(1, "take", false, false),
        point(3, "decode", false, false),
        point(5, "resize", false, false),
        point(7, "flip", true, false),
        point(10, "batch", true, true),
    ];
    let pipeline = parsed(POINTS);
    assert_eq!(pipeline.cache_points(), expected);
    assert_eq!(pipeline.batch_stage(), 9);
    assert!(parsed(PLAIN).cache_points().is_empty());
    let first =
        parsed("  - autocache\n  - decode\n  - resize: { size: 8 }\n  - batch: { size: 2 }\n");
    assert_eq!(first.cache_points(), [point(0, "source", false, false)]);
    assert_eq!(pipeline.schemas()[1], pipeline.schemas()[2], "it changes no element");
}

#[test]
fn points_change_neither_draws_nor_identities() {
    let (plain, points) = (parsed(PLAIN), parsed(POINTS));
    assert_eq!(ordinals(&plain), ordinals(&points));
    assert_eq!(ordinals(&points)[3], ("flip", 3));
    let dataset = Fingerprint([1; 32]);
    assert_eq!(plain.fingerprint(&dataset, "n"), points.fingerprint(&dataset, "n"));
    let without = plain.prefix_fingerprints(&dataset, "n", 5, 7);
    let with = points.prefix_fingerprints(&dataset, "n", 5, 7);
    let places = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 6];
    assert_eq!(with, places.map(|place| without[place]));
}

#[test]
fn cache_names_follow_the_operators_before() {
    let (plain, points) = (parsed(PLAIN), parsed(POINTS));
    let dataset = Fingerprint([1; 32]);
    for (point, ops) in points.cache_points().iter().zip([1, 2, 3, 4, 6]) {
        let name = |seed| points.point_fingerprint(point, &dataset, "n", seed);
        let without = plain.prefix_fingerprints(&dataset, "n", 5, 0)[ops];
        assert_eq!(name(5), without, "as the prefix draws in epoch 0");
        assert_eq!(name(6) != name(5), point.random);
        let described = points.described_prefix(point, 5);
        assert_eq!(described.drawn, point.random.then_some((5, 0)));
        let names: Vec<&str> = described.ops.iter().map(|op| op.op.as_str()).collect();
        let expected: Vec<&str> = ordinals(&plain)[..ops].iter().map(|(name, _)| *name).collect();
        assert_eq!(names, expected);
        assert_eq!(described.source["tfrecord"]["image"]["key"], "image/encoded");
    }
    let described = points.described_prefix(&points.cache_points()[3], 5);
    assert_eq!(described.ops[3].ordinal, Some(3), "what draws is keyed by its place");
    assert_eq!(described.ops[2].ordinal, None);
    assert_eq!(described.ops[2].params["size"][1], 8);
}

#[test]
fn points_survive_the_canonical_form() {
    let pipeline = parsed(POINTS);
    let json = pipeline.canonical_json();
    let again = gristmill_operators::from_canonical(&json).unwrap();
    assert_eq!(again.canonical_json(), json);
    assert_eq!(again.cache_points(), pipeline.cache_points());
    assert_eq!(ordinals(&again), ordinals(&pipeline));
    assert!(json.contains(
        r#"{"op":"autocache","version":1,"ordinal":1024,"keep_position":false,"params":{"reuse_random":false}}"#
    ));
    assert!(json.contains(r#""ordinal":1020"#), "{json}");
}

#[test]
fn random_prefixes_are_refused_unless_the_author_allows() {
    let head = "  - decode\n  - random_resized_crop: { size: 8 }\n  - flip\n";
    assert_eq!(
        ops_error(&format!("{head}  - autocache\n  - batch: {{ size: 2 }}\n")),
        "line 10: `autocache` comes after `random_resized_crop`, which draws at random: every epoch \
         would repeat the draws that were cached; move it before `random_resized_crop`, or say \
         `reuse_random: true` if that is welcome"
    );
    let message = ops_error(&format!("{head}  - batch: {{ size: 2 }}\n  - autocache\n"));
    assert!(message.starts_with("line 11: `autocache` comes after `random_resized_crop`"));
    let message = ops_error("  - shuffle\n  - autocache\n  - decode\n  - batch: { size: 2 }\n");
    assert!(message.contains("leave `shuffle` out, or say `reuse_random: true`"), "{message}");
    let allowed =
        format!("{head}  - autocache: {{ reuse_random: true }}\n  - batch: {{ size: 2 }}\n");
    assert!(parsed(&allowed).cache_points()[0].random);
}

#[test]
fn points_stand_where_something_can_be_cached() {
    let end = "  - resize: { size: 8 }\n  - batch: { size: 2 }\n";
    assert_eq!(
        ops_error(&format!("  - decode\n  - autocache\n  - autocache\n{end}")),
        "line 9: `autocache` comes after `autocache`; keep one of them"
    );
    for op in ["take: { count: 3 }", "shuffle", "in_order", "repeat: { count: 2 }"] {
        let message = ops_error(&format!("  - decode\n  - autocache\n  - {op}\n{end}"));
        let name = op.split(':').next().unwrap();
        assert_eq!(
            message,
            format!(
                "line 9: `{name}` comes after `autocache`, but decides which records are read, before \
                 anything is cached: put it before"
            )
        );
    }
    let message = ops_error(&format!("  - decode\n{end}  - autocache\n  - flip\n"));
    assert!(message.starts_with("line 11: `flip` comes after `batch`"), "{message}");
    let message = ops_error("  - decode\n  - resize: { size: 8 }\n  - autocache\n");
    assert!(message.contains("has no `batch`"), "{message}");
    let message = ops_error("  - autocache: { reuse_rndom: true }\n");
    assert!(message.contains("no key `reuse_rndom`; did you mean `reuse_random`?"), "{message}");
    for last in [
        "padded_batch: { size: 2 }",
        "bucket_by_sequence_length: { size: 2, field: image, boundaries: [4] }",
    ] {
        let pipeline = parsed(&format!("  - {last}\n  - autocache\n"));
        assert!(pipeline.cache_points()[0].whole);
        assert_eq!((pipeline.batch_size(), pipeline.batch_stage()), (2, 0));
    }
}
