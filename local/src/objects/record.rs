//! Metadata of an object: a record at the end of its file.
//!
//! Data and metadata share one file, so that they are published in one step. The record is at the end because the size
//! and a trailing checksum are known only then, and so that the data starts at offset 0, page-aligned. Layout: data,
//! record as JSON, its length (u32, little endian), eight bytes of magic.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::checksums::Algorithm;

const MAGIC: &[u8; 8] = b"gmobj\0\x01\n";
const FOOT_BYTES: usize = 12;
/// Nearly every record fits the first read.
const GUESS_BYTES: u64 = 2048;
/// More than the headers of a put can hold.
pub(super) const MAX_BYTES: usize = 32 * 1024;

/// Metadata of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub object_bytes: u64,
    /// Entity tag without quotes.
    pub etag: String,
    /// Verified checksums, in base64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checksums: Vec<(Algorithm, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_disposition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_language: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// User metadata.
    #[serde(default, skip_serializing_if = "HashMap::is_empty")]
    pub metadata: HashMap<String, String>,
}

/// A record and the time its object was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Info {
    pub record: Record,
    pub modified: SystemTime,
}

impl Record {
    /// The bytes that follow the data.
    ///
    /// # Errors
    /// `InvalidInput` if they exceed [`MAX_BYTES`].
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        if bytes.len() > MAX_BYTES {
            return Err(too_long());
        }
        let length = u32::try_from(bytes.len()).map_err(|_| too_long())?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        Ok(bytes)
    }

    /// Reads the record of an object's file. `None` if it has none, as after a power cut that lost its end: such an
    /// object was never wholly on disk, and counts as absent.
    pub(super) fn read(file: &File) -> io::Result<Option<Info>> {
        let attributes = file.metadata()?;
        let file_bytes = attributes.len();
        let mut end = vec![0; file_bytes.min(GUESS_BYTES) as usize];
        let end_at = file_bytes - end.len() as u64;
        file.read_exact_at(&mut end, end_at)?;
        let Some(json_bytes) = json_bytes(&end) else { return Ok(None) };
        let total = json_bytes + FOOT_BYTES;
        let Some(object_bytes) = file_bytes.checked_sub(total as u64) else { return Ok(None) };
        if total > end.len() {
            end.resize(total, 0);
            file.read_exact_at(&mut end, object_bytes)?;
        }
        let json = &end[end.len() - total..end.len() - FOOT_BYTES];
        let Ok(record) = serde_json::from_slice::<Self>(json) else { return Ok(None) };
        if record.object_bytes != object_bytes {
            return Ok(None);
        }
        Ok(Some(Info { record, modified: attributes.modified()? }))
    }
}

fn json_bytes(end: &[u8]) -> Option<usize> {
    let (rest, magic) = end.split_last_chunk::<8>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    (magic == MAGIC && length <= MAX_BYTES).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn written(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn record(object_bytes: u64, filler: usize) -> Record {
        Record {
            object_bytes,
            etag: "0123".into(),
            checksums: vec![(Algorithm::Crc32, "AAAAAA==".into())],
            content_type: Some("text/plain".into()),
            metadata: HashMap::from([("a".into(), "x".repeat(filler))]),
            ..Record::default()
        }
    }

    #[test]
    fn a_record_of_any_length_is_read_back() {
        for data_bytes in [0_usize, 1, 5000] {
            for filler in [0, 1800, 2100, 20_000] {
                let record = record(data_bytes as u64, filler);
                let mut bytes = vec![7; data_bytes];
                bytes.extend(record.encode().unwrap());
                assert_eq!(Record::read(&written(&bytes)).unwrap().unwrap().record, record);
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_has_no_record() {
        let mut bytes = vec![7; 100];
        bytes.extend(record(100, 10).encode().unwrap());
        for cut in 0..bytes.len() {
            assert_eq!(Record::read(&written(&bytes[..cut])).unwrap(), None, "cut at {cut}");
        }
        bytes[3] = 8;
        bytes.insert(0, 0);
        assert_eq!(Record::read(&written(&bytes)).unwrap(), None, "another size");
    }

    #[test]
    fn a_hostile_length_allocates_nothing() {
        let mut bytes = vec![0; 64];
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend(MAGIC);
        assert_eq!(Record::read(&written(&bytes)).unwrap(), None);
    }

    #[test]
    fn a_record_has_a_cap() {
        let error = record(0, MAX_BYTES).encode().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
