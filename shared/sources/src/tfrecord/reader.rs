//! TFRecord files: each record is its length (u64), the length's CRC, its payload, the payload's
//! CRC. Source: TensorFlow's `tfrecord.rst`; checksums are CRC-32C, rotated and offset.
//!
//! A file is indexed once by streaming through it; lengths are verified then and payloads when they
//! are read, so that each byte is checked before it is used.

use super::example;
use crate::{FeatureMap, FileIndex, ReadRecord, RecordScanner, SourceError, SourceLimits};
use gristmill_kernel::FieldCell;

/// Bytes before a payload: its length and the length's CRC.
const HEADER_BYTES: usize = 12;
/// Bytes a record has beside its payload.
pub(crate) const FRAMING_BYTES: usize = HEADER_BYTES + 4;

pub(crate) fn masked_crc32c(bytes: &[u8]) -> u32 {
    gristmill_chunk::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc_at(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|crc| u32::from_le_bytes(*crc))
}

/// Whether bytes are the header of a record.
pub(super) fn begins(bytes: &[u8]) -> bool {
    let header = bytes.first_chunk::<HEADER_BYTES>().map(|header| header.split_at(8));
    header.is_some_and(|(length, crc)| crc_at(crc) == Some(masked_crc32c(length)))
}

/// The payload of one framed record, all its checksums verified; else what is wrong with it.
pub(crate) fn payload(framed: &[u8]) -> Result<&[u8], String> {
    let cut = || format!("the record is cut short at {} bytes", framed.len());
    let (length, rest) = framed.split_first_chunk::<8>().ok_or_else(cut)?;
    if crc_at(rest) != Some(masked_crc32c(length)) {
        return Err("the checksum of the record's length does not match".into());
    }
    let payload = unchecked_payload(framed);
    if u64::from_le_bytes(*length) != payload.len() as u64 {
        return Err("the record's length is not the one that was indexed".into());
    }
    if crc_at(&framed[HEADER_BYTES + payload.len()..]) != Some(masked_crc32c(payload)) {
        return Err("the record's checksum does not match its content".into());
    }
    Ok(payload)
}

/// The payload of one framed record, unchecked.
pub(crate) fn unchecked_payload(framed: &[u8]) -> &[u8] {
    let end = framed.len().saturating_sub(4);
    framed.get(HEADER_BYTES..end).unwrap_or_default()
}

/// Reads examples in their framing.
#[derive(Debug)]
pub struct TfRecordReader(example::ExampleExtractor);

impl TfRecordReader {
    pub(super) fn new(features: &FeatureMap) -> Self {
        TfRecordReader(example::ExampleExtractor::new(features))
    }
}

impl ReadRecord for TfRecordReader {
    fn find(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        self.0.find(record, cells)
    }

    fn checked<'a>(&self, stored: &'a [u8]) -> Result<&'a [u8], String> {
        payload(stored)
    }

    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        unchecked_payload(stored)
    }
}

/// Builds the index of a file from its bytes, pushed in order in pieces of any size.
#[derive(Debug)]
pub(crate) struct TfRecordScanner {
    limits: SourceLimits,
    index: FileIndex,
    /// The header of the record at hand, as far as it has been seen.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// Bytes of the record at hand that are still to come after its header.
    left: u64,
}

impl TfRecordScanner {
    /// A builder that refuses larger records and files with more of them.
    pub(crate) fn new(limits: SourceLimits) -> Self {
        let header = [0; HEADER_BYTES];
        let index = FileIndex::new(FRAMING_BYTES as u32);
        TfRecordScanner { limits, index, header, header_bytes: 0, left: 0 }
    }

    fn begin_record(&mut self) -> Result<(), SourceError> {
        let (length, crc) = self.header.split_at(8);
        if crc_at(crc) != Some(masked_crc32c(length)) {
            return Err(self
                .index
                .fault("the checksum of its length does not match; is this a TFRecord file?"));
        }
        let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let most = self.limits.record_bytes;
        let Some(length) = u32::try_from(length).ok().filter(|length| *length <= most) else {
            return Err(self.index.fault(&format!("it has {length} bytes; the limit is {most}")));
        };
        let pushed = self.index.push(length, self.limits);
        pushed.map_err(|what| self.index.fault(&what))?;
        self.header_bytes = 0;
        self.left = u64::from(length) + 4;
        Ok(())
    }
}

impl RecordScanner for TfRecordScanner {
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), SourceError> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEADER_BYTES - self.header_bytes).min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            self.header[self.header_bytes..][..taken].copy_from_slice(head);
            self.header_bytes += taken;
            bytes = rest;
            if self.header_bytes == HEADER_BYTES {
                self.begin_record()?;
            }
        }
        Ok(())
    }

    fn records(&self) -> u32 {
        self.index.len() - u32::from(self.left > 0)
    }

    /// Has the record at hand too.
    fn stop(self: Box<Self>) -> FileIndex {
        self.index
    }

    fn check_end(&self) -> Result<(), SourceError> {
        if self.left > 0 {
            let record = self.index.len().saturating_sub(1);
            let end = self.index.file_bytes();
            let have = end - self.left;
            return Err(SourceError(format!(
                "record {record} ends at byte {end}, but the file at byte {have}: it is cut short"
            )));
        }
        if self.header_bytes > 0 {
            return Err(self.index.fault(&format!(
                "the file ends after {} bytes of its header: it is cut short",
                self.header_bytes
            )));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<FileIndex, SourceError> {
        Ok(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::framed;

    /// The index of a whole file.
    fn index(file: &[u8]) -> FileIndex {
        let mut builder = Box::new(TfRecordScanner::new(SourceLimits::default()));
        builder.push(file).unwrap();
        builder.finish().unwrap()
    }

    fn fail(file: &[u8]) -> String {
        let mut builder =
            Box::new(TfRecordScanner::new(SourceLimits { record_bytes: 1000, records: 4 }));
        builder.push(file).and_then(|()| builder.check_end()).unwrap_err().to_string()
    }

    #[test]
    fn pieces_of_any_size_give_the_same_index() {
        let lengths = [0, 1, 300, 7, 0];
        let file: Vec<u8> = lengths.iter().flat_map(|n| framed(&vec![9; *n])).collect();
        let whole = index(&file);
        assert_eq!(whole.len(), 5);
        assert_eq!(whole.byte_range(0, 5), Some(0..file.len() as u64));
        assert_eq!(whole.byte_range(1, 2), Some(16..16 + 17 + 316));
        assert_eq!(whole.byte_range(5, 0), Some(file.len() as u64..file.len() as u64));
        assert_eq!(whole.byte_range(4, 2), None);
        for piece in [1, 2, 11, 12, 13, 100] {
            let mut builder = Box::new(TfRecordScanner::new(SourceLimits::default()));
            file.chunks(piece).for_each(|bytes| builder.push(bytes).unwrap());
            assert_eq!(builder.finish().unwrap(), whole);
        }
    }

    #[test]
    fn an_empty_file_has_no_records() {
        assert_eq!(index(&[]).len(), 0);
    }

    #[test]
    fn every_cut_is_found() {
        let file = [framed(b"first"), framed(b"second")].concat();
        for end in 1..file.len() {
            if end != 21 {
                let message = fail(&file[..end]);
                assert!(message.contains("cut short") && message.contains("record"), "{message}");
            }
        }
        assert!(fail(&file[..30]).starts_with("record 1 at byte 21"));
    }

    #[test]
    fn bad_lengths_name_record_and_offset() {
        let mut file = [framed(b"first"), framed(b"second")].concat();
        file[22] ^= 1;
        assert!(fail(&file).starts_with("record 1 at byte 21: the checksum of its length"));
        assert!(fail(b"this is not a TFRecord file").contains("is this a TFRecord file?"));
        let large = [framed(b"first"), framed(&[0; 1001])].concat();
        assert_eq!(fail(&large), "record 1 at byte 21: it has 1001 bytes; the limit is 1000");
        let huge = u64::MAX.to_le_bytes();
        let huge = [&huge[..], &masked_crc32c(&huge).to_le_bytes()].concat();
        assert!(fail(&huge).contains("the limit is 1000"));
        assert!(fail(&framed(b"").repeat(5)).contains("the limit is 4 records"));
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_found() {
        let good = framed(b"payload");
        assert_eq!(payload(&good), Ok(&b"payload"[..]));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(payload(&bad).is_err(), "bit {bit}");
        }
        for end in 0..good.len() {
            assert!(payload(&good[..end]).is_err());
        }
    }
}
