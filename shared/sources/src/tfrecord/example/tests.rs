//! The walker against a full implementation of the encoding, and against rubbish.

use super::*;
use crate::{
    ParsedSource,
    samples::{bytes, example, floats, ints},
};
use bytes::Bytes;
use gristmill_synthetic::tfrecord::{
    BytesList, IntList, TfExample, TfFeature, TfFeatureKind, TfFeatures,
};
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeMap;

const YAML: &str = "
tfrecord: x
features:
  data: { key: d, dtype: bytes }
  many: { key: m, dtype: i64, shape: [3] }
  one: { key: o, dtype: i64 }
  real: { key: r, dtype: f32, shape: [2] }
";

/// The values of cells 0..4 (data, many, one, real) after extraction.
fn extract(record: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let extractor = ExampleExtractor::new(&ParsedSource::from_yaml(YAML).unwrap().features);
    let mut cells: Vec<FieldCell> = (0..4).map(|_| FieldCell::default()).collect();
    let total = extractor.find(record, &mut cells)?;
    let values: Vec<Vec<u8>> =
        cells.iter_mut().map(|cell| cell.split(record, None).unwrap().0.to_vec()).collect();
    assert_eq!(total, values.iter().map(Vec::len).sum::<usize>());
    Ok(values)
}

fn good() -> Vec<(&'static str, TfFeatureKind)> {
    vec![
        ("a", ints(&[1])),
        ("d", bytes(b"jpeg")),
        ("m", ints(&[1, -2, i64::MAX])),
        ("o", ints(&[300])),
        ("r", floats(&[1.5, -0.0])),
        ("z", bytes(b"")),
    ]
}

fn with(key: &'static str, kind: TfFeatureKind) -> String {
    let mut features = good();
    features.retain(|(name, _)| *name != key);
    features.push((key, kind));
    extract(&example(features)).unwrap_err()
}

#[test]
fn wanted_features_are_found_among_others() {
    let values = extract(&example(good())).unwrap();
    assert_eq!(values[0], b"jpeg");
    let many: Vec<u8> = [1, -2, i64::MAX].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(values[1], many);
    assert_eq!(values[2], 300_i64.to_le_bytes());
    assert_eq!(values[3], [1.5_f32.to_le_bytes(), (-0.0_f32).to_le_bytes()].concat());
}

#[test]
fn errors_name_the_key() {
    let mut features = good();
    features.retain(|(key, _)| *key != "o");
    assert_eq!(extract(&example(features)).unwrap_err(), "feature `o` is missing");
    assert_eq!(with("o", bytes(b"x")), "feature `o` is bytes, the pipeline reads i64");
    assert_eq!(with("d", floats(&[1.0])), "feature `d` is f32, the pipeline reads bytes");
    assert_eq!(with("m", ints(&[1, 2])), "feature `m` has 2 values, the pipeline reads 3");
    assert_eq!(with("o", ints(&[])), "feature `o` has 0 values, the pipeline reads 1");
    let two = TfFeatureKind::Bytes(BytesList { value: vec![Bytes::new(), Bytes::new()] });
    assert_eq!(with("d", two), "feature `d` has 2 values, the pipeline reads 1");
    assert_eq!(extract(b"").unwrap_err(), "feature `d` is missing");
    let record = example(good());
    let message = extract(&record[..record.len() - 1]).unwrap_err();
    assert!(message.starts_with("not a tf.Example: "), "{message}");
}

#[test]
fn numbers_may_come_unpacked() {
    // The list with one field per value, as old writers make it: `m` = 1, 2, 3; `r` = 1.0, 2.0.
    let list: &[u8] = &[0x08, 1, 0x08, 2, 0x08, 3];
    let reals = [&[0x0d][..], &1.0_f32.to_le_bytes(), &[0x0d], &2.0_f32.to_le_bytes()].concat();
    let field = |tag: u8, body: &[u8]| [&[tag, body.len() as u8][..], body].concat();
    let entry = |key: &[u8], kind: u8, list: &[u8]| {
        let value = field(0x12, &field(kind, list));
        field(0x0a, &[field(0x0a, key), value].concat())
    };
    let mut features = good();
    features.retain(|(key, _)| !["m", "r"].contains(key));
    // Concatenated messages merge: the rest of the features comes first.
    let mut record = example(features);
    record.extend(field(0x0a, &[entry(b"m", 0x1a, list), entry(b"r", 0x12, &reals)].concat()));
    let values = extract(&record).unwrap();
    let many: Vec<u8> = [1_i64, 2, 3].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(values[1], many);
    assert_eq!(values[3], [1.0_f32.to_le_bytes(), 2.0_f32.to_le_bytes()].concat());
}

/// The values that a full implementation finds.
fn expected(record: &[u8]) -> Option<Vec<Vec<u8>>> {
    let features = TfExample::decode(record).ok()?.features?.feature;
    let kind = |key: &str| features.get(key)?.kind.clone();
    let TfFeatureKind::Bytes(data) = kind("d")? else { return None };
    let TfFeatureKind::Ints(many) = kind("m")? else { return None };
    let TfFeatureKind::Ints(one) = kind("o")? else { return None };
    let TfFeatureKind::Floats(real) = kind("r")? else { return None };
    let fits = data.value.len() == 1
        && many.value.len() == 3
        && one.value.len() == 1
        && real.value.len() == 2;
    let wide = |list: IntList| list.value.iter().flat_map(|x| x.to_le_bytes()).collect();
    let real = real.value.iter().flat_map(|x| x.to_le_bytes()).collect();
    fits.then(|| vec![data.value[0].to_vec(), wide(many), wide(one), real])
}

/// A `tf.SequenceExample`, whose context has the features of an example.
#[derive(Clone, PartialEq, Message)]
struct SequenceExample {
    #[prost(message, optional, tag = "1")]
    context: Option<TfFeatures>,
    #[prost(message, optional, tag = "2")]
    lists: Option<FeatureLists>,
}

#[derive(Clone, PartialEq, Message)]
struct FeatureLists {
    #[prost(btree_map = "string, message", tag = "1")]
    lists: BTreeMap<String, FeatureList>,
}

#[derive(Clone, PartialEq, Message)]
struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    steps: Vec<TfFeature>,
}

const STEPS: &str = "
tfrecord: x
defaults: { o: -1 }
features: { m: { dtype: i64, shape: [-1] }, o: { dtype: i64 }, r: { dtype: f32, shape: [-1, 2] } }
";

/// The values of `m`, `o` and `r`.
fn steps(record: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let extractor = ExampleExtractor::new(&ParsedSource::from_yaml(STEPS).unwrap().features);
    let mut cells: Vec<FieldCell> = (0..3).map(|_| FieldCell::default()).collect();
    extractor.find(record, &mut cells)?;
    Ok(cells.iter_mut().map(|cell| cell.split(record, None).unwrap().0.to_vec()).collect())
}

/// The same, by a full implementation; none if it is not what the features say.
fn expected_steps(record: &[u8]) -> Option<Vec<Vec<u8>>> {
    let SequenceExample { context, lists } = SequenceExample::decode(record).ok()?;
    let context = context.unwrap_or_default().feature;
    let lists = lists.unwrap_or_default().lists;
    let kinds = |key: &str| {
        let in_context = context.get(key).map(|feature| vec![feature.kind.clone()]);
        let in_lists =
            lists.get(key).map(|list| list.steps.iter().map(|step| step.kind.clone()).collect());
        match (in_context, in_lists) {
            (Some(_), Some(_)) => None,
            (Some(kinds), None) => Some((false, kinds)),
            (None, Some(kinds)) => Some((true, kinds)),
            (None, None) => Some((false, vec![None; 2])),
        }
    };
    let ints = |(is_steps, kinds): (bool, Vec<Option<TfFeatureKind>>)| {
        let one = |kind: &Option<TfFeatureKind>| match kind {
            Some(TfFeatureKind::Ints(list)) if !is_steps || list.value.len() == 1 => {
                Some(list.value.clone())
            }
            None if !is_steps => Some(Vec::new()),
            _ => None,
        };
        kinds.iter().map(one).collect::<Option<Vec<_>>>().map(|values| values.concat())
    };
    let many = kinds("m").filter(|(_, kinds)| {
        kinds.len() != 2 || context.contains_key("m") || lists.contains_key("m")
    })?;
    let many = ints(many)?;
    let (is_steps, kind) = kinds("o")?;
    let one = match kind.as_slice() {
        [None, ..] if !is_steps => vec![-1],
        _ => ints((is_steps, kind)).filter(|values| values.len() == 1)?,
    };
    let (is_steps, kinds) = kinds("r")?;
    let mut real = Vec::new();
    for kind in kinds {
        match kind {
            Some(TfFeatureKind::Floats(list)) if !is_steps || list.value.len() == 2 => {
                real.extend(list.value)
            }
            None if !is_steps && context.contains_key("r") => {}
            _ => return None,
        }
    }
    let whole = real.len() % 2 == 0;
    let bytes = |values: Vec<i64>| values.into_iter().flat_map(i64::to_le_bytes).collect();
    whole.then(|| {
        vec![bytes(many), bytes(one), real.into_iter().flat_map(f32::to_le_bytes).collect()]
    })
}

#[test]
fn steps_of_a_sequence_are_items_of_the_first_dimension() {
    let step = |kind| TfFeature { kind: Some(kind) };
    let list =
        |kinds: Vec<TfFeatureKind>| FeatureList { steps: kinds.into_iter().map(step).collect() };
    let sequence = |key: &str, kinds: Vec<TfFeatureKind>| {
        let whole: Vec<_> = [
            ("m", vec![ints(&[1]), ints(&[-2])]),
            ("r", vec![floats(&[0.5, 1.0]), floats(&[2.0, 3.0]), floats(&[4.0, 5.0])]),
            (key, kinds),
        ]
        .into_iter()
        .map(|(key, kinds)| (key.to_owned(), list(kinds)))
        .collect();
        let context = TfFeatures { feature: [("o".to_owned(), step(ints(&[7])))].into() };
        let lists = FeatureLists { lists: whole.into_iter().collect() };
        steps(&SequenceExample { context: Some(context), lists: Some(lists) }.encode_to_vec())
    };
    let found = sequence("other", vec![bytes(b"x")]).unwrap();
    assert_eq!(found[0], [1_i64, -2].map(i64::to_le_bytes).concat());
    assert_eq!(found[1], 7_i64.to_le_bytes());
    assert_eq!(found[2], [0.5_f32, 1.0, 2.0, 3.0, 4.0, 5.0].map(f32::to_le_bytes).concat());
    assert_eq!(sequence("m", vec![]).unwrap()[0], b"");
    for (key, kinds, words) in [
        ("m", vec![ints(&[1]), ints(&[2, 3])], "feature list `m` has a step of 2 values"),
        ("m", vec![floats(&[1.0])], "feature `m` is f32, the pipeline reads i64"),
        ("o", vec![ints(&[1])], "feature `o` is in the context and in the lists"),
    ] {
        let error = sequence(key, kinds).unwrap_err();
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn missing_features_have_defaults() {
    let values = |feature: Option<TfFeature>| {
        let feature = feature.map(|feature| ("o".to_owned(), feature));
        let mut all: BTreeMap<_, _> = feature.into_iter().collect();
        for key in ["m", "r"] {
            all.insert(key.to_owned(), TfFeature { kind: None });
        }
        steps(&TfExample { features: Some(TfFeatures { feature: all }) }.encode_to_vec())
    };
    let default = vec![vec![], (-1_i64).to_le_bytes().to_vec(), vec![]];
    assert_eq!(values(None).as_ref(), Ok(&default));
    assert_eq!(values(Some(TfFeature { kind: None })), Ok(default));
    let empty = values(Some(TfFeature { kind: Some(ints(&[])) })).unwrap_err();
    assert_eq!(empty, "feature `o` has 0 values, the pipeline reads 1");
}

/// A field of a message that holds bytes.
fn field(number: u8, body: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, body.len() as u8][..], body].concat()
}

/// Features of two parts: each a list, of one kind or another, or nothing.
fn feature_in_parts() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        prop::collection::vec(-1000_i64..1000, 0..4).prop_map(|value| ints(&value)),
        prop::collection::vec(-9.0_f32..9.0, 0..4).prop_map(|value| floats(&value)),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(|value| bytes(&value)),
    ];
    prop::collection::vec(prop::option::weighted(0.8, part), 0..4).prop_map(|parts| {
        parts.into_iter().flat_map(|kind| TfFeature { kind }.encode_to_vec()).collect()
    })
}

fn any_kind() -> impl Strategy<Value = TfFeatureKind> {
    prop_oneof![
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..3).prop_map(|lists| {
            TfFeatureKind::Bytes(BytesList { value: lists.into_iter().map(Bytes::from).collect() })
        }),
        prop::collection::vec(-1e9_f32..1e9, 0..4).prop_map(|value| floats(&value)),
        prop::collection::vec(any::<i64>(), 0..5).prop_map(|value| ints(&value)),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_full_implementation(
        other in prop::collection::btree_map("[dmorxyz]{1,2}", any_kind(), 0..6),
        wanted in any::<bool>(),
    ) {
        let mut feature: BTreeMap<String, TfFeature> =
            other.into_iter().map(|(key, kind)| (key, TfFeature { kind: Some(kind) })).collect();
        if wanted {
            for (key, kind) in good() {
                feature.insert(key.into(), TfFeature { kind: Some(kind) });
            }
        }
        let record = TfExample { features: Some(TfFeatures { feature }) }.encode_to_vec();
        prop_assert_eq!(extract(&record).ok(), expected(&record));
    }

    #[test]
    fn a_key_that_comes_twice_counts_once(i in 0_usize..4) {
        let mut twice = good();
        let again = good().swap_remove(i);
        twice.push(again);
        prop_assert_eq!(extract(&example(twice)), extract(&example(good())));
    }

    /// Features in the context and in lists, given in parts, twice, and without a key.
    #[test]
    fn parts_are_merged_as_protocol_buffers_are(
        entries in prop::collection::vec(
            (1_u8..3, "[mor]?", prop::collection::vec(feature_in_parts(), 0..3)), 0..8,
        ),
    ) {
        let mut record = Vec::new();
        for (part, key, features) in entries {
            let mut entry = if key.is_empty() { Vec::new() } else { field(1, key.as_bytes()) };
            if part == 1 {
                features.iter().for_each(|feature| entry.extend(field(2, feature)));
            } else {
                let steps: Vec<u8> = features.iter().flat_map(|step| field(1, step)).collect();
                if steps.len() > 100 {
                    continue;
                }
                entry.extend(field(2, &steps));
            }
            if entry.len() < 120 {
                record.extend(field(part, &field(1, &entry)));
            }
        }
        prop_assert_eq!(steps(&record).ok(), expected_steps(&record));
    }

    #[test]
    fn damage_never_panics(at in any::<prop::sample::Index>(), to: u8, cut in any::<prop::sample::Index>()) {
        let mut record = example(good());
        let i = at.index(record.len());
        record[i] = to;
        let _ = extract(&record);
        let _ = extract(&record[..cut.index(record.len())]);
    }

    #[test]
    fn rubbish_never_panics(record in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = extract(&record);
    }
}
