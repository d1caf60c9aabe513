//! `tf.Example` messages: a map from key to a list of byte strings, floats or integers.
//!
//! Source: TensorFlow's `example.proto` and `feature.proto`, and the protocol buffer encoding. Only
//! the features a pipeline names are looked at, and byte strings are not copied: a message has
//! dozens of features of which two are wanted, and building all of them would cost more than the
//! rest of a token pipeline. Of a key given twice the last counts.

use crate::{Feature, FeatureDType, FeatureMap, MAX_VALUES};
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
        let mut found = 0_usize;
        // A bit for each of the at most 256 features of a pipeline.
        let mut seen = [0_u64; 4];
        let mut message = Slice { record, start: 0, end: record.len() };
        while let Some(piece) = message.piece()? {
            let Piece::Bytes(1, mut features) = piece else { continue };
            while let Some(piece) = features.piece()? {
                let Piece::Bytes(1, entry) = piece else { continue };
                let Some((key, feature)) = map_entry(entry)? else { continue };
                for (i, wanted) in self.wanted.iter().enumerate() {
                    if wanted.key.as_bytes() != key {
                        continue;
                    }
                    // A key that comes again replaces what it said before.
                    if seen[i / 64 % 4] & 1 << (i % 64) != 0 {
                        found -= cells[i].place.bytes();
                    }
                    found += read(wanted, feature, &mut cells[i])?;
                    seen[i / 64 % 4] |= 1 << (i % 64);
                }
            }
        }
        for (i, wanted) in self.wanted.iter().enumerate() {
            if seen[i / 64 % 4] & 1 << (i % 64) == 0 {
                return Err(format!("feature `{}` is missing", wanted.key));
            }
        }
        Ok(found)
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

/// Key and value of a map entry; none if it lacks one.
fn map_entry(mut entry: Slice<'_>) -> Result<Option<(&[u8], Slice<'_>)>, String> {
    let (mut key, mut value) = (None, None);
    while let Some(piece) = entry.piece()? {
        match piece {
            Piece::Bytes(1, bytes) => key = Some(bytes.bytes()),
            Piece::Bytes(2, message) => value = Some(message),
            _ => {}
        }
    }
    Ok(key.zip(value))
}

/// Reads the value of a feature into `cell`; returns its bytes.
fn read(wanted: &Feature, mut feature: Slice<'_>, cell: &mut FieldCell) -> Result<usize, String> {
    let mut list = None;
    while let Some(piece) = feature.piece()? {
        if let Piece::Bytes(kind @ 1..=3, values) = piece {
            list = Some((kind, values));
        }
    }
    let asked = match wanted.dtype {
        FeatureDType::Bytes => 1,
        FeatureDType::F32 | FeatureDType::F64 => 2,
        FeatureDType::I64 | FeatureDType::U64 => 3,
    };
    let key = &wanted.key;
    let (kind, list) = match list {
        Some(list) => list,
        // A list without values may be left out of its feature.
        None if wanted.values().is_none() => (asked, Slice { end: feature.start, ..feature }),
        None => return Err(format!("feature `{key}` is empty")),
    };
    if kind != asked {
        let (is, asked) = (["bytes", "f32", "i64"][kind as usize - 1], wanted.dtype.dtype());
        return Err(format!("feature `{key}` is {is}, the pipeline reads {asked}"));
    }
    match wanted.dtype {
        FeatureDType::Bytes => read_bytes(wanted, list, cell),
        FeatureDType::F32 => read_numbers(wanted, list, cell, float_list),
        FeatureDType::I64 => read_numbers(wanted, list, cell, int_list),
        // The pipeline has none of these in examples.
        other => Err(format!("feature `{key}` cannot be read as {}", other.dtype())),
    }
}

fn check_count(wanted: &Feature, count: usize) -> Result<(), String> {
    wanted.check_values(count).map_err(|what| format!("feature `{}` {what}", wanted.key))
}

fn read_bytes(
    wanted: &Feature,
    mut list: Slice<'_>,
    cell: &mut FieldCell,
) -> Result<usize, String> {
    let (mut count, mut range) = (0, 0..0);
    while let Some(piece) = list.piece()? {
        if let Piece::Bytes(1, value) = piece {
            count += 1;
            range = value.range();
        }
    }
    check_count(wanted, count)?;
    let bytes = range.len();
    cell.place = CellStorage::Record(range);
    Ok(bytes)
}

fn read_numbers(
    wanted: &Feature,
    list: Slice<'_>,
    cell: &mut FieldCell,
    read: fn(Slice<'_>, usize, &mut Vec<u8>) -> Result<usize, String>,
) -> Result<usize, String> {
    let most = wanted.values().unwrap_or(MAX_VALUES as usize);
    cell.fill(|buffer| check_count(wanted, read(list, most, buffer)?))?;
    Ok(cell.place.bytes())
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
