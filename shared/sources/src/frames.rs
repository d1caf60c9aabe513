//! Files that are compressed as a whole with zstd (RFC 8878), bzip2 or xz.
//!
//! Each is a row of frames, as zstd calls them: bzip2 has streams, xz streams of blocks. Decompressing begins where one
//! begins. Indexing reads the file once and keeps these points, each with its offset in the file and in the unpacked
//! file; a split unpacks from the point before it. Offsets of records are those in the unpacked file.

mod decoder;
#[cfg(test)]
mod tests;
mod xz;

use crate::{FileFormat, varint};
use decoder::{FrameDecoder, FrameStep};
use std::ops::Range;

/// Most points of a file.
const MAX_POINTS: usize = 1 << 14;
/// Unpacked bytes between points, at least; doubled as often as there are too many.
const MIN_SPACING_BYTES: u64 = 256 << 10;
/// Most bytes of the points in a stored index.
pub(crate) const MAX_STORED_BYTES: usize = MAX_POINTS * 21 + 32;
/// Unpacked bytes before the place where damage shows that may be wrong as well: a block of zstd or deflate, not
/// all of which has been checked.
pub(crate) const UNSOUND_BYTES: u64 = 128 << 10;
/// The same of bzip2, which mixes the bytes of a block.
const UNSOUND_BZIP2_BYTES: u64 = 900_000;
/// Unpacked bytes that are kept together for the splits that follow each other, unless a frame has more.
const BLOCK_BYTES: u64 = 4 << 20;

/// The compression of a file of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Zstd,
    Bzip2,
    Xz,
}

impl FrameKind {
    pub(crate) const ALL: [FrameKind; 3] = [FrameKind::Zstd, FrameKind::Bzip2, FrameKind::Xz];

    /// The kind of a file that starts with `head`, its first 12 bytes, unless it is an uncompressed one of `format`.
    pub(crate) fn recognise(head: &[u8], format: &FileFormat) -> Option<FrameKind> {
        let kind = match head {
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => FrameKind::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..]
            | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => {
                FrameKind::Bzip2
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => FrameKind::Xz,
            _ => return None,
        };
        (!format.begins(head)).then_some(kind)
    }

    fn name(self) -> &'static str {
        match self {
            FrameKind::Zstd => "zstd",
            FrameKind::Bzip2 => "bzip2",
            FrameKind::Xz => "xz",
        }
    }
}

/// The name of a compression that is not read, by the first 12 bytes of a file.
pub(crate) fn unread_packing(head: &[u8], format: &FileFormat) -> Option<&'static str> {
    let name = match head {
        [0x78, 0x01 | 0x9c | 0xda, ..] => "zlib",
        [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => "lz4",
        [0xff, 0x06, 0, 0, b's', b'N', b'a', b'P', b'p', b'Y', ..] => "snappy",
        [0x5d, 0, 0, _, _, 0xff, 0xff, 0xff, 0xff, ..] => "lzma",
        [b'L', b'Z', b'I', b'P', 0 | 1, ..] => "lzip",
        [0x1f, 0x9d, ..] => "compress (.Z)",
        [b'P', b'K', 3, 4, ..] => "zip",
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => "7z",
        _ => return None,
    };
    (!format.begins(head)).then_some(name)
}

/// A place at which decompressing can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Point {
    /// Offset of the next byte in the file.
    packed: u64,
    /// Offset of the next byte in the unpacked file.
    unpacked: u64,
    /// How an xz stream checks its blocks, if one of them begins here; none where a frame begins.
    check: Option<u8>,
}

/// The points of one file at which decompressing can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FramePoints {
    kind: FrameKind,
    points: Vec<Point>,
    /// Bytes of the file.
    packed: u64,
    /// Bytes that it unpacks to.
    unpacked: u64,
}

/// Decompresses a file that is pushed in pieces, and collects its points.
#[derive(Debug)]
pub(crate) struct FrameUnpacker {
    decoder: FrameDecoder,
    points: Vec<Point>,
    spacing: u64,
}

impl FrameUnpacker {
    pub(crate) fn new(kind: FrameKind) -> Self {
        let start = Point { packed: 0, unpacked: 0, check: None };
        let decoder = FrameDecoder::resume(kind, &start);
        FrameUnpacker { decoder, points: vec![start], spacing: MIN_SPACING_BYTES }
    }

    /// Takes the next bytes of the file; `give` gets what they unpack to.
    pub(crate) fn push<E>(
        &mut self,
        mut bytes: &[u8],
        bad: impl Fn(String) -> E,
        mut give: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let at = self.decoder.packed();
            let step = self.decoder.step(&mut bytes);
            for point in self.decoder.take_points() {
                self.add(point);
            }
            let named =
                |what| bad(format!("byte {at} of the {} file: {what}", self.decoder.kind().name()));
            match step.map_err(named)? {
                FrameStep::Made(range) => give(self.decoder.made(range))?,
                FrameStep::Hungry => return Ok(()),
            }
        }
    }

    fn add(&mut self, point: Point) {
        let last = self.points.last().map_or(0, |point| point.unpacked);
        if point.unpacked < last + self.spacing {
            return;
        }
        self.points.push(point);
        if self.points.len() > MAX_POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.spacing *= 2;
        }
    }

    /// Bytes of the unpacked file that are right for certain, if it turned out to be damaged, or to be cut.
    pub(crate) fn sound_bytes(&self, is_cut: bool) -> u64 {
        if is_cut { self.decoder.unpacked() } else { self.decoder.sound_bytes() }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.decoder.kind().name()
    }

    /// The points of what has been pushed.
    pub(crate) fn stop(self) -> FramePoints {
        let FrameUnpacker { decoder, points, .. } = self;
        let (packed, unpacked) = (decoder.packed(), decoder.unpacked());
        FramePoints { kind: decoder.kind(), points, packed, unpacked }
    }

    /// Checks that the file may end here.
    pub(crate) fn check_end(&self) -> Result<(), String> {
        if self.decoder.is_whole() {
            Ok(())
        } else {
            let (name, packed) = (self.decoder.kind().name(), self.decoder.packed());
            Err(format!("the {name} file ends at byte {packed}: it is cut short"))
        }
    }
}

impl FramePoints {
    /// The bytes of the file that hold bytes `range` of the unpacked one.
    pub(crate) fn packed_range(&self, range: &Range<u64>) -> Range<u64> {
        let start = self.before(range.start).map_or(0, |point| point.packed);
        let after = self.points.partition_point(|point| point.unpacked < range.end);
        start..self.points.get(after).map_or(self.packed, |point| point.packed)
    }

    fn before(&self, unpacked: u64) -> Option<&Point> {
        let after = self.points.partition_point(|point| point.unpacked <= unpacked);
        self.points.get(after.checked_sub(1)?)
    }

    /// The parts of the unpacked file that are unpacked together.
    pub(crate) fn blocks(&self) -> Vec<Range<u64>> {
        let mut blocks = Vec::new();
        let mut start = 0;
        let ends = self.points.iter().map(|point| point.unpacked);
        for end in ends.filter(|end| *end < self.unpacked) {
            if end - start >= BLOCK_BYTES {
                blocks.push(start..end);
                start = end;
            }
        }
        blocks.push(start..u64::MAX);
        blocks
    }

    /// Bytes `range` of the unpacked file, from the bytes that [`packed_range`](Self::packed_range)
    /// names.
    ///
    /// # Errors
    /// The damage that was found.
    pub(crate) fn unpack(&self, mut stored: &[u8], range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let Some(point) = self.before(range.start) else { return Ok(out) };
        let name = self.kind.name();
        let mut decoder = FrameDecoder::resume(self.kind, point);
        while decoder.unpacked() < range.end {
            match decoder.step(&mut stored).map_err(|what| format!("{name}: {what}"))? {
                FrameStep::Made(made) => {
                    let end = decoder.unpacked();
                    let start = end - made.len() as u64;
                    let made = decoder.made(made);
                    // Both in range of what was made.
                    let from = range.start.clamp(start, end) - start;
                    let to = range.end.clamp(start, end) - start;
                    out.extend_from_slice(&made[from as usize..to as usize]);
                }
                FrameStep::Hungry => {
                    let (have, end) = (decoder.unpacked(), range.end);
                    return Err(format!("{name}: it ends at unpacked byte {have}, before {end}"));
                }
            }
        }
        Ok(out)
    }

    /// About how many bytes of memory they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.points.len() * size_of::<Point>()
    }

    /// Appends the stored form: numbers as LEB128, each offset as what it adds to the one before.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        varint::put(out, self.packed);
        varint::put(out, self.unpacked);
        varint::put(out, self.points.len() as u64);
        let (mut packed, mut unpacked) = (0, 0);
        for point in &self.points {
            varint::put(out, point.packed - packed);
            varint::put(out, point.unpacked - unpacked);
            (packed, unpacked) = (point.packed, point.unpacked);
            out.push(point.check.map_or(0, |check| check + 1));
        }
    }

    /// Reads the stored form off the start of `rest`.
    pub(crate) fn decode(rest: &mut &[u8]) -> Result<FramePoints, String> {
        let kind = FrameKind::ALL.get(usize::from(varint::byte(rest)?));
        let kind = *kind.ok_or("it has frames of no known kind")?;
        let (file_bytes, all_bytes) = (varint::take(rest)?, varint::take(rest)?);
        let count = varint::take(rest)?;
        if !(1..=MAX_POINTS as u64).contains(&count) {
            return Err(format!("it has {count} points of a {} file", kind.name()));
        }
        let mut points = Vec::with_capacity(count as usize);
        let (mut packed, mut unpacked) = (0_u64, 0_u64);
        for i in 0..count {
            packed = packed.saturating_add(varint::take(rest)?);
            unpacked = unpacked.saturating_add(varint::take(rest)?);
            let check = varint::byte(rest)?.checked_sub(1);
            if packed > file_bytes || (i == 0 && unpacked > 0) || check > Some(xz::MAX_CHECK) {
                return Err(format!("a point does not lie in the {} file", kind.name()));
            }
            points.push(Point { packed, unpacked, check });
        }
        Ok(FramePoints { kind, points, packed: file_bytes, unpacked: all_bytes })
    }
}
