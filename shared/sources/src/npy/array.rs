//! One array in numpy's format `.npy`, versions 1 to 3. Source: numpy's `numpy.lib.format`.

use crate::{Feature, FeatureDType, MAX_VALUES};
use gristmill_kernel::FieldCell;
use half::f16;
use serde::{Deserialize, Serialize};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Bytes before a header's length: magic and version.
const START_BYTES: usize = 8;
/// Longest header.
pub(super) const MAX_HEADER_BYTES: usize = 64 << 10;

/// The kind of an array's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ItemKind {
    Bool,
    Int,
    Uint,
    Float,
    /// Bytes, filled up with zeros.
    Bytes,
    /// Characters of four bytes, filled up with zeros.
    Text,
}

/// An array but for its items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NpyArray {
    kind: ItemKind,
    /// Bytes of an item.
    item: usize,
    is_big_endian: bool,
    is_fortran: bool,
    pub(super) shape: Vec<u64>,
    /// Bytes before the items.
    pub(super) header: usize,
}

/// Whether a file or member is an array.
pub(crate) fn is_npy(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// A value of a row.
enum Number {
    Int(i64),
    Uint(u64),
    Float(f64),
}

impl NpyArray {
    /// Reads the header at the start of `bytes`; none if it is longer.
    ///
    /// # Errors
    /// Why the array cannot be read.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some((start, rest)) = bytes.split_at_checked(START_BYTES) else { return Ok(None) };
        if !is_npy(start) {
            return Err("it is no .npy file".into());
        }
        let (length, rest) = match (start[6], rest) {
            (1, [a, b, rest @ ..]) => (u32::from(u16::from_le_bytes([*a, *b])), rest),
            (2 | 3, [a, b, c, d, rest @ ..]) => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
            (1..=3, _) => return Ok(None),
            (version, _) => {
                return Err(format!("it has version {version} of .npy; 1 to 3 are read"));
            }
        };
        let length = length as usize;
        if length > MAX_HEADER_BYTES {
            return Err(format!("its header has {length} bytes; the limit is {MAX_HEADER_BYTES}"));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let header = bytes.len() - rest.len() + length;
        Self::described(text, header).map(Some)
    }

    fn described(text: &[u8], header: usize) -> Result<Self, String> {
        let bad = || "its header is damaged".to_owned();
        let text = str::from_utf8(text).map_err(|_| bad())?;
        let value = |key: &str| {
            let quoted = ["'", "\""].map(|quote| format!("{quote}{key}{quote}"));
            let (_, rest) = quoted.iter().find_map(|key| text.split_once(key.as_str()))?;
            Some(rest.trim_start().strip_prefix(':')?.trim_start())
        };
        let descr = value("descr").ok_or_else(bad)?;
        if descr.starts_with('[') {
            return Err("it is a structured array: write each of its fields as an array".into());
        }
        let quote = descr.chars().next().filter(|quote| ['\'', '"'].contains(quote));
        let descr = quote.and_then(|quote| descr[1..].split_once(quote)).ok_or_else(bad)?.0;
        let fortran = value("fortran_order").ok_or_else(bad)?;
        let is_fortran = fortran.starts_with("True");
        if !is_fortran && !fortran.starts_with("False") {
            return Err(bad());
        }
        let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')'));
        let dims = shape.ok_or_else(bad)?.0.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        // Python 2 wrote `3L`.
        let dim = |dim: &str| dim.trim_end_matches('L').parse::<u64>().map_err(|_| bad());
        let shape: Vec<u64> = dims.map(dim).collect::<Result<_, _>>()?;
        let (kind, item, is_big_endian) = kind_of(descr)?;
        let array = NpyArray { kind, item, is_big_endian, is_fortran, shape, header };
        array.bytes().map(|_| array.clone()).ok_or_else(bad)
    }

    /// Items of one entry of the first axis.
    fn row_items(&self) -> u64 {
        self.shape.iter().skip(1).fold(1, |items, dim| items.saturating_mul(*dim))
    }

    /// Bytes of one entry of the first axis.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row_items().saturating_mul(self.item as u64)
    }

    /// Bytes of all items; none of an array that cannot be.
    pub(super) fn bytes(&self) -> Option<u64> {
        let is_item = match self.kind {
            ItemKind::Bool => self.item == 1,
            ItemKind::Int | ItemKind::Uint => matches!(self.item, 1 | 2 | 4 | 8),
            ItemKind::Float => matches!(self.item, 2 | 4 | 8),
            ItemKind::Bytes | ItemKind::Text => self.item <= 4 << 20,
        };
        let bytes = self.shape.iter().try_fold(self.item as u64, |all, dim| all.checked_mul(*dim));
        // No axis is longer than that, though another has no entries.
        let is_shape = self.shape.len() <= 32 && self.shape.iter().all(|dim| *dim < 1 << 48);
        bytes.filter(|bytes| is_item && is_shape && *bytes < 1 << 48)
    }

    /// Whether the entries of the first axis lie end to end.
    pub(super) fn has_rows(&self) -> bool {
        !self.is_fortran || self.shape.len() < 2
    }

    /// Checks that items, which have `shape` in a record, are what a feature is declared as.
    ///
    /// # Errors
    /// The mismatch, to follow the name of the array.
    pub(super) fn check(&self, feature: &Feature, shape: &[u64]) -> Result<(), String> {
        use FeatureDType::{Bytes, I64, U64};
        let dtype = feature.dtype;
        let fits = match (self.kind, dtype) {
            (_, Bytes) => return Ok(()),
            (ItemKind::Bytes | ItemKind::Text, _) | (ItemKind::Float, I64 | U64) => false,
            _ => true,
        };
        if !fits {
            return Err(format!(
                "holds {}, and the pipeline reads {}",
                self.dtype(),
                dtype.dtype()
            ));
        }
        let same = |(have, wanted): (&u64, &Option<u32>)| {
            wanted.is_none_or(|wanted| u64::from(wanted) == *have)
        };
        if shape.len() != feature.shape.len() || !shape.iter().zip(&feature.shape).all(same) {
            let wanted: Vec<i64> =
                feature.shape.iter().map(|dim| dim.map_or(-1, i64::from)).collect();
            return Err(format!("has the shape {shape:?}, and the pipeline reads {wanted:?}"));
        }
        match shape.iter().product::<u64>() {
            count if count > u64::from(MAX_VALUES) => {
                Err(format!("has {count} values; the limit is {MAX_VALUES}"))
            }
            _ => Ok(()),
        }
    }

    /// The dtype as numpy names it.
    fn dtype(&self) -> String {
        let bits = self.item * 8;
        match self.kind {
            ItemKind::Bool => "bool".into(),
            ItemKind::Int => format!("int{bits}"),
            ItemKind::Uint => format!("uint{bits}"),
            ItemKind::Float => format!("float{bits}"),
            ItemKind::Bytes => "bytes".into(),
            ItemKind::Text => "str".into(),
        }
    }

    /// Appends items `first .. first + n`, counted in the order of C, of the `items` from number `start` on. Texts are
    /// UTF-8, and other items little endian if they are read as bytes.
    ///
    /// # Errors
    /// A number that the dtype cannot hold.
    fn put(
        &self,
        items: &[u8],
        start: u64,
        range: (u64, u64),
        dtype: FeatureDType,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let cut = || "is cut short".to_owned();
        let (first, n) = range;
        for number in first..first + n {
            let at = usize::try_from((self.stored(number) - start) * self.item as u64);
            let item = at.ok().and_then(|at| items.get(at..at.checked_add(self.item)?));
            self.put_item(item.ok_or_else(cut)?, dtype, out)?;
        }
        Ok(())
    }

    /// The place among the stored items of one that has this number in the order of C.
    fn stored(&self, mut number: u64) -> u64 {
        if self.has_rows() {
            return number;
        }
        // The last axis is the fastest in C, and the first in Fortran.
        let mut strides = 1;
        let before: u64 = self.shape.iter().product();
        let mut stored = 0;
        for dim in self.shape.iter().rev() {
            strides *= dim;
            stored += number % dim * (before / strides);
            number /= dim;
        }
        stored
    }

    fn put_item(&self, item: &[u8], dtype: FeatureDType, out: &mut Vec<u8>) -> Result<(), String> {
        let mut own = [0; 8];
        let own = match self.kind {
            ItemKind::Bytes => {
                let end = item.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                out.extend_from_slice(&item[..end]);
                return Ok(());
            }
            ItemKind::Text => return self.put_text(item, out),
            _ => &mut own[..self.item],
        };
        own.copy_from_slice(item);
        if self.is_big_endian {
            own.reverse();
        }
        if dtype == FeatureDType::Bytes {
            out.extend_from_slice(own);
            return Ok(());
        }
        let number = self.number(own);
        let beyond = |what: &dyn std::fmt::Display| {
            format!("holds {what}, which {} cannot hold", dtype.dtype())
        };
        match (dtype, number) {
            (FeatureDType::I64, Number::Int(n)) => out.extend(n.to_le_bytes()),
            (FeatureDType::I64, Number::Uint(n)) => {
                let n = i64::try_from(n).map_err(|_| beyond(&n))?;
                out.extend(n.to_le_bytes());
            }
            (FeatureDType::U64, Number::Uint(n)) => out.extend(n.to_le_bytes()),
            (FeatureDType::U64, Number::Int(n)) => {
                let n = u64::try_from(n).map_err(|_| beyond(&n))?;
                out.extend(n.to_le_bytes());
            }
            (FeatureDType::F32, Number::Float(_)) if self.item == 4 => out.extend_from_slice(own),
            (FeatureDType::F32, Number::Int(n)) => out.extend((n as f32).to_le_bytes()),
            (FeatureDType::F32, Number::Uint(n)) => out.extend((n as f32).to_le_bytes()),
            (FeatureDType::F32, Number::Float(n)) => out.extend((n as f32).to_le_bytes()),
            (FeatureDType::F64, Number::Int(n)) => out.extend((n as f64).to_le_bytes()),
            (FeatureDType::F64, Number::Uint(n)) => out.extend((n as f64).to_le_bytes()),
            (FeatureDType::F64, Number::Float(n)) => out.extend(n.to_le_bytes()),
            (_, Number::Float(n)) => return Err(beyond(&n)),
            (FeatureDType::Bytes, _) => {}
        }
        Ok(())
    }

    /// The number of an item, little endian.
    fn number(&self, item: &[u8]) -> Number {
        let mut wide = [0; 8];
        wide[..item.len()].copy_from_slice(item);
        let bits = u64::from_le_bytes(wide);
        match (self.kind, item.len()) {
            (ItemKind::Bool, _) => Number::Uint(u64::from(bits != 0)),
            (ItemKind::Int, bytes) => {
                let unused = 64 - 8 * bytes as u32;
                Number::Int((bits << unused).cast_signed() >> unused)
            }
            (ItemKind::Float, 2) => Number::Float(f16::from_bits(bits as u16).to_f64()),
            (ItemKind::Float, 4) => Number::Float(f64::from(f32::from_bits(bits as u32))),
            (ItemKind::Float, _) => Number::Float(f64::from_bits(bits)),
            _ => Number::Uint(bits),
        }
    }

    fn put_text(&self, item: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let read = if self.is_big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        let unit = |unit: &[u8; 4]| read(*unit);
        let units: Vec<u32> = item.as_chunks().0.iter().map(unit).collect();
        let end = units.iter().rposition(|unit| *unit != 0).map_or(0, |last| last + 1);
        for unit in &units[..end] {
            let letter = char::from_u32(*unit).ok_or("holds what is no character")?;
            out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    }

    /// Appends the value of row `row`; `items` are the stored ones, of which those of row `first` come first.
    ///
    /// # Errors
    /// Why it cannot be read, to follow the array's name.
    pub(super) fn put_row(
        &self,
        items: &[u8],
        first: u64,
        row: u64,
        dtype: FeatureDType,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let n = self.row_items();
        self.put(items, first * n, (row * n, n), dtype, out)
    }
}

/// Kind, bytes and order of a dtype as numpy writes it.
fn kind_of(descr: &str) -> Result<(ItemKind, usize, bool), String> {
    let refused = |what: &str| Err(format!("it holds {what}, which are not read"));
    let plain = descr.trim_start_matches(['<', '>', '|', '=']);
    let Some((kind, size)) = plain.split_at_checked(1) else { return refused("nothing known") };
    let size = size.parse::<usize>().ok().filter(|size| *size <= 1 << 20);
    let (kind, item) = match (kind, size) {
        ("O", _) => return refused("Python objects (pickled)"),
        ("b" | "?", Some(1)) | ("?", None) => (ItemKind::Bool, 1),
        ("i", Some(size @ (1 | 2 | 4 | 8))) => (ItemKind::Int, size),
        ("u", Some(size @ (1 | 2 | 4 | 8))) => (ItemKind::Uint, size),
        ("f", Some(size @ (2 | 4 | 8))) => (ItemKind::Float, size),
        ("S" | "a", Some(size)) => (ItemKind::Bytes, size),
        ("U", Some(size)) => (ItemKind::Text, 4 * size),
        ("c", _) => return refused("complex numbers"),
        ("M" | "m", _) => return refused("dates or times: write them as int64"),
        ("V", _) => return refused("raw data (void)"),
        _ => {
            let descr: String = descr.chars().filter(|c| !c.is_control()).take(24).collect();
            return refused(&format!("values of the dtype `{descr}`"));
        }
    };
    Ok((kind, item, descr.starts_with('>')))
}

/// Reads an array that is a value of a record into `cell`; returns the bytes of its numbers.
///
/// # Errors
/// The fault, to follow the name of the value.
pub(crate) fn read(feature: &Feature, npy: &[u8], cell: &mut FieldCell) -> Result<usize, String> {
    let array = NpyArray::parse(npy).map_err(|what| format!("is an array, but {what}"))?;
    let array = array.ok_or("is an array whose header is cut short")?;
    array.check(feature, &array.shape)?;
    let items = npy.get(array.header..).unwrap_or_default();
    let bytes = array.bytes().unwrap_or_default();
    if items.len() as u64 != bytes {
        let have = items.len();
        return Err(format!("has {have} bytes of items; its header says {bytes}"));
    }
    let n = array.shape.iter().product();
    cell.fill(|out| array.put(items, 0, (0, n), feature.dtype, out))?;
    Ok(cell.place.bytes())
}
