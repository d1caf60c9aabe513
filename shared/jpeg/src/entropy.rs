//! Entropy decoding: bits to blocks of coefficients.

use crate::{
    frame::NATURAL,
    huffman::{AC_BITS, AcTable, CodePair, DC_BITS, DcTable, END, extend},
};

use std::ops::Range;

/// A block's 64 coefficients, row-major, and space for writes of damaged runs that leave the block.
pub(crate) type CoefficientBlock = [i16; 128];

/// Least bits after a refill.
const REFILLED: u32 = 56;
/// Pair look-ups per refill. A code and its value have up to 31 bits.
const LOOKUPS: u32 = (REFILLED - 1) / AC_BITS;
const _: () = assert!(REFILLED >= 31 && LOOKUPS >= 4);

/// A bit reader, most significant bit of a byte first.
#[derive(Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// End of the segment; a refill reads beyond it.
    end: usize,
    /// Index of the next byte to refill from.
    at: usize,
    /// The next bits, left-aligned; after the first `count`, zeros or bits that the next refill repeats.
    bits: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8], segment: Range<usize>) -> Self {
        let mut bits = BitReader { bytes, end: segment.end, at: segment.start, bits: 0, count: 0 };
        bits.refill();
        bits
    }

    /// Whether all bits read were in the segment.
    pub(crate) fn sufficed(&self) -> bool {
        self.at * 8 <= self.end * 8 + self.count as usize
    }

    #[inline(always)]
    fn refill(&mut self) {
        let next = self.bytes.get(self.at..).and_then(|bytes| bytes.first_chunk::<READ_BYTES>());
        self.bits |= next.map_or(0, |bytes| u64::from_be_bytes(*bytes)) >> self.count;
        self.at += ((63 - self.count) / 8) as usize;
        self.count |= REFILLED;
    }

    #[inline(always)]
    fn first(&self, count: u32) -> u64 {
        self.bits >> (64 - count)
    }

    #[inline(always)]
    fn skip(&mut self, count: u32) {
        self.bits <<= count;
        self.count -= count;
    }

    /// A value of `size` bits, at most 15.
    #[inline(always)]
    fn value(&mut self, size: u32) -> i16 {
        // Two shifts, because `size` may be 0.
        let bits = self.bits >> 1 >> (63 - size);
        self.skip(size);
        extend(bits as u32, size)
    }

    /// Difference of the block's DC coefficient from that of the component's last block.
    #[inline(always)]
    pub(crate) fn difference(&mut self, table: &DcTable) -> Option<i16> {
        let [mut length, mut size] = table.short(self.first(DC_BITS)).map(u32::from);
        if length == 0 {
            let (bits, symbol) = table.canonical.find(self.first(16) as u32)?;
            (length, size) = (bits, symbol.into());
        }
        if size > 15 {
            return None;
        }
        self.skip(length);
        let difference = self.value(size);
        self.refill();
        Some(difference)
    }

    /// Decodes the AC coefficients of a block; writes them if `STORE`.
    #[inline(always)]
    pub(crate) fn coefficients<const STORE: bool>(
        &mut self,
        table: &AcTable,
        block: &mut CoefficientBlock,
    ) -> Option<()> {
        let mut at = 0;
        loop {
            for _ in 0..LOOKUPS {
                let (pair, before) = (table.pair(self.first(AC_BITS)), (self.bits, self.count));
                if pair.bits == 0 {
                    break;
                }
                self.skip(pair.bits.into());
                let first = at + u32::from(pair.steps[0]);
                at = first + u32::from(pair.steps[1]);
                if STORE {
                    put(block, first, pair.values[0]);
                    put(block, at, pair.values[1]);
                }
                if at >= 63 {
                    if first == 63 {
                        // The block was full: the second code belongs to the next block.
                        (self.bits, self.count) = before;
                        self.skip(pair.first_bits.into());
                    }
                    self.refill();
                    return (first == 63 || is_end(if first > 63 { first } else { at }))
                        .then_some(());
                }
            }
            self.refill();
            at = self.long::<STORE>(table, at, block)?;
            if at >= 63 {
                return is_end(at).then_some(());
            }
        }
    }

    /// Decodes a code that is too long for the pair table. Returns its position.
    #[inline(always)]
    fn long<const STORE: bool>(
        &mut self,
        table: &AcTable,
        at: u32,
        block: &mut CoefficientBlock,
    ) -> Option<u32> {
        let (length, symbol) = match table.pair(self.first(AC_BITS)) {
            CodePair { bits: 1.., .. } => return Some(at),
            CodePair { first_bits: 0, .. } => table.canonical.find(self.first(16) as u32)?,
            CodePair { first_bits, steps: [symbol, _], .. } => (first_bits.into(), symbol),
        };
        self.skip(length);
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let value = self.value(size);
        self.refill();
        match (size, run) {
            (0, 15) => Some(at + 16),
            (0, _) => Some(at + END),
            _ => {
                let at = at + run + 1;
                if STORE {
                    put(block, at, value);
                }
                Some(at)
            }
        }
    }
}

/// Whether a block may end at this position: after its last coefficient, or at an end-of-block code.
fn is_end(at: u32) -> bool {
    at == 63 || at >= END
}

#[inline(always)]
fn put(block: &mut CoefficientBlock, at: u32, value: i16) {
    block[usize::from(NATURAL[at as usize & 255] & 127)] = value;
}

// Entropy-coded data with byte stuffing removed (ITU-T T.81, B.1.1.5).

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
