//! The features of one JSON object, without building a tree of it.
//!
//! The parser is serde_json's: numbers go from the text straight to the cell's bytes, strings without
//! escapes stay where they are, and what no feature names is passed over. Of the parsers tried on
//! `{"tokens": [..]}` with 68 numbers it takes 1.6-2.5 us a record, as simd-json does and less than
//! sonic-rs. Nesting deeper than 128 is refused by it.

use super::value::FeatureValueSeed;
use crate::{Feature, FeatureMap, ReadRecord, words};
use gristmill_kernel::{ExtractKernel, FieldCell, KernelScratch};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Deepest key: beyond it dots are part of a name. Half of what the parser nests.
const MAX_DEPTH: usize = 64;
/// The byte order mark that some editors write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Finds the features of a pipeline in objects; feature i goes to cell i.
#[derive(Debug)]
pub struct JsonlRecordReader {
    /// In the order of the field names.
    wanted: Vec<Feature>,
    root: Level,
}

/// The entries to read of an object.
#[derive(Debug, Default)]
struct Level {
    entries: Vec<Entry>,
}

/// The features to read of one key's value.
#[derive(Debug, Default)]
struct Entry {
    key: String,
    /// Features that are this value.
    features: Vec<usize>,
    /// The entries to read of it if it is an object.
    within: Level,
}

impl Level {
    /// Has `feature` be what `path` leads to.
    fn insert(&mut self, path: &[&str], feature: usize) {
        let [key, within @ ..] = path else { return };
        let at = self.entries.iter().position(|entry| entry.key == *key);
        let at = at.unwrap_or_else(|| {
            self.entries.push(Entry { key: (*key).to_owned(), ..Entry::default() });
            self.entries.len() - 1
        });
        match within {
            [] => self.entries[at].features.push(feature),
            _ => self.entries[at].within.insert(within, feature),
        }
    }
}

impl JsonlRecordReader {
    /// A reader of these features, in the order of their names.
    pub fn new(features: &FeatureMap) -> Self {
        let wanted: Vec<Feature> = features.values().cloned().collect();
        let mut root = Level::default();
        for (i, feature) in wanted.iter().enumerate() {
            // A key with dots may also be just that.
            root.insert(&[&feature.key], i);
            let path: Vec<&str> = feature.key.split('.').take(MAX_DEPTH + 1).collect();
            if (2..=MAX_DEPTH).contains(&path.len()) {
                root.insert(&path, i);
            }
        }
        JsonlRecordReader { wanted, root }
    }

    /// Fills the cells of the features it sees, and returns those as [`JsonlRecordState::seen`] does. If `is_plain`, an error only
    /// says that the record is to be read again.
    fn parse(
        &self,
        record: &[u8],
        cells: &mut [FieldCell],
        is_plain: bool,
    ) -> Result<[u64; 4], String> {
        let text = record.strip_prefix(BYTE_ORDER_MARK).unwrap_or(record);
        let (wanted, fault) = (self.wanted.as_slice(), String::new());
        let mut state = JsonlRecordState { wanted, record, cells, seen: [0; 4], is_plain, fault };
        let mut json = serde_json::Deserializer::from_slice(text);
        let object = Object { level: &self.root, is_root: true, state: &mut state };
        let parsed = object.deserialize(&mut json).and_then(|()| json.end());
        match parsed {
            Ok(()) => Ok(state.seen),
            Err(_) if !state.fault.is_empty() => Err(std::mem::take(&mut state.fault)),
            Err(error) => Err(not_json(text, &error)),
        }
    }
}

impl ExtractKernel for JsonlRecordReader {
    fn extract(
        &self,
        input: &[u8],
        found: &mut [FieldCell],
        _: &mut KernelScratch,
    ) -> Result<usize, String> {
        self.find(input, found)
    }
}

impl ReadRecord for JsonlRecordReader {
    fn find(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        // A string or an object that does not end must not seem to go on behind the line.
        let record = record.trim_ascii_end();
        // A record that has something else than numbers is read again: to take it in, or to say what is wrong.
        let seen = match self.parse(record, cells, true) {
            Ok(seen) => seen,
            Err(_) => self.parse(record, cells, false)?,
        };
        // Those beyond are of other fields.
        let cells = &mut cells[..self.wanted.len()];
        for (i, (wanted, cell)) in self.wanted.iter().zip(cells.iter_mut()).enumerate() {
            if seen[i / 64 % 4] & 1 << (i % 64) == 0 && !words::put_default(wanted, cell) {
                return Err(format!("key `{}` is missing", wanted.key));
            }
        }
        Ok(cells.iter().map(|cell| cell.place.bytes()).sum())
    }

    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        stored.trim_ascii()
    }
}

/// The fault of `text`, its place in its line, and what to do about it.
fn not_json(text: &[u8], error: &serde_json::Error) -> String {
    const COMMA: &str = "remove the comma before it";
    let (message, column) = (error.to_string(), error.column());
    let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
    let line = text.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1));
    let at = line.and_then(|line| line.split_at_checked(column.saturating_sub(1)));
    let (before, rest) = at.unwrap_or_default();
    let remedy = match what {
        _ if rest.starts_with(b"NaN") || rest.starts_with(b"Infinity") => {
            "NaN and Infinity are no JSON: write null where a number is missing"
        }
        _ if before.trim_ascii_end().ends_with(b",") && rest.starts_with(b"]") => COMMA,
        _ if before.trim_ascii_end().ends_with(b",") && rest.starts_with(b"}") => COMMA,
        "key must be a string" => "put keys and strings in double quotes",
        "EOF while parsing a string" => {
            "end the string with `\"`, and write a line end within it as `\\n`"
        }
        "EOF while parsing an object" | "EOF while parsing a list" => {
            "is the line cut short, or the object on several lines? write each on one"
        }
        _ => "",
    };
    let apart = if remedy.is_empty() { "" } else { "; " };
    format!("not valid JSON: {what} (column {column}){apart}{remedy}")
}

/// A record being read.
pub(super) struct JsonlRecordState<'a> {
    pub(super) wanted: &'a [Feature],
    pub(super) record: &'a [u8],
    pub(super) cells: &'a mut [FieldCell],
    /// A bit for each of the at most 256 features of a pipeline.
    seen: [u64; 4],
    /// Numbers are read as the parser makes them, and an error says only that the record is to be read again.
    pub(super) is_plain: bool,
    /// The fault of a record that is valid JSON.
    fault: String,
}

impl JsonlRecordState<'_> {
    /// Notes whether the value of a key that was met is there: of equal keys the last counts.
    pub(super) fn set_seen(&mut self, feature: usize, is_there: bool) {
        let (bits, bit) = (&mut self.seen[feature / 64 % 4], 1 << (feature % 64));
        *bits = if is_there { *bits | bit } else { *bits & !bit };
    }

    /// Stops the parser.
    pub(super) fn fail<E: Error>(&mut self, what: String) -> E {
        self.fault = what;
        E::custom("")
    }
}

/// An object, of which some keys are wanted; anything else is passed over unless it is the root.
struct Object<'l, 's, 'a> {
    level: &'l Level,
    is_root: bool,
    state: &'s mut JsonlRecordState<'a>,
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl Object<'_, '_, '_> {
    /// Something else than an object.
    fn other<E: Error>(self, what: &str) -> Result<(), E> {
        if self.is_root {
            Err(self.state.fail(format!("it is {what}, not a JSON object")))
        } else {
            Ok(())
        }
    }
}

impl<'de> Visitor<'de> for Object<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Object { level, state, .. } = self;
        while let Some(entry) = map.next_key_seed(Key(level))? {
            let Some(entry) = entry else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            match (entry.features.as_slice(), entry.within.entries.as_slice()) {
                (&[feature], []) => {
                    map.next_value_seed(FeatureValueSeed { feature, state: &mut *state })?
                }
                ([], [_, ..]) => {
                    map.next_value_seed(Object {
                        level: &entry.within,
                        is_root: false,
                        state: &mut *state,
                    })?;
                }
                // Wanted more than once, which is rare: parsed as often.
                (features, _) => {
                    let text = map.next_value::<&RawValue>()?.get();
                    let again = || serde_json::Deserializer::from_str(text);
                    for &feature in features {
                        let value = FeatureValueSeed { feature, state: &mut *state };
                        value.deserialize(&mut again()).map_err(A::Error::custom)?;
                    }
                    let within =
                        Object { level: &entry.within, is_root: false, state: &mut *state };
                    within.deserialize(&mut again()).map_err(A::Error::custom)?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.other("a list")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.other("true or false")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.other("a number")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.other("a number")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.other("a number")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.other("text")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.other("null")
    }
}

/// A key, as what is wanted of its value.
struct Key<'l>(&'l Level);

impl<'l, 'de> DeserializeSeed<'de> for Key<'l> {
    type Value = Option<&'l Entry>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'l, 'de> Visitor<'de> for Key<'l> {
    type Value = Option<&'l Entry>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.entries.iter().find(|entry| entry.key == key))
    }
}

#[cfg(test)]
mod tests;
