//! The value of one feature of a JSON object: a string, a number, or lists of numbers.
//!
//! Whole numbers are i64 or u64, exactly; true and false are 1 and 0 there. Any number may be read as f32 or
//! f64, rounded to the nearest (to f32 from f64). Values of more than one dimension are lists in lists, or
//! one list of all of them.

use super::extract::JsonlRecordState;
use crate::{Feature, FeatureDType, MAX_VALUES};
use gristmill_kernel::CellStorage;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
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
            json.deserialize_any(Text { feature, state: &mut *state })?;
        } else {
            let mut fault = String::new();
            let cell = &mut state.cells[feature];
            let filled = cell.fill(|buffer| {
                let most = wanted.values().unwrap_or(MAX_VALUES as usize);
                let (count, depth, at, is_plain) = (0, 0, None, state.is_plain);
                let mut numbers =
                    Numbers { wanted, buffer, count, most, depth, at, is_plain, fault: &mut fault };
                numbers.deserialize(json)?;
                let count = numbers.count;
                wanted.check_values(count).map_err(|what| numbers.fail(what))
            });
            filled.map_err(|error| {
                if fault.is_empty() {
                    error
                } else {
                    state.fail(format!("key `{}` {fault}", wanted.key))
                }
            })?;
        }
        state.saw(feature);
        Ok(())
    }
}

/// A string, as the bytes of its UTF-8.
struct Text<'s, 'a> {
    feature: usize,
    state: &'s mut JsonlRecordState<'a>,
}

impl Text<'_, '_> {
    fn other<E: Error>(self, what: &str) -> Result<(), E> {
        let key = &self.state.wanted[self.feature].key;
        let what = format!("key `{key}` is {what}, the pipeline reads bytes, which is a string");
        Err(self.state.fail(what))
    }
}

impl<'de> Visitor<'de> for Text<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        let JsonlRecordState { cells, record, .. } = self.state;
        let start = text.as_ptr().addr().wrapping_sub(record.as_ptr().addr());
        let range = start..start.saturating_add(text.len());
        // A part of the record is used where it is.
        if record.get(range.clone()).is_some_and(|part| std::ptr::eq(part, text.as_bytes())) {
            cells[self.feature].place = CellStorage::Record(range);
            return Ok(());
        }
        self.visit_str(text)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.state.cells[self.feature].fill(|buffer| {
            buffer.extend_from_slice(text.as_bytes());
            Ok(())
        })
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.other(if value { "true" } else { "false" })
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

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.other("null")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        self.other("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
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
    /// Items of the innermost lists are read as numbers; anything else there is an error of the parser.
    is_plain: bool,
    fault: &'b mut String,
}

impl Numbers<'_> {
    #[cold]
    fn fail<E: Error>(&mut self, what: impl Into<String>) -> E {
        *self.fault = what.into();
        E::custom("")
    }

    #[cold]
    fn no_number<E: Error>(&mut self, what: impl fmt::Display) -> E {
        let dtype = self.wanted.dtype.dtype();
        self.fail(format!("holds {what}, which is no {dtype}"))
    }

    /// Takes in a number, of which only the first that are wanted are kept.
    fn add<const N: usize, E: Error>(&mut self, bytes: [u8; N]) -> Result<(), E> {
        if self.at != Some(self.depth) {
            self.place()?;
        }
        self.count += 1;
        if self.count <= self.most {
            self.buffer.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// The first number, or one that is not as deep as those before.
    #[cold]
    fn place<E: Error>(&mut self) -> Result<(), E> {
        let dims = self.wanted.shape.len();
        if self.at.is_some() {
            return Err(self.fail("has numbers and lists side by side"));
        }
        match (dims, self.depth) {
            (0, 0) => {}
            (1.., depth) if depth == dims || depth == 1 => {}
            (0, _) => return Err(self.fail("is a list, the pipeline reads one value")),
            (_, 0) => return Err(self.fail("is one value, the pipeline reads a list")),
            (_, depth) => {
                return Err(self.fail(format!(
                    "has lists {depth} deep, the pipeline reads {dims} dimensions"
                )));
            }
        }
        self.at = Some(self.depth);
        Ok(())
    }

    /// Checks the length of a list that has `depth` lists around it.
    fn check_list<E: Error>(&mut self, depth: usize, items: usize) -> Result<(), E> {
        let dims = self.wanted.shape.len();
        if depth >= dims {
            return Err(self.fail("has a list where the pipeline reads one value"));
        }
        // One list of all values is counted as a whole, and so is the outermost.
        if depth == 0 || self.at == Some(1) {
            return Ok(());
        }
        match self.wanted.shape[depth] {
            Some(dim) if items != dim as usize => Err(self.fail(format!(
                "has a list of {items} at depth {}, the pipeline reads {dim}",
                depth + 1
            ))),
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut Numbers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        if self.is_plain && self.depth == self.wanted.shape.len() {
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
        match (self.wanted.dtype, u64::try_from(value)) {
            (FeatureDType::F32, _) => self.add((value as f32).to_le_bytes()),
            (FeatureDType::F64, _) => self.add((value as f64).to_le_bytes()),
            (FeatureDType::U64, Ok(value)) => self.add(value.to_le_bytes()),
            (FeatureDType::U64, Err(_)) => Err(self.no_number(value)),
            _ => self.add(value.to_le_bytes()),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match (self.wanted.dtype, i64::try_from(value)) {
            (FeatureDType::F32, _) => self.add((value as f32).to_le_bytes()),
            (FeatureDType::F64, _) => self.add((value as f64).to_le_bytes()),
            (FeatureDType::U64, _) => self.add(value.to_le_bytes()),
            (_, Ok(value)) => self.add(value.to_le_bytes()),
            (_, Err(_)) => Err(self.no_number(value)),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let narrow = value as f32;
        match self.wanted.dtype {
            FeatureDType::F32 if narrow.is_finite() => self.add(narrow.to_le_bytes()),
            FeatureDType::F64 => self.add(value.to_le_bytes()),
            // How JSON's `-0` is read.
            FeatureDType::I64 | FeatureDType::U64 if value == 0.0 && value.is_sign_negative() => {
                self.add(0_i64.to_le_bytes())
            }
            // `1.0` is not written as 1, which would be a number.
            _ => Err(self.no_number(format_args!("{value:?}"))),
        }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.wanted.dtype {
            FeatureDType::I64 | FeatureDType::U64 => self.add(i64::from(value).to_le_bytes()),
            _ => Err(self.no_number(value)),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(match self.depth {
            0 => self.fail("is null"),
            _ => self.no_number("null"),
        })
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Err(self.no_number("a string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let (depth, mut items) = (self.depth, 0);
        self.depth += 1;
        while seq.next_element_seed(&mut *self)?.is_some() {
            items += 1;
        }
        self.depth = depth;
        self.check_list(depth, items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Err(self.no_number("an object"))
    }
}
