//! The index at the end of an object, read with one suffix read.

use crate::{ALIGN_BYTES, ChunkFormatError, MAGIC, VERSION};
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use zstd::{
    bulk::Decompressor,
    zstd_safe::{find_frame_compressed_size, get_frame_content_size},
};

/// Size of the head of an object: magic, version, zeros.
pub(crate) const HEAD_BYTES: usize = ALIGN_BYTES;
/// Size of one index entry.
const ENTRY_BYTES: usize = 40;
/// Largest content of a zstd block, and its smallest encoding: a header and one repeated byte.
const BLOCK_BYTES: [u64; 2] = [128 << 10, 4];
/// Size of the trailer: footer length u64, version u32, crc32c u32, magic.
const TRAILER_BYTES: usize = 24;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkFrameKind {
    /// A batch as delivered to the trainer.
    Batch,
    /// Records of the split that did not fill a batch; at most one, and last.
    Remainder,
}

/// Encoding of a frame in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEncoding {
    /// Uncompressed.
    Stored,
    /// One zstd frame that states its content size.
    Zstd,
}

/// One entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameInfo {
    pub kind: ChunkFrameKind,
    pub encoding: FrameEncoding,
    /// Leading dimension of the frame's tensors, at least 1.
    pub rows: u32,
    /// Start of the frame in the object; a multiple of 64.
    pub offset: u64,
    /// Bytes in the object.
    pub stored_bytes: u64,
    /// Bytes when decoded; within the limits the footer was parsed with.
    pub raw_bytes: u64,
    /// CRC-32C of the bytes in the object.
    pub crc32c: u32,
}

impl FrameInfo {
    /// Byte range of the frame in the object.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.stored_bytes)
    }

    /// Turns the bytes at [`range`](Self::range) into the frame. A stored frame is `stored` itself, without a copy; a
    /// compressed one is decoded into an empty buffer from `take`, which gets the required capacity, and converted by
    /// `lend`: see [`BytesMut::with_capacity`] and [`BytesMut::freeze`].
    ///
    /// # Errors
    /// [`ChunkFormatError::Corrupt`] if length, checksum or content size do not match.
    pub fn decode_with(
        &self,
        stored: Bytes,
        take: impl FnOnce(usize) -> BytesMut,
        lend: impl FnOnce(BytesMut) -> Bytes,
    ) -> Result<Bytes, ChunkFormatError> {
        self.check_stored(&stored)?;
        self.decode_verified(stored, take, lend)
    }

    /// As [`decode_with`](Self::decode_with), for bytes whose checksum is known to match.
    pub(crate) fn decode_verified(
        &self,
        stored: Bytes,
        take: impl FnOnce(usize) -> BytesMut,
        lend: impl FnOnce(BytesMut) -> Bytes,
    ) -> Result<Bytes, ChunkFormatError> {
        if self.encoding == FrameEncoding::Stored {
            return Ok(stored);
        }
        let raw_bytes = self.check_content_size(&stored)?;
        let mut raw = take(raw_bytes);
        raw.resize(raw_bytes, 0);
        self.decompress(&stored, &mut raw)?;
        Ok(lend(raw))
    }

    pub(crate) fn check_stored(&self, stored: &[u8]) -> Result<(), ChunkFormatError> {
        if stored.len() as u64 != self.stored_bytes {
            return Err(ChunkFormatError::corrupt(format!(
                "frame at byte {} has {} bytes instead of {}",
                self.offset,
                stored.len(),
                self.stored_bytes
            )));
        }
        let crc32c = crate::crc32c(stored);
        if crc32c != self.crc32c {
            return Err(ChunkFormatError::corrupt(format!(
                "frame at byte {} has crc32c {crc32c:08x} instead of {:08x}",
                self.offset, self.crc32c
            )));
        }
        Ok(())
    }

    /// Decoded size according to the frame itself, so that a false index cannot cause an allocation.
    fn check_content_size(&self, stored: &[u8]) -> Result<usize, ChunkFormatError> {
        // zstd would accept several frames as one, and skippable frames.
        if find_frame_compressed_size(stored) != Ok(stored.len()) {
            return Err(self.corrupt("is not one whole zstd frame"));
        }
        match get_frame_content_size(stored) {
            Ok(Some(bytes)) if bytes == self.raw_bytes => {
                usize::try_from(bytes).map_err(|_| self.corrupt("is too large"))
            }
            _ => Err(self.corrupt("does not decode to the size in the index")),
        }
    }

    /// Decompresses into `raw`, which has the decoded length.
    fn decompress(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), ChunkFormatError> {
        let written = Decompressor::new()
            .and_then(|mut zstd| zstd.decompress_to_buffer(stored, raw))
            .map_err(|error| self.corrupt(&format!("does not decode: {error}")))?;
        if written == raw.len() {
            Ok(())
        } else {
            Err(self.corrupt("does not decode to the size in the index"))
        }
    }

    fn corrupt(&self, why: &str) -> ChunkFormatError {
        ChunkFormatError::corrupt(format!("frame at byte {} {why}", self.offset))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(match self.kind {
            ChunkFrameKind::Batch => 0,
            ChunkFrameKind::Remainder => 1,
        });
        out.push(match self.encoding {
            FrameEncoding::Stored => 0,
            FrameEncoding::Zstd => 1,
        });
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.stored_bytes.to_le_bytes());
        out.extend_from_slice(&self.raw_bytes.to_le_bytes());
        out.extend_from_slice(&self.crc32c.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    fn parse(entry: &[u8; ENTRY_BYTES]) -> Option<Self> {
        if entry[2..4] != [0; 2] || entry[36..40] != [0; 4] {
            return None;
        }
        Some(FrameInfo {
            kind: match entry[0] {
                0 => ChunkFrameKind::Batch,
                1 => ChunkFrameKind::Remainder,
                _ => return None,
            },
            encoding: match entry[1] {
                0 => FrameEncoding::Stored,
                1 => FrameEncoding::Zstd,
                _ => return None,
            },
            rows: u32_at(entry, 4)?,
            offset: u64_at(entry, 8)?,
            stored_bytes: u64_at(entry, 16)?,
            raw_bytes: u64_at(entry, 24)?,
            crc32c: u32_at(entry, 32)?,
        })
    }
}

/// The index of an object: enough to fetch single frames by range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    frames: Vec<FrameInfo>,
}

impl Footer {
    /// Reads the index from the end of an object. `tail` is any suffix of the object: 64 KiB have the index of over
    /// 1,600 frames. `object_bytes` is the length of the whole object.
    ///
    /// # Errors
    /// [`ChunkFormatError::TailTooShort`] with the number of bytes to read instead; otherwise as documented there.
    pub fn parse(
        tail: &[u8],
        object_bytes: u64,
        limits: &ChunkLimits,
    ) -> Result<Self, ChunkFormatError> {
        ChunkFormatError::within("object size in bytes", object_bytes, limits.object_bytes)?;
        let least = (HEAD_BYTES + TRAILER_BYTES) as u64;
        if object_bytes < least || tail.len() as u64 > object_bytes {
            return Err(ChunkFormatError::corrupt(format!(
                "{object_bytes} bytes cannot hold an object and {} bytes of its end",
                tail.len()
            )));
        }
        let Some((before, trailer)) = tail.split_last_chunk::<TRAILER_BYTES>() else {
            return Err(ChunkFormatError::TailTooShort { tail_bytes: TRAILER_BYTES as u64 });
        };
        if trailer[16..] != MAGIC {
            return Err(ChunkFormatError::corrupt("it does not end with the magic bytes"));
        }
        let version = u32_at(trailer, 8).unwrap_or(0);
        if version != VERSION {
            return Err(ChunkFormatError::Unsupported { version, supported: VERSION });
        }
        let footer_bytes = u64_at(trailer, 0).unwrap_or(0);
        if footer_bytes > object_bytes - least || !footer_bytes.is_multiple_of(ENTRY_BYTES as u64) {
            return Err(ChunkFormatError::corrupt(format!(
                "its index cannot have {footer_bytes} bytes"
            )));
        }
        ChunkFormatError::within(
            "number of frames",
            footer_bytes / ENTRY_BYTES as u64,
            limits.frames,
        )?;
        let Some(start) = before.len().checked_sub(footer_bytes as usize) else {
            return Err(ChunkFormatError::TailTooShort {
                tail_bytes: footer_bytes + TRAILER_BYTES as u64,
            });
        };
        // Covers the index, its length and the version.
        let crc32c = crate::crc32c(&tail[start..tail.len() - 12]);
        if Some(crc32c) != u32_at(trailer, 12) {
            return Err(ChunkFormatError::corrupt("the checksum of its index does not match"));
        }
        let footer_at = object_bytes - TRAILER_BYTES as u64 - footer_bytes;
        Ok(Footer { frames: parse_entries(&before[start..], footer_at, limits)? })
    }

    /// The frames in order: batches, then at most one remainder.
    pub fn frames(&self) -> &[FrameInfo] {
        &self.frames
    }

    /// Appends index and trailer to `out`.
    pub(crate) fn write(frames: &[FrameInfo], out: &mut Vec<u8>) {
        let start = out.len();
        for frame in frames {
            frame.write(out);
        }
        out.extend_from_slice(&((out.len() - start) as u64).to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&crate::crc32c(&out[start..]).to_le_bytes());
        out.extend_from_slice(&MAGIC);
    }

    /// Bytes of the index and the trailer at the end of an object of `frames` frames.
    pub fn bytes(frames: u64) -> u64 {
        frames.saturating_mul(ENTRY_BYTES as u64).saturating_add(TRAILER_BYTES as u64)
    }

    /// The byte ranges of the object that hold `frames`, which ascend: one for each run of neighbours. Frames that the
    /// object lacks are left out.
    pub fn runs(&self, frames: impl IntoIterator<Item = usize>) -> Vec<Range<u64>> {
        let mut runs: Vec<(usize, Range<u64>)> = Vec::new();
        for i in frames {
            let Some(range) = self.frames.get(i).map(FrameInfo::range) else { continue };
            match runs.last_mut() {
                Some((next, run)) if *next == i => (*next, run.end) = (i + 1, range.end),
                _ => runs.push((i + 1, range)),
            }
        }
        runs.into_iter().map(|(_, run)| run).collect()
    }
}

/// Identifies the content of a finished object: the CRC-32C of its index, which contains the CRC-32C of every
/// frame. Read from the trailer without verification; opening the object verifies it.
///
/// # Errors
/// [`ChunkFormatError::Corrupt`] if the object is too short to have a trailer.
pub fn checksum(object: &[u8]) -> Result<u32, ChunkFormatError> {
    let trailer = object.last_chunk::<TRAILER_BYTES>().and_then(|trailer| u32_at(trailer, 12));
    trailer.ok_or_else(|| ChunkFormatError::corrupt("it is cut short"))
}

/// Parses the entries. They must tile the object exactly: each frame starts at the first multiple of 64 after the
/// preceding one, and the index after the last, so frames cannot overlap or leave gaps.
fn parse_entries(
    entries: &[u8],
    footer_at: u64,
    limits: &ChunkLimits,
) -> Result<Vec<FrameInfo>, ChunkFormatError> {
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    let mut frames = Vec::with_capacity(entries.len());
    let mut expected = HEAD_BYTES as u64;
    for (i, entry) in entries.iter().enumerate() {
        let bad = |why: &str| ChunkFormatError::corrupt(format!("index entry {i} {why}"));
        let frame =
            FrameInfo::parse(entry).ok_or_else(|| bad("has an unknown kind or encoding"))?;
        limits.check_frame(frame.raw_bytes)?;
        if frame.rows == 0 {
            return Err(bad("has no rows"));
        }
        if frame.stored_bytes == 0 || frame.raw_bytes < ALIGN_BYTES as u64 {
            return Err(bad("is too short for a frame"));
        }
        if frame.encoding == FrameEncoding::Stored && frame.stored_bytes != frame.raw_bytes {
            return Err(bad("is stored with two sizes"));
        }
        if frame.encoding == FrameEncoding::Zstd
            && frame.raw_bytes > most_unpacked(frame.stored_bytes)
        {
            return Err(bad("unpacks to more than its bytes can hold"));
        }
        if frame.kind == ChunkFrameKind::Remainder && i + 1 < entries.len() {
            return Err(bad("is a remainder but not the last"));
        }
        let next = frame
            .offset
            .checked_add(frame.stored_bytes)
            .and_then(|end| end.checked_next_multiple_of(ALIGN_BYTES as u64));
        match next {
            Some(next) if frame.offset == expected && next <= footer_at => expected = next,
            _ => return Err(bad("lies where no frame can be")),
        }
        frames.push(frame);
    }
    if expected != footer_at {
        return Err(ChunkFormatError::corrupt("there are bytes between its frames and its index"));
    }
    Ok(frames)
}

/// Largest content of a zstd frame of `stored_bytes`.
fn most_unpacked(stored_bytes: u64) -> u64 {
    let [unpacked, packed] = BLOCK_BYTES;
    (stored_bytes / packed).saturating_mul(unpacked)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// Limits, checked before anything is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Size of one object.
    pub object_bytes: u64,
    /// Number of frames in one object; bounds the footer.
    pub frames: u64,
    /// Size of one frame when decoded.
    pub frame_bytes: u64,
    /// Size of the JSON header of one frame.
    pub header_bytes: u64,
}

impl ChunkLimits {
    /// Checks the size of a decoded frame.
    pub(crate) fn check_frame(&self, bytes: u64) -> Result<(), ChunkFormatError> {
        ChunkFormatError::within("frame size in bytes", bytes, self.frame_bytes)
    }
}

impl Default for ChunkLimits {
    /// Eight times the largest object of a default job (128 MiB): unusual jobs still work, but a hostile object
    /// cannot exhaust a machine.
    fn default() -> Self {
        ChunkLimits {
            object_bytes: 1 << 30,
            frames: 1 << 16,
            frame_bytes: 512 << 20,
            header_bytes: 1 << 20,
        }
    }
}
