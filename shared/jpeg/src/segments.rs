//! Entropy-coded data with byte stuffing removed (ITU-T T.81, B.1.1.5).

use std::ops::Range;

/// Bytes read by one refill; up to this many may be read after the data.
pub(crate) const READ_BYTES: usize = 8;

/// The bytes of a scan; a restart marker begins a new segment.
#[derive(Debug, Default)]
pub(crate) struct ScanSegments {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl ScanSegments {
    /// Reads `scan` up to the end of the image. `None` if a marker other than the end of the image or the
    /// expected restart marker appears.
    pub(crate) fn fill(&mut self, scan: &[u8], restarts: bool) -> Option<()> {
        self.bytes.clear();
        self.ranges.clear();
        self.bytes.try_reserve(scan.len() + READ_BYTES).ok()?;
        let (mut rest, mut start) = (scan, 0);
        loop {
            let at = memchr::memchr(0xff, rest)?;
            self.bytes.extend_from_slice(&rest[..at]);
            match *rest.get(at + 1)? {
                0x00 => self.bytes.push(0xff),
                marker @ 0xd0..=0xd7 if restarts => {
                    if usize::from(marker - 0xd0) != self.ranges.len() % 8 {
                        return None;
                    }
                    self.ranges.push(start..self.bytes.len());
                    start = self.bytes.len();
                }
                0xd9 => break,
                _ => return None,
            }
            rest = &rest[at + 2..];
        }
        self.ranges.push(start..self.bytes.len());
        self.bytes.extend_from_slice(&[0; READ_BYTES]);
        Some(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.ranges.iter().cloned()
    }
}
