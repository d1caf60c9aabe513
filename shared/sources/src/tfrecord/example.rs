//! `tf.Example` messages: a map from key to a list of byte strings, floats or integers. `tf.SequenceExample` messages,
//! whose context is such a map, and whose other map has a list of features for a key: one for each step of a sequence.
//!
//! Source: TensorFlow's `example.proto` and `feature.proto`, and the protocol buffer encoding. Only
//! the features a pipeline names are looked at, and byte strings are not copied: a message has
//! dozens of features of which two are wanted, and building all of them would cost more than the
//! rest of a token pipeline. Of a key given twice the last counts; of a feature given twice, its lists of the last kind
//! are one, as protocol buffers are merged.

use crate::{Feature, FeatureDType, FeatureMap, MAX_VALUES, words};
use gristmill_kernel::{CellStorage, ExtractKernel, FieldCell, KernelScratch};
use std::ops::Range;

/// Finds the features of a pipeline in examples; feature i goes to cell i.
#[derive(Debug)]
pub struct ExampleExtractor {
    /// In the order of the field names.
    wanted: Vec<Feature>,
}

/// A piece of a message: a field number and what it holds.
enum Piece<'a> {
    /// Length-delimited: a string, message or packed list, and where it starts in the record.
    Bytes(u32, Slice<'a>),
    Varint(u32, u64),
    Fixed32(u32, [u8; 4]),
    Other,
}

/// Bytes of the record with their place in it.
#[derive(Clone, Copy)]
struct Slice<'a> {
    record: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Slice<'a> {
    fn bytes(&self) -> &'a [u8] {
        &self.record[self.start..self.end]
    }

    fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The next `n` bytes.
    fn take(&mut self, n: u64) -> Result<Slice<'a>, String> {
        let left = self.end - self.start;
        let n = usize::try_from(n).ok().filter(|n| *n <= left);
        let n = n.ok_or_else(|| self.bad("something reaches beyond its end"))?;
        let taken = Slice { end: self.start + n, ..*self };
        self.start += n;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let (mut value, mut shift) = (0_u64, 0);
        for (i, byte) in self.bytes().iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 {
                self.start += i + 1;
                return Ok(value);
            }
        }
        Err(self.bad("a number does not end"))
    }

    /// The next piece of a message; none at its end.
    fn piece(&mut self) -> Result<Option<Piece<'a>>, String> {
        if self.start == self.end {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let number = number.ok_or_else(|| self.bad("a field number is not valid"))?;
        Ok(Some(match tag & 7 {
            0 => Piece::Varint(number, self.varint()?),
            1 => {
                self.take(8)?;
                Piece::Other
            }
            2 => {
                let length = self.varint()?;
                Piece::Bytes(number, self.take(length)?)
            }
            5 => match self.take(4)?.bytes().first_chunk() {
                Some(bytes) => Piece::Fixed32(number, *bytes),
                None => Piece::Other,
            },
            _ => return Err(self.bad("a field has an unknown type")),
        }))
    }

    fn bad(&self, what: &str) -> String {
        format!("not a tf.Example: {what} (byte {} of the record)", self.start)
    }
}

impl ExampleExtractor {
    /// A reader of these features, in the order of their names.
    pub fn new(features: &FeatureMap) -> Self {
        ExampleExtractor { wanted: features.values().cloned().collect() }
    }

    /// Finds every wanted feature in `record`; returns the bytes of their values.
    pub fn find(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        for cell in cells.iter_mut() {
            cell.place = CellStorage::Record(0..0);
        }
        // For the context and for the lists: a bit for each of the at most 256 features of a pipeline, if it is there.
        let mut seen = [[0_u64; 4]; 2];
        let mut message = Slice { record, start: 0, end: record.len() };
        while let Some(piece) = message.piece()? {
            let Piece::Bytes(part @ 1..=2, mut entries) = piece else { continue };
            while let Some(piece) = entries.piece()? {
                let Piece::Bytes(1, entry) = piece else { continue };
                let key = map_key(entry)?;
                for (i, wanted) in self.wanted.iter().enumerate() {
                    if wanted.key.as_bytes() == key {
                        cells[i].place = CellStorage::Record(entry.range());
                        seen[part as usize - 1][i / 64 % 4] |= 1 << (i % 64);
                    }
                }
            }
        }
        for (i, (wanted, cell)) in self.wanted.iter().zip(cells.iter_mut()).enumerate() {
            let [in_context, in_lists] = seen.map(|seen| seen[i / 64 % 4] & 1 << (i % 64) != 0);
            let (start, end) = match &cell.place {
                CellStorage::Record(range) => (range.start, range.end),
                _ => (0, 0),
            };
            let entry = Slice { record, start, end };
            let key = &wanted.key;
            let is_there = match (in_context, in_lists) {
                (true, true) => {
                    return Err(format!("feature `{key}` is in the context and in the lists"));
                }
                (true, false) => read(wanted, entry, cell)?,
                (false, true) => read_steps(wanted, entry, cell)?,
                (false, false) => false,
            };
            if !is_there && !words::put_default(wanted, cell) {
                let what = if in_context { "empty" } else { "missing" };
                return Err(format!("feature `{key}` is {what}"));
            }
        }
        Ok(cells.iter().take(self.wanted.len()).map(|cell| cell.place.bytes()).sum())
    }
}

impl ExtractKernel for ExampleExtractor {
    fn extract(
        &self,
        input: &[u8],
        found: &mut [FieldCell],
        _: &mut KernelScratch,
    ) -> Result<usize, String> {
        self.find(input, found)
    }
}

/// The key of a map entry.
fn map_key(mut entry: Slice<'_>) -> Result<&[u8], String> {
    let mut key = &b""[..];
    while let Some(piece) = entry.piece()? {
        if let Piece::Bytes(1, bytes) = piece {
            key = bytes.bytes();
        }
    }
    Ok(key)
}

/// Calls `each` for every message at field `number`.
fn messages<'a>(
    mut message: Slice<'a>,
    number: u32,
    mut each: impl FnMut(Slice<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while let Some(piece) = message.piece()? {
        match piece {
            Piece::Bytes(found, inner) if found == number => each(inner)?,
            _ => {}
        }
    }
    Ok(())
}

/// The kind of list that a feature of this type is read from: its field in the message.
fn kind_of(dtype: FeatureDType) -> u32 {
    match dtype {
        FeatureDType::Bytes => 1,
        FeatureDType::F32 | FeatureDType::F64 => 2,
        FeatureDType::I64 | FeatureDType::U64 => 3,
    }
}

/// The values that have been found of a feature.
#[derive(Default)]
struct FoundValues {
    /// The length of the buffer before its numbers.
    start: usize,
    /// The field of the list it has, if it has one.
    kind: Option<u32>,
    count: usize,
    /// The last of its byte strings.
    bytes: Range<usize>,
}

impl FoundValues {
    /// Takes in a message `Feature`, whose numbers are appended to `out` up to `most`.
    fn merge(
        &mut self,
        wanted: &Feature,
        mut feature: Slice<'_>,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        while let Some(piece) = feature.piece()? {
            let Piece::Bytes(kind @ 1..=3, list) = piece else { continue };
            if self.kind.replace(kind) != Some(kind) {
                *self = FoundValues { start: self.start, kind: self.kind, ..Self::default() };
                out.truncate(self.start);
            }
            let most = most.saturating_sub(self.count);
            self.count += match kind {
                _ if kind != kind_of(wanted.dtype) => 0,
                1 => self.byte_list(list)?,
                2 => float_list(list, most, out)?,
                _ => int_list(list, most, out)?,
            };
        }
        Ok(())
    }

    fn byte_list(&mut self, mut list: Slice<'_>) -> Result<usize, String> {
        let mut count = 0;
        while let Some(piece) = list.piece()? {
            if let Piece::Bytes(1, value) = piece {
                count += 1;
                self.bytes = value.range();
            }
        }
        Ok(count)
    }

    /// Checks that its list, if there is one, is of the kind that is wanted.
    fn check_kind(&self, wanted: &Feature) -> Result<(), String> {
        match self.kind {
            Some(kind) if kind != kind_of(wanted.dtype) => {
                let (is, asked) =
                    (["bytes", "f32", "i64"][kind as usize - 1], wanted.dtype.dtype());
                Err(format!("feature `{}` is {is}, the pipeline reads {asked}", wanted.key))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the feature of a map entry into `cell`. Returns whether it has a value; a list without values may be left
/// out of its feature.
fn read(wanted: &Feature, entry: Slice<'_>, cell: &mut FieldCell) -> Result<bool, String> {
    let most = wanted.values().unwrap_or(MAX_VALUES as usize);
    let mut found = FoundValues::default();
    cell.fill(|buffer| {
        // A feature that is given in parts is merged.
        messages(entry, 2, |feature| found.merge(wanted, feature, most, buffer))
    })?;
    found.check_kind(wanted)?;
    if found.kind.is_none() && (wanted.default.is_some() || wanted.values().is_some()) {
        return Ok(false);
    }
    put(wanted, found, cell)
}

/// Reads the steps of a map entry of a sequence into `cell`: each is an item of the first dimension.
fn read_steps(wanted: &Feature, entry: Slice<'_>, cell: &mut FieldCell) -> Result<bool, String> {
    let most = wanted.values().unwrap_or(MAX_VALUES as usize);
    let (inner, mut all) = (wanted.inner_values(), FoundValues::default());
    cell.fill(|buffer| {
        messages(entry, 2, |steps| {
            messages(steps, 1, |feature| {
                let mut step = FoundValues { start: buffer.len(), ..FoundValues::default() };
                step.merge(wanted, feature, most.saturating_sub(all.count), buffer)?;
                step.check_kind(wanted)?;
                if step.count != inner {
                    let (key, has) = (&wanted.key, step.count);
                    return Err(format!(
                        "feature list `{key}` has a step of {has} values, the pipeline reads {inner}"
                    ));
                }
                all = FoundValues { count: all.count + step.count, ..step };
                Ok(())
            })
        })
    })?;
    put(wanted, all, cell)
}

/// Checks how many values were found, and has `cell` refer to them.
fn put(wanted: &Feature, found: FoundValues, cell: &mut FieldCell) -> Result<bool, String> {
    let checked = wanted.check_values(found.count);
    checked.map_err(|what| format!("feature `{}` {what}", wanted.key))?;
    if wanted.dtype == FeatureDType::Bytes {
        cell.place = CellStorage::Record(found.bytes);
    }
    Ok(true)
}

/// Appends the floats of a list, of which `most` are wanted; returns how many there are.
fn float_list(mut list: Slice<'_>, most: usize, out: &mut Vec<u8>) -> Result<usize, String> {
    let mut count = 0;
    let mut add = |bytes: [u8; 4]| {
        if count < most {
            out.extend_from_slice(&bytes);
        }
        count += 1;
    };
    while let Some(piece) = list.piece()? {
        match piece {
            Piece::Fixed32(1, bytes) => add(bytes),
            Piece::Bytes(1, packed) => {
                let (values, rest) = packed.bytes().as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(packed.bad("a list of floats is not whole"));
                }
                values.iter().for_each(|bytes| add(*bytes));
            }
            _ => {}
        }
    }
    Ok(count)
}

/// Appends the integers of a list, of which `most` are wanted; returns how many there are.
fn int_list(mut list: Slice<'_>, most: usize, out: &mut Vec<u8>) -> Result<usize, String> {
    let mut count = 0;
    let mut add = |value: u64| {
        if count < most {
            out.extend_from_slice(&value.to_le_bytes());
        }
        count += 1;
    };
    while let Some(piece) = list.piece()? {
        match piece {
            Piece::Varint(1, value) => add(value),
            Piece::Bytes(1, mut packed) => {
                while packed.start < packed.end {
                    add(packed.varint()?);
                }
            }
            _ => {}
        }
    }
    Ok(count)
}

#[cfg(test)]
pub(crate) mod tests;
