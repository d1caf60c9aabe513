//! The header of a page, as far as it says how large things are: what a decoder would make room for is
//! known before it does. Source: `PageHeader` of `parquet.thrift`, in Thrift's compact protocol.

use crate::varint;

/// Structures in structures and lists: statistics of a column in a footer are eight deep.
const MAX_DEPTH: u32 = 16;
/// Largest page, compressed or not. Writers make pages of about 1 MiB; one value may be larger.
const MAX_PAGE_BYTES: i64 = 512 << 20;
/// Most values of a page.
const MAX_PAGE_VALUES: i64 = 1 << 26;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Dictionary,
    /// A page that does not say how many rows it has.
    V1,
    V2 {
        rows: u64,
    },
    Other,
}

/// A page of a column chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: PageKind,
    /// Bytes of the header itself.
    pub(super) header_bytes: usize,
    /// Bytes behind the header.
    pub(super) bytes: usize,
    pub(super) unpacked_bytes: usize,
    pub(super) values: u64,
    /// CRC-32 of the bytes behind the header.
    pub(super) checksum: Option<u32>,
    /// Its values are numbers of entries of the dictionary page before it.
    pub(super) by_dictionary: bool,
}

/// Encodings of values that number entries of a dictionary: PLAIN_DICTIONARY and RLE_DICTIONARY.
const BY_DICTIONARY: [i64; 2] = [2, 8];

impl PageHeader {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// If there is none, or it says something that cannot be.
    pub(super) fn parse(bytes: &[u8]) -> Result<PageHeader, String> {
        let (mut kind, mut unpacked, mut packed, mut checksum) = (-1, -1, -1, None);
        // By the field of the header that has them.
        let (mut values, mut rows, mut encoding) = (-1, -1, -1);
        let mut rest = bytes;
        fields(&mut rest, |rest, id, kind_of| {
            match (id, kind_of) {
                (1, types::I16..=types::I64) => kind = zigzag(rest)?,
                (2, types::I16..=types::I64) => unpacked = zigzag(rest)?,
                (3, types::I16..=types::I64) => packed = zigzag(rest)?,
                // Stored as a signed number.
                (4, types::I16..=types::I64) => checksum = Some(zigzag(rest)? as u32),
                (5 | 7 | 8, types::STRUCT) => fields(rest, |rest, inner, kind_of| {
                    match (inner, kind_of) {
                        (1, types::I16..=types::I64) => values = zigzag(rest)?,
                        (2, types::I16..=types::I64) if id == 5 => encoding = zigzag(rest)?,
                        (3, types::I16..=types::I64) if id == 8 => rows = zigzag(rest)?,
                        (4, types::I16..=types::I64) if id == 8 => encoding = zigzag(rest)?,
                        _ => skip(rest, kind_of, 1)?,
                    }
                    Ok(())
                })?,
                _ => skip(rest, kind_of, 0)?,
            }
            Ok(())
        })?;
        let kind = match kind {
            0 => PageKind::V1,
            2 => PageKind::Dictionary,
            3 if rows >= 0 => PageKind::V2 { rows: rows as u64 },
            _ => PageKind::Other,
        };
        let size = |bytes: i64| {
            if (0..=MAX_PAGE_BYTES).contains(&bytes) {
                Ok(bytes as usize)
            } else {
                Err(format!("a page has {bytes} bytes; the limit is {MAX_PAGE_BYTES}"))
            }
        };
        if kind != PageKind::Other && !(0..=MAX_PAGE_VALUES).contains(&values) {
            return Err(format!("a page has {values} values; the limit is {MAX_PAGE_VALUES}"));
        }
        Ok(PageHeader {
            kind,
            header_bytes: bytes.len() - rest.len(),
            bytes: size(packed)?,
            unpacked_bytes: size(unpacked)?,
            values: values.max(0) as u64,
            checksum,
            by_dictionary: BY_DICTIONARY.contains(&encoding),
        })
    }
}

/// Checks that a structure holds what its lists claim to: the decoder believes them, and would go over
/// items that take no bytes for as long as their count says.
pub(super) fn check_structure(mut bytes: &[u8]) -> Result<(), String> {
    fields(&mut bytes, |rest, _, kind| skip(rest, kind, 0))
}

/// Tells of the column chunks of a footer, in order, whether each is encrypted.
pub(super) fn encrypted_chunks(mut footer: &[u8]) -> Result<Vec<bool>, String> {
    let mut found = Vec::new();
    // `FileMetaData` has row groups, which have column chunks, which say how they are encrypted if they are.
    fields(&mut footer, |rest, id, kind| match (id, kind) {
        (4, types::LIST) => structures(rest, |rest, id, kind| match (id, kind) {
            (1, types::LIST) => {
                let (count, _) = list_head(rest)?;
                items(rest, count, |rest| {
                    let mut encrypted = false;
                    fields(rest, |rest, id, kind| {
                        encrypted |= id == 8;
                        skip(rest, kind, 0)
                    })?;
                    found.push(encrypted);
                    Ok(())
                })
            }
            _ => skip(rest, kind, 0),
        }),
        _ => skip(rest, kind, 0),
    })?;
    Ok(found)
}

/// Goes over the fields of all structures of a list.
fn structures(
    rest: &mut &[u8],
    mut field: impl FnMut(&mut &[u8], i64, u8) -> Result<(), String>,
) -> Result<(), String> {
    let (count, _) = list_head(rest)?;
    items(rest, count, |rest| fields(rest, &mut field))
}

/// Length of a list, and the type of what it holds.
fn list_head(rest: &mut &[u8]) -> Result<(u64, u8), String> {
    let head = varint::byte(rest)?;
    let count = match head >> 4 {
        15 => varint::take(rest)?,
        count => u64::from(count),
    };
    Ok((count, head & 15))
}

/// Goes over the fields of a structure.
fn fields(
    rest: &mut &[u8],
    mut field: impl FnMut(&mut &[u8], i64, u8) -> Result<(), String>,
) -> Result<(), String> {
    let mut id = 0_i64;
    loop {
        let head = varint::byte(rest)?;
        let (delta, kind) = (head >> 4, head & 15);
        if kind == types::STOP {
            return Ok(());
        }
        id = match delta {
            0 => zigzag(rest)?,
            delta => id.saturating_add(i64::from(delta)),
        };
        field(rest, id, kind)?;
    }
}

fn zigzag(rest: &mut &[u8]) -> Result<i64, String> {
    let number = varint::take(rest)?;
    Ok((number >> 1) as i64 ^ -((number & 1) as i64))
}

/// Passes over a value.
fn skip(rest: &mut &[u8], kind: u8, depth: u32) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("a page header is nested too deep".into());
    }
    match kind {
        types::TRUE | types::FALSE => Ok(()),
        types::BYTE => varint::byte(rest).map(|_| ()),
        types::I16..=types::I64 => varint::take(rest).map(|_| ()),
        types::DOUBLE => varint::bytes(rest, 8).map(|_| ()),
        types::BINARY => {
            let bytes = usize::try_from(varint::take(rest)?).unwrap_or(usize::MAX);
            varint::bytes(rest, bytes).map(|_| ())
        }
        types::LIST | types::SET => {
            let (count, kind) = list_head(rest)?;
            items(rest, count, |rest| item(rest, kind, depth + 1))
        }
        types::MAP => {
            let count = varint::take(rest)?;
            let kinds = if count == 0 { 0 } else { varint::byte(rest)? };
            items(rest, count, |rest| {
                item(rest, kinds >> 4, depth + 1)?;
                item(rest, kinds & 15, depth + 1)
            })
        }
        types::STRUCT => fields(rest, |rest, _, kind| skip(rest, kind, depth + 1)),
        _ => Err("a page header is damaged".into()),
    }
}

/// Passes over what a collection holds: there, truth is a byte.
fn item(rest: &mut &[u8], kind: u8, depth: u32) -> Result<(), String> {
    match kind {
        types::TRUE | types::FALSE => varint::byte(rest).map(|_| ()),
        _ => skip(rest, kind, depth),
    }
}

fn items(
    rest: &mut &[u8],
    count: u64,
    mut item: impl FnMut(&mut &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    // Each takes at least a byte.
    if count > rest.len() as u64 {
        return Err("a page header is damaged".into());
    }
    (0..count).try_for_each(|_| item(rest))
}

// How many rows a page has whose header does not say: its repetition levels, of which a row's
// first is 0. Source: "RLE/Bit-Packing Hybrid" of the Parquet format's encodings.

/// Rows that start in a page of `values` repetition levels of at most `max_level`; none if it starts
/// within a row. `bytes` is the unpacked page.
///
/// # Errors
/// If the levels are not whole.
pub(super) fn level_rows(bytes: &[u8], values: u64, max_level: i16) -> Result<Option<u64>, String> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a page is too short")?;
    let mut rest = rest;
    let mut levels = varint::bytes(&mut rest, u32::from_le_bytes(*length) as usize)?;
    let width = 16 - (max_level as u16).leading_zeros() as usize;
    let (mut seen, mut rows, mut starts) = (0, 0, true);
    while seen < values {
        let head = varint::take(&mut levels)?;
        if head & 1 == 0 {
            // One level, many times.
            let (low, high) = (varint::byte(&mut levels)?, width > 8);
            let level =
                u16::from(low) | if high { u16::from(varint::byte(&mut levels)?) << 8 } else { 0 };
            let run = (head >> 1).min(values - seen);
            if run == 0 {
                return Err("a page has a run of nothing".into());
            }
            starts &= seen > 0 || level == 0;
            rows += if level == 0 { run } else { 0 };
            seen += run;
        } else {
            // Groups of eight levels, packed from the lowest bit.
            let groups = usize::try_from(head >> 1).unwrap_or(usize::MAX);
            let packed = varint::bytes(&mut levels, groups.saturating_mul(width))?;
            if groups == 0 {
                return Err("a page has a run of nothing".into());
            }
            for i in 0..groups * 8 {
                if seen == values {
                    break;
                }
                let bit = |at: usize| packed[at / 8] >> (at % 8) & 1 == 1;
                let zero = !(i * width..(i + 1) * width).any(bit);
                starts &= seen > 0 || zero;
                rows += u64::from(zero);
                seen += 1;
            }
        }
    }
    Ok(starts.then_some(rows))
}

/// Types of fields in the compact protocol.
mod types {
    pub(super) const STOP: u8 = 0;
    pub(super) const TRUE: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(levels: &[u8]) -> Vec<u8> {
        [&(levels.len() as u32).to_le_bytes()[..], levels, b"definition levels, values"].concat()
    }

    #[test]
    fn rows_are_the_zeros_of_runs_and_of_packed_groups() {
        // Six times 0, then 0 1 1 0 1 0 0 0.
        let levels = page(&[12, 0, 3, 0b0001_0110]);
        assert_eq!(level_rows(&levels, 14, 1), Ok(Some(11)));
        // The last group is filled up.
        assert_eq!(level_rows(&levels, 9, 1), Ok(Some(7)));
        // Two bits each: 0 1 2 0 0 0 0 0.
        assert_eq!(level_rows(&page(&[3, 0b0010_0100, 0]), 4, 2), Ok(Some(2)));
        assert_eq!(level_rows(&page(&[4, 1, 4, 0]), 4, 1), Ok(None), "it starts within a row");
        assert_eq!(level_rows(&page(&[3, 0b0000_0001]), 8, 1), Ok(None));
        assert_eq!(level_rows(&page(&[]), 0, 1), Ok(Some(0)));
    }

    #[test]
    fn levels_that_end_too_soon_are_an_error() {
        for levels in [&[][..], &[12], &[0, 0], &[1], &[5, 0], &[0xff; 12]] {
            assert!(level_rows(&page(levels), 100, 1).is_err(), "{levels:?}");
        }
        assert!(
            level_rows(&[1, 2], 1, 1).is_err()
                && level_rows(&u32::MAX.to_le_bytes(), 1, 1).is_err()
        );
    }
}
