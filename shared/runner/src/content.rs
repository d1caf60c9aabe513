//! The content of a source file, as a hash that tells one from another.

use bytes::Bytes;
use gristmill_chunk::crc32c;
use gristmill_model::Fingerprint;
use std::ops::Range;

/// Files up to this size are hashed whole, also if their index needs only a part of them.
const WHOLE_BYTES: u64 = 16 << 20;
/// Parts of a larger file that are hashed if its index needs only a part of it: a footer is not all of a file's content,
/// and reading all of it would take as long as an epoch.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 64 << 10;

/// Hashes the parts of a file that its index is made of, and if these are not all of it, samples of the rest.
#[derive(Debug, Default)]
pub(crate) struct ContentHasher {
    hasher: blake3::Hasher,
    bytes: u64,
}

impl ContentHasher {
    /// Hashes the next bytes.
    pub fn add(&mut self, part: &[u8]) {
        self.hasher.update(part);
        self.bytes += part.len() as u64;
    }

    /// The ranges of a file of `file_bytes` to add yet.
    pub fn samples(&self, file_bytes: u64) -> Vec<Range<u64>> {
        if self.bytes >= file_bytes {
            return Vec::new();
        }
        if file_bytes <= WHOLE_BYTES {
            return std::iter::once(0..file_bytes).collect();
        }
        let step = (file_bytes - SAMPLE_BYTES) / (SAMPLES - 1);
        (0..SAMPLES).map(|i| i * step..i * step + SAMPLE_BYTES).collect()
    }

    /// The fingerprint of all bytes so far.
    pub fn finish(self) -> Fingerprint {
        Fingerprint(*self.hasher.finalize().as_bytes())
    }
}

/// The stored form of a content: its hash and a checksum of it, as text.
pub(crate) fn encode(content: Fingerprint) -> Bytes {
    let text = content.to_string();
    let checksum = crc32c(text.as_bytes());
    Bytes::from(format!("{text} {checksum:08x}"))
}

/// The inverse of [`encode`]; none for anything else.
pub(crate) fn decode(stored: &[u8]) -> Option<Fingerprint> {
    let text = str::from_utf8(stored).ok()?.split_once(' ')?.0;
    let content = text.parse().ok()?;
    (encode(content) == stored).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_of_which_any_byte_is_damaged_is_none() {
        let content = Fingerprint([7; 32]);
        let stored = encode(content);
        assert_eq!(decode(&stored), Some(content));
        for at in 0..stored.len() {
            let mut damaged = stored.to_vec();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!((decode(&damaged), decode(&stored[..at])), (None, None), "byte {at}");
        }
    }

    #[test]
    fn files_that_need_no_index_are_hashed_in_samples() {
        let mut hash = ContentHasher::default();
        hash.add(&[0; 100]);
        assert_eq!(hash.samples(100), []);
        assert!(hash.samples(200).into_iter().eq(std::iter::once(0..200)));
        let large = 10 << 30;
        let samples = hash.samples(large);
        assert_eq!((samples.len() as u64, samples[0].start), (SAMPLES, 0));
        assert!(samples.last().unwrap().end > large - SAMPLE_BYTES);
        assert!(samples.iter().all(|range| range.end - range.start == SAMPLE_BYTES));
    }
}
