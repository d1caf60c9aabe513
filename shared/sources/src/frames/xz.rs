//! The structure of an xz stream: where its blocks begin, without unpacking them.
//!
//! Source: "The .xz File Format" 1.2, and for the chunks of a block liblzma's description of LZMA2. What does not follow
//! it is left to the decoder, which reports it.

use super::Point;

/// The largest number of a check.
pub(super) const MAX_CHECK: u8 = 15;
/// Bytes of a stream's header and of its footer.
const HEADER_BYTES: usize = 12;

/// The header of a stream whose blocks have this check.
pub(super) fn header(check: u8) -> [u8; HEADER_BYTES] {
    let flags = [0, check];
    let [a, b, c, d] = crc32fast::hash(&flags).to_le_bytes();
    [0xfd, b'7', b'z', b'X', b'Z', 0, 0, check, a, b, c, d]
}

/// Follows a stream as its bytes pass.
#[derive(Debug)]
pub(super) struct XzStructure {
    /// The place of the next byte that has not been followed.
    at: u64,
    /// Bytes that the blocks up to here unpack to.
    unpacked: u64,
    check: u8,
    part: Part,
    /// Bytes to pass over.
    skip: u64,
    /// Bytes of the part at hand.
    held: Vec<u8>,
    /// The start of the chunks of a block, or of the list of blocks.
    start: u64,
    is_first: bool,
    list_start: Option<u64>,
    end: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Header,
    /// The size of a block's header; 0 in place of it begins the list of blocks.
    Block,
    /// The head of a chunk: what it is and its sizes. 0 ends the block.
    Chunk,
    /// The number of blocks.
    Count,
    /// So many numbers follow.
    List(u64),
    /// The end has been passed, or what comes is not known.
    Done,
}

impl XzStructure {
    pub(super) fn new(at: u64, unpacked: u64) -> Self {
        XzStructure {
            at,
            unpacked,
            check: 0,
            part: Part::Header,
            skip: 0,
            held: Vec::new(),
            start: at,
            is_first: true,
            list_start: None,
            end: None,
        }
    }

    pub(super) fn at_block(at: u64, unpacked: u64, check: u8) -> Self {
        XzStructure { check, part: Part::Block, ..Self::new(at, unpacked) }
    }

    /// The start of the list of blocks, once it has been passed.
    pub(super) fn list_start(&self) -> Option<u64> {
        self.list_start
    }

    /// The end of the stream, once it is known.
    pub(super) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Follows `input`, which begins at byte `packed`; some of it may have been followed before. Adds the blocks
    /// after the first.
    pub(super) fn follow(&mut self, input: &[u8], packed: u64, points: &mut Vec<Point>) {
        let followed = self.at.saturating_sub(packed) as usize;
        let mut rest = input.get(followed..).unwrap_or_default();
        while let (Some((&byte, after)), None) = (rest.split_first(), self.end) {
            if self.skip > 0 {
                let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
                self.skip -= skipped as u64;
                self.at += skipped as u64;
                rest = &rest[skipped..];
            } else if let Part::Done = self.part {
                self.at += rest.len() as u64;
                return;
            } else {
                self.take(byte, points);
                self.at += 1;
                rest = after;
            }
        }
    }

    fn take(&mut self, byte: u8, points: &mut Vec<Point>) {
        let next = self.at + 1;
        self.held.push(byte);
        self.part = match (self.part, self.held.as_slice()) {
            (Part::Header, [.., check, _, _, _, _]) if self.held.len() == HEADER_BYTES => {
                self.check = check & MAX_CHECK;
                Part::Block
            }
            (Part::Block, [0]) => {
                (self.start, self.list_start) = (self.at, Some(self.at));
                Part::Count
            }
            (Part::Block, _) => {
                if !std::mem::take(&mut self.is_first) {
                    let (packed, unpacked, check) = (self.at, self.unpacked, Some(self.check));
                    points.push(Point { packed, unpacked, check });
                }
                self.skip = u64::from(byte) * 4 + 3;
                self.start = next + self.skip;
                Part::Chunk
            }
            (Part::Chunk, [0]) => {
                self.skip = padding(next - self.start) + check_bytes(self.check);
                Part::Block
            }
            (Part::Chunk, [1 | 2, _, _]) | (Part::Chunk, [0x80..=0xbf, _, _, _, _]) => self.chunk(),
            (Part::Chunk, [0xc0..=0xff, _, _, _, _, _]) => self.chunk(),
            (Part::Chunk, [1 | 2 | 0x80..=0xff, ..]) | (Part::Header, _) => return,
            (Part::Count | Part::List(_), [.., 0x80..=0xff]) if self.held.len() < 10 => return,
            (Part::Count, held) => {
                let number = |all: u64, byte: &u8| all.wrapping_shl(7) | u64::from(byte & 0x7f);
                let blocks = held.iter().rev().fold(0, number);
                self.list(blocks.saturating_mul(2), next)
            }
            (Part::List(left), _) => self.list(left - 1, next),
            (Part::Chunk | Part::Done, _) => Part::Done,
        };
        self.held.clear();
    }

    /// Passes over a chunk whose sizes are held.
    fn chunk(&mut self) -> Part {
        let size = |at: usize| {
            let bytes = self.held.get(at..at + 2).and_then(|bytes| bytes.first_chunk());
            u64::from(bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes)))
        };
        let (unpacked, packed) = match self.held.first() {
            Some(control @ 0x80..) => (u64::from(control & 0x1f) << 16 | size(1), size(3)),
            _ => (size(1), size(1)),
        };
        self.unpacked += unpacked + 1;
        self.skip = packed + 1;
        Part::Chunk
    }

    /// Goes on with a list of blocks of which `left` numbers are to come, at byte `next`.
    fn list(&mut self, left: u64, next: u64) -> Part {
        if left > 0 {
            return Part::List(left);
        }
        // Its checksum and the footer.
        self.end = Some(next + padding(next - self.start) + 4 + HEADER_BYTES as u64);
        Part::Done
    }
}

/// Zeros that bring a size to a multiple of four.
fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(4) - bytes
}

/// Bytes of a check of this number.
fn check_bytes(check: u8) -> u64 {
    [0, 4, 8, 16, 32, 64][usize::from(check).div_ceil(3).min(5)]
}
