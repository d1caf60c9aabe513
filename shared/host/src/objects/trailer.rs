//! The end of an object's file, which shows that the file is whole.
//!
//! A file is the body, then the put id (UTF-8), then, little endian: bytes of the body (u64), start of the machine
//! during which it was written (u64, 0 if unknown), CRC-32C of the body (u32), bytes of the put id (u32), CRC-32C of
//! the object's key, the put id and all fields before (u32), magic (8 bytes). So a file under another key is not whole.
//! The body begins at 0, so that its pages are aligned.

use super::disk::DiskFile;
use std::io;

const MAGIC: [u8; 8] = *b"gmobj\0\x03\n";
/// Bytes after the put id.
const FIXED_BYTES: usize = 36;
/// Most bytes of a put id.
pub(super) const PUT_ID_BYTES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectTrailer {
    pub body_bytes: u64,
    pub boot: u64,
    pub body_crc: u32,
    pub put_id: String,
}

impl ObjectTrailer {
    pub(super) fn new(body: &[u8], put_id: &str, boot: u64) -> Self {
        let (body_bytes, put_id) = (body.len() as u64, put_id.to_owned());
        Self { body_bytes, boot, body_crc: crc(body), put_id }
    }

    pub(super) fn etag(&self) -> String {
        format!("{:x}-{:08x}", self.body_bytes, self.body_crc)
    }

    pub(super) fn encode(&self, key: &str) -> Vec<u8> {
        let mut out = self.put_id.as_bytes().to_vec();
        out.extend(self.body_bytes.to_le_bytes());
        out.extend(self.boot.to_le_bytes());
        out.extend(self.body_crc.to_le_bytes());
        out.extend((self.put_id.len() as u32).to_le_bytes());
        out.extend(crc_under(key, &out).to_le_bytes());
        out.extend(MAGIC);
        out
    }

    /// The trailer of the whole file of the object `key`; none for any other.
    pub(super) fn read(file: &dyn DiskFile, key: &str) -> io::Result<Option<Self>> {
        let file_bytes = file.bytes()?;
        let end_bytes = file_bytes.min((PUT_ID_BYTES + FIXED_BYTES) as u64);
        let mut end = vec![0; end_bytes as usize];
        file.read_at(&mut end, file_bytes - end_bytes)?;
        Ok(Self::decode(&end, file_bytes, key))
    }

    fn decode(end: &[u8], file_bytes: u64, key: &str) -> Option<Self> {
        let (id, fixed) = end.split_at_checked(end.len().checked_sub(FIXED_BYTES)?)?;
        let number = |at: usize| fixed.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it));
        let long = |at: usize| fixed.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it));
        let id = id.get(id.len().checked_sub(number(20)? as usize)?..)?;
        let summed = end.get(end.len() - FIXED_BYTES - id.len()..end.len() - 12)?;
        let body_bytes = long(0)?;
        let is_whole = fixed.ends_with(&MAGIC)
            && number(24)? == crc_under(key, summed)
            && body_bytes.checked_add((id.len() + FIXED_BYTES) as u64)? == file_bytes;
        let put_id = String::from_utf8(id.to_vec()).ok()?;
        is_whole.then_some(Self { body_bytes, boot: long(8)?, body_crc: number(16)?, put_id })
    }
}

/// CRC-32C.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of `key` and `bytes`.
fn crc_under(key: &str, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key.as_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_file_has_a_trailer() {
        for id in ["", "put", &"x".repeat(PUT_ID_BYTES)] {
            let trailer = ObjectTrailer::new(&[7; 5000], id, 3);
            let mut file = vec![7; 5000];
            file.extend(trailer.encode("key"));
            let decode_under = |key: &str, file: &[u8]| {
                let end = file.len().saturating_sub(PUT_ID_BYTES + FIXED_BYTES);
                ObjectTrailer::decode(&file[end..], file.len() as u64, key)
            };
            let decode = |file: &[u8]| decode_under("key", file);
            assert_eq!(decode(&file), Some(trailer));
            assert_eq!(decode_under("other", &file), None, "another key");
            for cut in 0..file.len() {
                assert_eq!(decode(&file[..cut]), None, "cut at {cut}");
            }
            for at in 5000..file.len() {
                let mut damaged = file.clone();
                damaged[at] ^= 1;
                assert_eq!(decode(&damaged), None, "damaged at {at}");
            }
            file.insert(0, 7);
            assert_eq!(decode(&file), None, "another length");
        }
    }
}
