//! The index of one source file: how long each record is, and so where it starts.

use super::{Limits, framing_bytes};
use crate::ExecError;
use gristmill_pipeline::Format;
use std::ops::Range;

/// First eight bytes of a stored index.
const MAGIC: [u8; 8] = *b"\x89GRMIDX\n";
/// Version of the stored form.
const VERSION: u32 = 1;
/// Bytes before the lengths: magic, version, record count, size of the lengths before compression.
const HEAD_BYTES: usize = 24;
/// One start is kept for this many records; others are sums of at most as many lengths.
const STRIDE: u32 = 1024;
/// Lengths are below 2^32, so each takes at most five bytes of seven bits.
const MAX_VARINT_BYTES: usize = 5;

/// Record lengths of a file, without framing. About four bytes per record in memory, one or two
/// when stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIndex {
    /// Bytes each record has beside its length: the format's, so not stored.
    framing: u32,
    lengths: Vec<u32>,
    /// Byte offset of every `STRIDE`-th record.
    starts: Vec<u64>,
    file_bytes: u64,
}

impl FileIndex {
    /// The index of a file without records.
    pub(crate) fn new(format: Format) -> Self {
        let (lengths, starts) = (Vec::new(), Vec::new());
        FileIndex { framing: framing_bytes(format), lengths, starts, file_bytes: 0 }
    }

    /// Adds a record. Callers keep the count below 2^32.
    pub(crate) fn push(&mut self, length: u32) {
        if self.len().is_multiple_of(STRIDE) {
            self.starts.push(self.file_bytes);
        }
        self.lengths.push(length);
        self.file_bytes += self.stored(length);
    }

    /// Bytes that a record of this length takes in the file.
    fn stored(&self, length: u32) -> u64 {
        u64::from(length) + u64::from(self.framing)
    }

    /// Number of records.
    pub fn len(&self) -> u32 {
        self.lengths.len() as u32
    }

    /// Whether the file has no records.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Where the last record ends, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Where records `first .. first + n` lie in the file, framing included; none if they are not
    /// all there.
    pub fn byte_range(&self, first: u32, n: u32) -> Option<Range<u64>> {
        let end = first.checked_add(n)?;
        Some(self.start(first)?..self.start(end)?)
    }

    /// Bytes in the file of records `first .. first + n`, as far as they are there.
    pub(crate) fn sizes(&self, first: u32, n: u32) -> impl Iterator<Item = u64> {
        let lengths = self.lengths.iter().skip(first as usize).take(n as usize);
        lengths.map(|length| self.stored(*length))
    }

    fn start(&self, record: u32) -> Option<u64> {
        if record >= self.len() {
            return (record == self.len()).then_some(self.file_bytes);
        }
        let base = record - record % STRIDE;
        let start = *self.starts.get((base / STRIDE) as usize)?;
        Some(start + self.sizes(base, record - base).sum::<u64>())
    }

    /// The stored form: head, lengths as LEB128 numbers compressed with zstd, CRC-32C of all.
    pub fn encode(&self) -> Vec<u8> {
        let mut lengths = Vec::with_capacity(self.lengths.len() * 3);
        for &length in &self.lengths {
            let mut rest = length;
            while rest >= 0x80 {
                lengths.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            lengths.push(rest as u8);
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.len().to_le_bytes());
        out.extend_from_slice(&(lengths.len() as u64).to_le_bytes());
        // Compression fails only for want of memory; what is stored then says so by its size.
        match zstd::bulk::compress(&lengths, 3) {
            Ok(compressed) if compressed.len() < lengths.len() => out.extend(compressed),
            _ => out.extend(lengths),
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the stored form of a file of `format`, with default limits.
    ///
    /// # Errors
    /// [`ExecError::Source`] for anything [`encode`](Self::encode) would not have written.
    pub fn decode(stored: &[u8], format: Format) -> Result<FileIndex, ExecError> {
        Self::decode_with(stored, format, Limits::default())
    }

    /// Reads the stored form of a file within `limits`.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_with(
        stored: &[u8],
        format: Format,
        limits: Limits,
    ) -> Result<FileIndex, ExecError> {
        Self::read(stored, format, limits)
            .map_err(|what| ExecError::Source(format!("the stored index is not valid: {what}")))
    }

    fn read(stored: &[u8], format: Format, limits: Limits) -> Result<FileIndex, String> {
        let cut = || "it is cut short".to_owned();
        let (checked, crc) = stored.split_last_chunk::<4>().ok_or_else(cut)?;
        let (head, packed) = checked.split_first_chunk::<HEAD_BYTES>().ok_or_else(cut)?;
        if !head.starts_with(&MAGIC) {
            return Err("it does not start with the magic bytes".into());
        }
        if crc32c::crc32c(checked) != u32::from_le_bytes(*crc) {
            return Err("its checksum does not match".into());
        }
        let number = |at: usize| head[at..].first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
        let (version, records) = (number(8), number(12));
        let raw_bytes = head[16..].first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
        if version != VERSION {
            return Err(format!("it has version {version}, this build reads {VERSION}"));
        }
        if records > limits.records {
            return Err(format!("it has {records} records; the limit is {}", limits.records));
        }
        let most = records as usize * MAX_VARINT_BYTES;
        let raw_bytes = usize::try_from(raw_bytes).ok().filter(|bytes| *bytes <= most);
        let raw_bytes = raw_bytes.ok_or("its size is not that of its records")?;
        if packed.len() == raw_bytes {
            return Self::from_varints(packed, records, format, limits);
        }
        let lengths = zstd::bulk::decompress(packed, raw_bytes)
            .map_err(|error| format!("it cannot be decompressed: {error}"))?;
        Self::from_varints(&lengths, records, format, limits)
    }

    fn from_varints(
        bytes: &[u8],
        records: u32,
        format: Format,
        limits: Limits,
    ) -> Result<FileIndex, String> {
        // A record takes at least a byte, so this allocates no more than was decompressed, times 4.
        let mut index = FileIndex::new(format);
        index.lengths.reserve_exact((records as usize).min(bytes.len()));
        let mut rest = bytes;
        for _ in 0..records {
            let (mut length, mut shift) = (0_u64, 0);
            loop {
                let (byte, after) = rest.split_first().ok_or("it has too few lengths")?;
                rest = after;
                length |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if *byte < 0x80 {
                    break;
                }
                if shift >= 7 * MAX_VARINT_BYTES as u32 {
                    return Err("a length is too long".into());
                }
            }
            let most = u64::from(limits.record_bytes);
            if length > most {
                return Err(format!("a record has {length} bytes; the limit is {most}"));
            }
            index.push(length as u32);
        }
        match rest {
            [] => Ok(index),
            _ => Err("it has too many lengths".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(lengths: &[u32]) -> FileIndex {
        let mut index = FileIndex::new(Format::TfRecord);
        lengths.iter().for_each(|length| index.push(*length));
        index
    }

    #[test]
    fn starts_are_sums_also_beyond_the_stride() {
        let lengths: Vec<u32> = (0..5000).map(|i| i * 37 % 1000).collect();
        let index = index(&lengths);
        let mut start = 0;
        for (record, length) in (0..).zip(&lengths) {
            let end = start + u64::from(*length) + 16;
            assert_eq!(index.byte_range(record, 1), Some(start..end));
            start = end;
        }
        assert_eq!(index.byte_range(0, 5000), Some(0..start));
        assert_eq!(index.byte_range(5000, 1), None);
        assert_eq!(index.byte_range(u32::MAX, 2), None);
        assert_eq!(index.byte_range(5001, 0), None);
    }

    #[test]
    fn a_stored_index_is_compact() {
        let lengths: Vec<u32> =
            (0..1000_u32).map(|i| 90_000 + i.wrapping_mul(2_654_435_761) % 40_000).collect();
        let stored = index(&lengths).encode();
        assert!(stored.len() < 3 * 1000, "{}", stored.len());
        assert!(index(&[7; 100_000]).encode().len() < 200);
    }

    #[test]
    fn hostile_counts_are_refused_before_they_are_believed() {
        let mut stored = index(&[1, 2, 3]).encode();
        stored[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let sealed = |mut bytes: Vec<u8>| {
            bytes.truncate(bytes.len() - 4);
            let crc = crc32c::crc32c(&bytes);
            bytes.extend(crc.to_le_bytes());
            FileIndex::decode(&bytes, Format::TfRecord).unwrap_err().to_string()
        };
        assert!(sealed(stored.clone()).contains("the limit is"));
        stored[12..16].copy_from_slice(&2_u32.to_le_bytes());
        assert!(sealed(stored.clone()).contains("too many lengths"));
        stored[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(sealed(stored.clone()).contains("size"));
        stored[8] = 9;
        assert!(sealed(stored).contains("version 9"));
    }

    proptest! {
        #[test]
        fn indices_round_trip(lengths in prop::collection::vec(0_u32..=256 << 20, 0..3000)) {
            let index = index(&lengths);
            prop_assert_eq!(FileIndex::decode(&index.encode(), Format::TfRecord), Ok(index));
        }

        #[test]
        fn damage_is_found(
            lengths in prop::collection::vec(0_u32..100_000, 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
            cut in any::<prop::sample::Index>(),
        ) {
            let stored = index(&lengths).encode();
            let mut bad = stored.clone();
            bad[at.index(stored.len())] ^= 1_u8 << bit;
            prop_assert!(FileIndex::decode(&bad, Format::TfRecord).is_err());
            prop_assert!(FileIndex::decode(&stored[..cut.index(stored.len())], Format::TfRecord).is_err());
        }

        #[test]
        fn sealed_rubbish_never_panics(records in 0_u32..100, raw in 0_u64..600, body: Vec<u8>) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(records.to_le_bytes());
            bytes.extend(raw.to_le_bytes());
            bytes.extend(body);
            let crc = crc32c::crc32c(&bytes);
            bytes.extend(crc.to_le_bytes());
            if let Ok(index) = FileIndex::decode(&bytes, Format::TfRecord) {
                prop_assert_eq!(index.len(), records);
            }
        }
    }
}
