//! Items and objects that a release of version 2 stored: this build reads them, and what it writes that release reads.

use crate::{
    caching::CacheUse,
    items::{JobItem, ListedJob, SkipCounts, SweepProgress},
    store::ItemCodec,
};
use gristmill_model::RunToken;
use gristmill_model::splits::{
    Bundle, DeathLog, JobProgress, ReaderProgress, epoch::EpochItem, window::WindowHints,
};
use gristmill_model::wire::{
    CacheEntry, CacheManifest, Dataset, DatasetManifest, DepartedWorkers, ScaleState,
    SpokenVersions, VERSION, WorkProfile,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// One item or object that was stored in a simulation of that release.
#[derive(Deserialize)]
struct Sample {
    /// `item` and the first part of its sort key, or `object` and what it is.
    kind: String,
    /// JSON; the bytes of a bundle in hexadecimal digits.
    value: Value,
}

/// The samples without the field that this release has no use for; a release of version 2 reads a job without it.
fn golden() -> Vec<Sample> {
    let mut samples: Vec<Sample> =
        serde_json::from_str(include_str!("../golden/version-2.json")).unwrap();
    for Sample { value, .. } in &mut samples {
        if let Some(caching) = value.get_mut("caching").and_then(Value::as_object_mut) {
            caching.remove("split_records");
        }
    }
    samples
}

fn stored<T: ItemCodec>(value: &Value) -> Result<Value, String> {
    let item = T::decode(&serde_json::to_vec(value).unwrap())?;
    Ok(serde_json::from_slice(&item.encode()?).unwrap())
}

fn object<T: Serialize + DeserializeOwned>(value: &Value) -> Result<Value, String> {
    let object: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(object).unwrap())
}

/// A bundle in hexadecimal digits, read and written.
fn bundle(digits: &Value) -> Result<Value, String> {
    let digits = digits.as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..digits.len() / 2).map(byte).collect();
    let again = Bundle::decode(&bytes)?.encode()?;
    Ok(again.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
}

/// `value`, read and written by this build.
fn again(kind: &str, value: &Value) -> Result<Value, String> {
    match kind {
        "item B" => bundle(value),
        "item C" => stored::<JobProgress>(value),
        "item DEATHS" => stored::<DeathLog>(value),
        "item E" => stored::<EpochItem>(value),
        "item FRONTIER" => stored::<WindowHints>(value),
        "item JOB" => stored::<JobItem>(value),
        "item Left" => stored::<DepartedWorkers>(value),
        "item Listed" => stored::<ListedJob>(value),
        "item NUMERICS" => stored::<String>(value),
        "item PROFILE" => stored::<WorkProfile>(value),
        "item R" => stored::<ReaderProgress>(value),
        "item SCALE" => stored::<ScaleState>(value),
        "item SKIPS" => stored::<SkipCounts>(value),
        "item SWEPT" => stored::<SweepProgress>(value),
        "item T" => stored::<RunToken>(value),
        "item USE" => stored::<CacheUse>(value),
        "object cache_entry" => object::<CacheEntry>(value),
        "object listing" => object::<Dataset>(value),
        "object manifest" => object::<DatasetManifest>(value),
        "object shelf_manifest" => object::<CacheManifest>(value),
        _ => panic!("{kind} is stored nowhere"),
    }
}

#[test]
fn items_of_earlier_releases_are_read_and_written_unchanged() {
    let mut kinds = BTreeSet::new();
    for Sample { kind, value } in golden() {
        let again = again(&kind, &value).unwrap_or_else(|error| panic!("{kind}: {error}"));
        // A release that knows nothing of later versions reads it: a job that it registered has no field of theirs.
        assert_eq!(again, value, "{kind}");
        kinds.insert(kind);
    }
    assert_eq!(kinds.len(), 20, "one of each kind: {kinds:?}");
}

/// Fields that version 2 does not know, by the item that has them, with the value of a job that began in this version.
/// A release of version 2 ignores them, and drops them when it writes the item.
fn later_fields() -> [(&'static str, &'static str, Value); 2] {
    let spoken = serde_json::to_value(SpokenVersions::BUILD).unwrap();
    [("item JOB", "protocol", json!(VERSION)), ("item SCALE", "worker_spoken", spoken)]
}

#[test]
fn fields_of_later_versions_may_be_lost_in_a_rollback() {
    for (of, field, later) in later_fields() {
        let samples = golden().into_iter().filter(|sample| sample.kind == of);
        for Sample { kind, value: before } in samples {
            let mut value = before.clone();
            value[field] = later.clone();
            assert_eq!(again(&kind, &value).unwrap(), value, "{kind} keeps {field}");
            value.as_object_mut().unwrap().remove(field);
            assert_eq!(again(&kind, &value).unwrap(), before, "{kind} is as version 2 left it");
        }
    }
}

#[test]
fn fields_of_later_versions_are_ignored() {
    for Sample { kind, value } in golden() {
        if !value.is_object() {
            continue;
        }
        let mut later = value.clone();
        later["later"] = json!({ "x": [1] });
        assert_eq!(again(&kind, &later).unwrap(), value, "{kind}");
    }
}
