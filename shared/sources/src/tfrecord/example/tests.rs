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
