//! Decompresses gzip in steps, and tells where it could be taken up again.

use super::Point;

use miniz_oxide::inflate::{
    TINFLStatus,
    core::{
        BlockBoundaryState, DecompressorOxide, decompress,
        inflate_flags::{TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY},
    },
};
use std::ops::Range;

/// How far back deflate refers.
pub(super) const WINDOW_BYTES: usize = 32 << 10;
/// Bytes of the ring that output goes round in: a power of two of at least a window.
const RING_BYTES: usize = 64 << 10;
/// Bytes after a member's data: its CRC-32 and its length.
const TRAILER_BYTES: usize = 8;
/// Most that a file may unpack to: well beyond any shard, and minutes of work.
const MAX_UNPACKED_BYTES: u64 = 64 << 30;

/// One gzip file, of one or more members, some of whose bytes have been read.
pub(super) struct GzipInflater {
    state: State,
    oxide: Box<DecompressorOxide>,
    ring: Box<[u8]>,
    /// The place of the next byte in the ring.
    at: usize,
    /// A deflate block has ended, and the caller does not know it yet.
    boundary: bool,
    /// The header of the current member, if it was read from its start.
    crc: Option<crc32fast::Hasher>,
    /// Bytes the member at hand has given.
    member_bytes: u64,
    packed: u64,
    unpacked: u64,
}

enum State {
    Header(GzipHeader),
    Body,
    Trailer([u8; TRAILER_BYTES], usize),
    /// Zeros after the last member, as tapes have.
    Padding,
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InflateStep {
    /// This part of the ring was written; see [`Inflater::made`].
    Made(Range<usize>),
    /// [`Inflater::point`] may be asked for.
    Boundary,
    /// All input has been used.
    Hungry,
}

impl std::fmt::Debug for GzipInflater {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("Inflater");
        out.field("packed", &self.packed).field("unpacked", &self.unpacked).finish_non_exhaustive()
    }
}

impl GzipInflater {
    /// At the start of a file.
    pub(super) fn new() -> Self {
        GzipInflater {
            state: State::Header(GzipHeader::default()),
            oxide: Box::default(),
            ring: vec![0; RING_BYTES].into(),
            at: 0,
            boundary: false,
            crc: Some(crc32fast::Hasher::new()),
            member_bytes: 0,
            packed: 0,
            unpacked: 0,
        }
    }

    /// At a point of a file.
    pub(super) fn resume(point: &Point) -> Self {
        let mut inflater =
            GzipInflater { packed: point.packed, unpacked: point.unpacked, ..Self::new() };
        if let Some((num_bits, bit_buf)) = point.bits {
            let state = BlockBoundaryState { num_bits, bit_buf, ..Default::default() };
            inflater.oxide = Box::new(DecompressorOxide::from_block_boundary_state(&state));
            inflater.state = State::Body;
            inflater.crc = None;
            let window = &point.window[..point.window.len().min(WINDOW_BYTES)];
            inflater.ring[..window.len()].copy_from_slice(window);
            inflater.at = window.len();
            inflater.member_bytes = window.len() as u64;
        }
        inflater
    }

    /// Bytes that have come out, from the start of the file.
    pub(super) fn unpacked(&self) -> u64 {
        self.unpacked
    }

    /// Bytes that have gone in, from the start of the file.
    pub(super) fn packed(&self) -> u64 {
        self.packed
    }

    /// Bytes that have come out and are right for certain, if damage was met now: it may lie before the place where it
    /// shows, and anywhere in a member whose checksum does not match.
    pub(super) fn sound_bytes(&self) -> u64 {
        let member = self.unpacked - self.member_bytes;
        match self.state {
            State::Body => self.unpacked.saturating_sub(crate::frames::UNSOUND_BYTES).max(member),
            State::Trailer(..) => member,
            State::Header(_) | State::Padding => self.unpacked,
        }
    }

    /// Whether the file may end here.
    pub(super) fn is_whole(&self) -> bool {
        match &self.state {
            State::Header(header) => header.is_fresh() && self.packed > 0,
            State::Padding => true,
            State::Body | State::Trailer(..) => false,
        }
    }

    /// The bytes that a step wrote.
    pub(super) fn made(&self, range: Range<usize>) -> &[u8] {
        &self.ring[range]
    }

    /// The current point, for resuming there later; only at a boundary.
    pub(super) fn point(&self) -> Option<Point> {
        let (packed, unpacked) = (self.packed, self.unpacked);
        if let State::Header(header) = &self.state {
            let fresh = header.is_fresh();
            return fresh.then(|| Point { packed, unpacked, bits: None, window: Vec::new() });
        }
        let BlockBoundaryState { num_bits, bit_buf, .. } = self.oxide.block_boundary_state()?;
        let bytes = self.member_bytes.min(WINDOW_BYTES as u64) as usize;
        let window = match self.at.checked_sub(bytes) {
            Some(start) => self.ring[start..self.at].to_vec(),
            None => [&self.ring[RING_BYTES - (bytes - self.at)..], &self.ring[..self.at]].concat(),
        };
        Some(Point { packed, unpacked, bits: Some((num_bits, bit_buf)), window })
    }

    /// Takes bytes off the start of `input` until there is something to tell.
    ///
    /// # Errors
    /// The damage that was found.
    pub(super) fn step(&mut self, input: &mut &[u8]) -> Result<InflateStep, String> {
        loop {
            if self.boundary {
                self.boundary = false;
                return Ok(InflateStep::Boundary);
            }
            if let State::Body = self.state {
                match self.inflate(input)? {
                    Some(step) => return Ok(step),
                    None => continue,
                }
            }
            let Some((&byte, rest)) = input.split_first() else { return Ok(InflateStep::Hungry) };
            self.between(byte)?;
            *input = rest;
            self.packed += 1;
        }
    }

    /// Decompresses into the ring, as far as it goes in one piece.
    fn inflate(&mut self, input: &mut &[u8]) -> Result<Option<InflateStep>, String> {
        let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
        let (status, used, made) =
            decompress(&mut self.oxide, input, &mut self.ring, self.at, flags);
        *input = &input[used..];
        self.packed += used as u64;
        let range = self.at..self.at + made;
        self.at = range.end % RING_BYTES;
        self.member_bytes += made as u64;
        self.unpacked += made as u64;
        if self.unpacked > MAX_UNPACKED_BYTES {
            return Err(format!("it unpacks to more than {MAX_UNPACKED_BYTES} bytes, the limit"));
        }
        if let Some(crc) = &mut self.crc {
            crc.update(&self.ring[range.clone()]);
        }
        match status {
            TINFLStatus::Done => self.state = State::Trailer([0; TRAILER_BYTES], 0),
            TINFLStatus::BlockBoundary => self.boundary = true,
            TINFLStatus::NeedsMoreInput if made == 0 => return Ok(Some(InflateStep::Hungry)),
            TINFLStatus::NeedsMoreInput | TINFLStatus::HasMoreOutput if used + made > 0 => {}
            _ => return Err("its compressed data is damaged".into()),
        }
        Ok((made > 0).then_some(InflateStep::Made(range)))
    }

    /// Takes a byte of a header, a trailer, or what is behind them.
    fn between(&mut self, byte: u8) -> Result<(), String> {
        match &mut self.state {
            // Another member follows, or nothing but zeros.
            State::Header(header) if header.is_fresh() && byte == 0 && self.packed > 0 => {
                self.state = State::Padding;
            }
            State::Header(header) => {
                if header.push(byte)? {
                    self.oxide.init();
                    self.state = State::Body;
                    (self.crc, self.member_bytes) = (Some(crc32fast::Hasher::new()), 0);
                }
            }
            State::Trailer(bytes, seen) => {
                bytes[*seen] = byte;
                *seen += 1;
                if *seen == TRAILER_BYTES {
                    let bytes = *bytes;
                    self.check(bytes)?;
                    self.state = State::Header(GzipHeader::default());
                    self.boundary = true;
                }
            }
            State::Padding if byte != 0 => {
                return Err("it has something behind its gzip members".into());
            }
            State::Padding | State::Body => {}
        }
        Ok(())
    }

    /// Compares a member with its trailer.
    fn check(&mut self, trailer: [u8; TRAILER_BYTES]) -> Result<(), String> {
        let Some(crc) = self.crc.take() else { return Ok(()) };
        let [a, b, c, d, e, f, g, h] = trailer;
        let (stored, bytes) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        // The length is stored modulo 2^32.
        if crc.finalize() == stored && self.member_bytes as u32 == bytes {
            Ok(())
        } else {
            Err("a gzip member's checksum does not match its content".into())
        }
    }
}

// The header of a gzip member, read byte by byte. Source: RFC 1952, section 2.3.

/// First bytes of every member: magic and the one method there is.
pub(crate) const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// Bytes before the optional parts: magic, method, flags, time, extra flags, system.
const FIXED_BYTES: u32 = 10;
const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// A header as far as it has been read.
#[derive(Debug, Default)]
pub(super) struct GzipHeader {
    /// Bytes seen of the part at hand.
    seen: u32,
    /// Which optional parts are still to come.
    flags: u8,
    part: Part,
    extra_bytes: u32,
    any: bool,
}

#[derive(Debug, Default)]
enum Part {
    #[default]
    Fixed,
    /// Two bytes of length, then as many bytes.
    Extra,
    /// Name or comment: up to a zero byte.
    Text,
    Crc,
}

impl GzipHeader {
    /// Whether nothing of it has been seen.
    pub(super) fn is_fresh(&self) -> bool {
        !self.any
    }

    /// Takes the next byte; true if it was the last.
    pub(super) fn push(&mut self, byte: u8) -> Result<bool, String> {
        self.any = true;
        let at = self.seen;
        self.seen += 1;
        let ended = match self.part {
            Part::Fixed => {
                match (at, MAGIC.get(at as usize)) {
                    (_, Some(magic)) if *magic != byte => {
                        return Err("a gzip member does not start as one".into());
                    }
                    (3, _) if byte & RESERVED != 0 => {
                        return Err("a gzip member has flags that nobody has defined".into());
                    }
                    (3, _) => self.flags = byte,
                    _ => {}
                }
                self.seen == FIXED_BYTES
            }
            Part::Extra => {
                if at < 2 {
                    self.extra_bytes |= u32::from(byte) << (8 * at);
                }
                self.seen >= 2 && self.seen == self.extra_bytes + 2
            }
            Part::Text => byte == 0,
            Part::Crc => self.seen == 2,
        };
        if !ended {
            return Ok(false);
        }
        self.seen = 0;
        let next = [(EXTRA, Part::Extra), (NAME, Part::Text), (COMMENT, Part::Text)];
        for (flag, part) in next.into_iter().chain([(HEADER_CRC, Part::Crc)]) {
            if self.flags & flag != 0 {
                self.flags &= !flag;
                self.part = part;
                return Ok(false);
            }
        }
        Ok(true)
    }
}
