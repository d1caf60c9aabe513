//! Messages of the version before, as its last release wrote them: this build reads them, and what it writes for that
//! version has the same form.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_model::wire::protocol::{self, OLDEST, VERSION, read_event};
use gristmill_model::wire::{
    AnyReply, CallEnvelope, CallRefusal, RefusalKind, ScalerEvent, SpokenVersions, WorkerEvent,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// One message that a release of version 2 wrote in a simulation.
#[derive(Deserialize)]
struct Sample {
    /// Its kind: `request`, `reply` or `event`, and the name of the call or of the function.
    kind: String,
    value: Value,
}

/// The messages of version [`OLDEST`].
fn golden() -> Vec<Sample> {
    assert_eq!(OLDEST, 2, "the golden file is that of the oldest version which is spoken");
    serde_json::from_str(include_str!("../golden/version-2.json")).unwrap()
}

/// Reads `value` as version 2 wrote it, and writes it for version 2.
fn again<M: Serialize + DeserializeOwned>(value: &Value) -> Result<Value, serde_json::Error> {
    let message: M = protocol::read(&serde_json::to_vec(value)?, OLDEST)?;
    serde_json::from_slice(&protocol::write(&message, OLDEST)?)
}

fn again_as(kind: &str, value: &Value) -> Result<Value, serde_json::Error> {
    match kind.split_once(' ') {
        Some(("request", _)) => again::<CallEnvelope>(value),
        Some(("reply", _)) => again::<AnyReply>(value),
        Some(("event", "scaler")) => again::<ScalerEvent>(value),
        Some(("event", "worker")) => again::<WorkerEvent>(value),
        _ => panic!("{kind} is no kind of message"),
    }
}

/// Whether a reader that knows the fields of `older` finds all of them in `newer`.
fn has_all_of(newer: &Value, older: &Value) -> bool {
    match (newer, older) {
        (Value::Object(newer), Value::Object(older)) => older
            .iter()
            .all(|(key, value)| newer.get(key).is_some_and(|newer| has_all_of(newer, value))),
        (Value::Array(newer), Value::Array(older)) => {
            newer.len() == older.len()
                && newer.iter().zip(older).all(|(newer, older)| has_all_of(newer, older))
        }
        _ => newer == older,
    }
}

#[test]
fn the_version_before_is_read_and_answered() {
    for Sample { kind, value } in golden() {
        let again = again_as(&kind, &value).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert!(has_all_of(&again, &value), "{kind}:\n{value}\nis now\n{again}");
    }
}

macro_rules! names {
    ($($name:ident($call:ident)[$($job:tt)*] $text:literal $reply:ident)*) => {
        const NAMES: &[&str] = &[$($text),*];
    };
}

gristmill_model::for_each_call!(names);

#[test]
fn there_is_a_sample_of_every_message() {
    let kinds: BTreeSet<String> = golden().into_iter().map(|sample| sample.kind).collect();
    for name in NAMES {
        assert!(kinds.contains(&format!("request {name}")), "a call {name}");
        assert!(kinds.contains(&format!("reply {name}")), "a reply to {name}");
    }
    for event in ["event scaler", "event worker"] {
        assert!(kinds.contains(event), "{event}");
    }
    let refusals = golden().into_iter().filter(|sample| sample.kind.starts_with("reply refused"));
    let refusals: BTreeSet<_> = refusals.map(|sample| sample.value["kind"].to_string()).collect();
    assert_eq!(refusals.len(), 9, "each kind of refusal of version 2: {refusals:?}");
}

/// Adds a field that no release knows to each object of `value`, one at a time.
fn with_a_later_field(value: &Value) -> Vec<(String, Value)> {
    let mut places = Vec::new();
    places_of(value, &mut String::new(), &mut places);
    let with = |place: String| {
        let mut value = value.clone();
        let object = value.pointer_mut(&place).and_then(Value::as_object_mut);
        object.unwrap().insert("later".into(), json!({ "x": [1] }));
        (place, value)
    };
    places.into_iter().map(with).collect()
}

fn places_of(value: &Value, at: &mut String, places: &mut Vec<String>) {
    let length = at.len();
    let within: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            places.push(at.clone());
            fields.iter().map(|(key, value)| (key.clone(), value)).collect()
        }
        Value::Array(values) => {
            values.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    for (key, value) in within {
        *at += &format!("/{key}");
        places_of(value, at, places);
        at.truncate(length);
    }
}

/// Objects that are a variant of an enum by its name: they have one field.
const VARIANTS: [&str; 1] = ["/kind"];

#[test]
fn fields_of_later_versions_are_ignored() {
    let mut tried = 0;
    for Sample { kind, value } in golden() {
        for (place, value) in with_a_later_field(&value) {
            let is_read = again_as(&kind, &value).is_ok();
            assert_eq!(is_read, !VARIANTS.contains(&place.as_str()), "{kind} at {place}");
            tried += 1;
        }
    }
    assert!(tried > 500, "{tried}");
}

fn other_version() -> AnyReply {
    AnyReply::Refused(SpokenVersions::BUILD.refuse(9))
}

#[test]
fn the_refusal_of_a_version_never_changes_and_does_not_reach_version_2() {
    let written = |version: u32| -> Value {
        serde_json::from_slice(&protocol::write(&other_version(), version).unwrap()).unwrap()
    };
    for version in [3, 4, 9, u32::MAX] {
        let kind =
            json!({ "other_version": { "spoken": { "oldest": OLDEST, "newest": VERSION } } });
        assert_eq!(
            (&written(version)["reply"], &written(version)["kind"]),
            (&json!("refused"), &kind)
        );
    }
    for version in [0, 1, 2] {
        assert_eq!(written(version)["kind"], json!("invalid"));
        let text = written(version)["message"].to_string();
        assert!(text.contains("version 9") && text.contains("2 to 3"), "{text}");
    }
}

#[test]
fn a_call_of_another_version_is_refused_before_the_rest_is_read() {
    for v in [0, 1, 4, 9] {
        let body = json!({ "v": v, "call": "unheard_of", "ns": 7 }).to_string();
        let refusal = CallEnvelope::read(body.as_bytes(), SpokenVersions::BUILD).unwrap_err();
        let RefusalKind::OtherVersion { spoken } = refusal.kind else { panic!("{refusal:?}") };
        assert_eq!(spoken, SpokenVersions::BUILD);
        let advice =
            if v > VERSION { "upgrade the stack first" } else { "upgrade gristmill where" };
        assert!(refusal.message.contains(advice), "{refusal}");
        assert_eq!(CallEnvelope::version_of(body.as_bytes()), v);
    }
    for body in ["", "{}", "[]", r#"{"v":3}"#, r#"{"v":-1}"#] {
        let refused = CallEnvelope::read(body.as_bytes(), SpokenVersions::BUILD);
        assert!(matches!(refused, Err(CallRefusal { kind: RefusalKind::Invalid, .. })), "{body}");
    }
}

#[test]
fn events_of_both_versions_are_read_and_others_refused_by_name() {
    let event = |v: u32| json!({ "v": v, "ns": "n", "job": "j", "worker": 7 });
    for v in [OLDEST, VERSION] {
        assert_eq!(read_event::<WorkerEvent>(event(v)).unwrap().v, v);
    }
    for v in [0, 1, 4] {
        let error = read_event::<WorkerEvent>(event(v)).unwrap_err().to_string();
        assert!(error.contains(&format!("version {v}")) && error.contains("2 to 3"), "{error}");
    }
    assert!(read_event::<WorkerEvent>(json!({ "worker": 7 })).is_err());
}

#[test]
fn the_newest_version_of_both_is_the_common_one() {
    let of = |oldest, newest| SpokenVersions { oldest, newest };
    assert_eq!(of(2, 3).common(of(3, 4)), Some(3));
    assert_eq!(of(2, 3).common(of(1, 2)), Some(2));
    assert_eq!(of(2, 3).common(of(2, 3)), Some(3));
    assert_eq!(of(2, 3).common(of(4, 5)), None);
    assert_eq!(of(2, 3).common(of(0, 1)), None);
    assert_eq!([0, 2, 3, 9].map(|version| of(2, 3).nearest(version)), [2, 2, 3, 3]);
}
