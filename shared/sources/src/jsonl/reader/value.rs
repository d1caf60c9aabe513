//! The value of one feature of a JSON object: a string, a number, or lists of numbers.
//!
//! Whole numbers are i64 or u64, exactly, `3.0` and `1e2` among them; true and false are 1 and 0 there. Any number may
//! be read as f32 or f64, rounded once to the nearest. Values of more than one dimension are lists in lists,
//! or one list of all of them.

use super::extract::JsonlRecordState;
use crate::{Feature, FeatureDType, MAX_VALUES, words};
use gristmill_kernel::CellStorage;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The value of a key, which becomes that of `feature`.
pub(super) struct FeatureValueSeed<'s, 'a> {
    pub(super) feature: usize,
    pub(super) state: &'s mut JsonlRecordState<'a>,
}

impl<'de> DeserializeSeed<'de> for FeatureValueSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        let FeatureValueSeed { feature, state } = self;
        let wanted = &state.wanted[feature];
        if wanted.dtype == FeatureDType::Bytes {
            let is_there = json.deserialize_any(Text { feature, state: &mut *state })?;
            state.set_seen(feature, is_there);
            return Ok(());
        }
        // Read again, numbers are text: of what the parser makes of them, digits are lost.
        let (json, text) = if state.is_plain {
            (Some(json), "")
        } else {
            (None, <&RawValue>::deserialize(json)?.get())
        };
        if text == "null" && wanted.default.is_some() {
            state.set_seen(feature, false);
            return Ok(());
        }
        let cell = &mut state.cells[feature];
        let filled = cell.fill(|buffer| {
            let most = wanted.values().unwrap_or(MAX_VALUES as usize);
            let mut numbers = Numbers { wanted, buffer, count: 0, most, depth: 0, at: None };
            match json {
                Some(json) => numbers.deserialize(json).map_err(|_| String::new())?,
                None => numbers.walk(text)?,
            }
            wanted.check_values(numbers.count)
        });
        if let Err(what) = filled {
            return Err(state.fail(format!("key `{}` {what}", wanted.key)));
        }
        state.set_seen(feature, true);
        Ok(())
    }
}

/// A string, as the bytes of its UTF-8.
struct Text<'s, 'a> {
    feature: usize,
    state: &'s mut JsonlRecordState<'a>,
}

impl Text<'_, '_> {
    fn other<E: Error>(self, what: &str) -> Result<bool, E> {
        let key = &self.state.wanted[self.feature].key;
        let what = format!("key `{key}` is {what}, the pipeline reads bytes, which is a string");
        Err(self.state.fail(what))
    }
}

impl<'de> Visitor<'de> for Text<'_, '_> {
    /// Whether it is there.
    type Value = bool;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<bool, E> {
        let JsonlRecordState { cells, record, .. } = self.state;
        let start = text.as_ptr().addr().wrapping_sub(record.as_ptr().addr());
        let range = start..start.saturating_add(text.len());
        // A part of the record is used where it is.
        if record.get(range.clone()).is_some_and(|part| std::ptr::eq(part, text.as_bytes())) {
            cells[self.feature].place = CellStorage::Record(range);
            return Ok(true);
        }
        self.visit_str(text)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        self.state.cells[self.feature].fill(|buffer| {
            buffer.extend_from_slice(text.as_bytes());
            Ok(())
        })?;
        Ok(true)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        self.other(if value { "true" } else { "false" })
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
        self.other("a number")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
        self.other("a number")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
        self.other("a number")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        match self.state.wanted[self.feature].default {
            Some(_) => Ok(false),
            None => self.other("null"),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<bool, A::Error> {
        self.other("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<bool, A::Error> {
        self.other("an object")
    }
}

/// Numbers in lists as deep as the feature has dimensions, or in one list.
struct Numbers<'b> {
    wanted: &'b Feature,
    buffer: &'b mut Vec<u8>,
    count: usize,
    /// Numbers beyond so many are counted only.
    most: usize,
    /// How many lists are open.
    depth: usize,
    /// In how many lists its numbers are.
    at: Option<usize>,
}

impl Numbers<'_> {
    /// Takes in what the text of a JSON value says.
    fn walk(&mut self, text: &str) -> Result<(), String> {
        let is_end = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b']');
        let dtype = self.wanted.dtype.dtype();
        // By open list: how many items it has so far.
        let (mut lists, mut rest) = (Vec::<usize>::new(), text);
        while let Some(first) = rest.as_bytes().first() {
            if !is_end(first)
                && let Some(items) = lists.last_mut()
            {
                *items += 1;
            }
            let length = match first {
                b'[' => {
                    lists.push(0);
                    self.depth += 1;
                    1
                }
                b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.check_list(self.depth, lists.pop().unwrap_or(0))?;
                    1
                }
                b'{' => return Err(format!("holds an object, which is no {dtype}")),
                b'"' => return Err(format!("holds a string, which is no {dtype}")),
                first if is_end(first) => 1,
                _ => {
                    let length = rest.bytes().position(|byte| is_end(&byte)).unwrap_or(rest.len());
                    self.word(&rest[..length])?;
                    length
                }
            };
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Takes in a number, `true`, `false` or `null`.
    fn word(&mut self, word: &str) -> Result<(), String> {
        let dtype = self.wanted.dtype;
        let whole = matches!(dtype, FeatureDType::I64 | FeatureDType::U64);
        match word {
            "null" if self.depth == 0 => Err("is null".into()),
            "true" | "false" if whole => self.add(i64::from(word == "true").to_le_bytes()),
            _ => {
                let mut number = Vec::with_capacity(8);
                let added = words::add(dtype, word, &mut number);
                added.ok_or_else(|| words::no_number(dtype, word))?;
                self.add_bytes(&number)
            }
        }
    }

    /// Takes in a number, of which only the first that are wanted are kept.
    fn add<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), String> {
        self.add_bytes(&bytes)
    }

    #[inline]
    fn add_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.at != Some(self.depth) {
            self.place()?;
        }
        self.count += 1;
        if self.count <= self.most {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// The first number, or one that is not as deep as those before.
    #[cold]
    fn place(&mut self) -> Result<(), String> {
        let dims = self.wanted.shape.len();
        if self.at.is_some() {
            return Err("has numbers and lists side by side".into());
        }
        match (dims, self.depth) {
            (0, 0) => {}
            (1.., depth) if depth == dims || depth == 1 => {}
            (0, _) => return Err("is a list, the pipeline reads one value".into()),
            (_, 0) => return Err("is one value, the pipeline reads a list".into()),
            (_, depth) => {
                return Err(format!(
                    "has lists {depth} deep, the pipeline reads {dims} dimensions"
                ));
            }
        }
        self.at = Some(self.depth);
        Ok(())
    }

    /// Checks the length of a list that has `depth` lists around it.
    fn check_list(&mut self, depth: usize, items: usize) -> Result<(), String> {
        let dims = self.wanted.shape.len();
        if depth >= dims {
            return Err("has a list where the pipeline reads one value".into());
        }
        // One list of all values is counted as a whole, and so is the outermost.
        if depth == 0 || self.at == Some(1) {
            return Ok(());
        }
        match self.wanted.shape[depth] {
            Some(dim) if items != dim as usize => Err(format!(
                "has a list of {items} at depth {}, the pipeline reads {dim}",
                depth + 1
            )),
            _ => Ok(()),
        }
    }
}

// The numbers of most records, straight from the parser, in a third of the time. An error here says only that the
// value is to be read again.

impl<'de> DeserializeSeed<'de> for &mut Numbers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        if self.depth == self.wanted.shape.len() {
            // Two thirds of the time of the other, which asks of each item what it is.
            json.deserialize_i64(self)
        } else {
            json.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for &mut Numbers<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("numbers")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        let added = match (self.wanted.dtype, u64::try_from(value)) {
            (FeatureDType::F32, _) => self.add((value as f32).to_le_bytes()),
            (FeatureDType::F64, _) => self.add((value as f64).to_le_bytes()),
            (FeatureDType::U64, Err(_)) => return Err(E::custom("")),
            _ => self.add(value.to_le_bytes()),
        };
        added.map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        let added = match (self.wanted.dtype, i64::try_from(value)) {
            (FeatureDType::F32, _) => self.add((value as f32).to_le_bytes()),
            (FeatureDType::F64, _) => self.add((value as f64).to_le_bytes()),
            (FeatureDType::I64, Err(_)) => return Err(E::custom("")),
            _ => self.add(value.to_le_bytes()),
        };
        added.map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let narrow = value as f32;
        // Half way between two f32, to which the number may have been rounded: again, from its text.
        let is_half_way = value.to_bits() << 36 == 0 && f64::from(narrow) != value;
        let added = match self.wanted.dtype {
            FeatureDType::F32 if narrow.is_finite() && !is_half_way => {
                self.add(narrow.to_le_bytes())
            }
            FeatureDType::F64 => self.add(value.to_le_bytes()),
            _ => return Err(E::custom("")),
        };
        added.map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let (depth, mut items) = (self.depth, 0);
        self.depth += 1;
        while seq.next_element_seed(&mut *self)?.is_some() {
            items += 1;
        }
        self.depth = depth;
        self.check_list(depth, items).map_err(A::Error::custom)
    }
}
