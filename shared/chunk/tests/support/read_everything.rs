//! The body of the fuzz target, shared with tests on golden and damaged files.
//!
//! Reads bytes as an object, as the tail of one and as a frame, and checks the invariants of everything that is accepted.
//! Repeats this with corrected checksums, so that damage reaches the code behind them.

use bytes::{Bytes, BytesMut};
use gristmill_chunk::{
    Chunk, ChunkFormatError, ChunkFrame, ChunkFrameKind, ChunkLimits, ChunkWriter, Footer,
    FrameCodec, join_rows,
};

/// Small, so that reaching them is cheap.
pub fn limits() -> ChunkLimits {
    ChunkLimits { object_bytes: 1 << 20, frames: 64, frame_bytes: 1 << 20, header_bytes: 1 << 14 }
}

/// Panics if an invariant is violated; returns the number of frames read.
pub fn read_everything(bytes: &[u8]) -> usize {
    let frames = read_once(bytes);
    let mut resealed = bytes.to_vec();
    reseal(&mut resealed);
    frames + read_once(&resealed)
}

fn read_once(bytes: &[u8]) -> usize {
    let limits = limits();
    let bytes = Bytes::copy_from_slice(bytes);
    let mut frames = usize::from(read_frame(bytes.clone()).is_some());
    for tail in [bytes.len(), bytes.len() / 2, 24, 0] {
        let tail = &bytes[bytes.len().saturating_sub(tail)..];
        if let Err(ChunkFormatError::TailTooShort { tail_bytes }) =
            Footer::parse(tail, bytes.len() as u64, &limits)
        {
            assert!(tail_bytes > tail.len() as u64 && tail_bytes <= bytes.len() as u64);
        }
    }
    let Ok(chunk) = Chunk::open(bytes, &limits) else { return frames };
    let mut copy = ChunkWriter::with_limits(FrameCodec::Stored, limits);
    let mut copied = 0;
    for (i, info) in chunk.frames().iter().enumerate() {
        if let Ok(raw) = chunk.frame(i) {
            assert_eq!(raw.len() as u64, info.raw_bytes);
        }
        if let Ok(frame) = chunk.tensors(i) {
            assert_eq!(frame.rows(), info.rows as usize);
            read_frame(frame.bytes().clone()).expect("a frame that was read once");
            // The copy may be too large if the object was compressed.
            copied += usize::from(copy.push_frame(info.kind, &frame).is_ok());
            frames += 1;
        }
    }
    if let Ok(object) = copy.finish() {
        let copy = Chunk::open(Bytes::from(object), &self::limits()).expect("a copied object");
        assert_eq!(copy.frames().len(), copied);
        let last = copy.frames().len().saturating_sub(1);
        assert!(copy.frames().iter().take(last).all(|info| info.kind == ChunkFrameKind::Batch));
    }
    frames
}

/// Reads a frame in all ways.
fn read_frame(bytes: Bytes) -> Option<()> {
    let limits = limits();
    let frame = ChunkFrame::parse(bytes, &limits).ok()?;
    for tensor in frame.tensors() {
        let rows: usize = (0..frame.rows()).map(|row| tensor.row(row).map_or(0, <[u8]>::len)).sum();
        assert_eq!(rows, tensor.values().len());
        assert!(tensor.row(frame.rows()).is_none());
    }
    // The encoding is canonical: a frame of all rows equals the original.
    let join = |pieces: &[_]| join_rows(pieces, &limits, BytesMut::with_capacity);
    let all = join(&[(&frame, 0..frame.rows())]).expect("a frame within limits");
    assert_eq!(all, frame.bytes());
    let middle = frame.rows() / 2;
    if let Ok(head) = join(&[(&frame, 0..middle)]) {
        let tail = join(&[(&frame, middle..frame.rows())]).expect("the other rows");
        let head = ChunkFrame::parse(head.freeze(), &limits).expect("the first rows, read");
        let tail = ChunkFrame::parse(tail.freeze(), &limits).expect("the other rows, read");
        let pieces = [(&head, 0..head.rows()), (&tail, 0..tail.rows())];
        assert_eq!(join(&pieces).expect("the rows again"), all);
    }
    Some(())
}

/// Corrects every checksum that can be located, by the specification.
pub fn reseal(bytes: &mut [u8]) -> Option<()> {
    let trailer = bytes.len().checked_sub(24)?;
    let footer_bytes = u64::from_le_bytes(*bytes[trailer..].first_chunk()?);
    let footer = trailer.checked_sub(usize::try_from(footer_bytes).ok()?)?;
    for entry in (footer..trailer).step_by(40).filter(|entry| entry + 40 <= trailer) {
        let offset = u64::from_le_bytes(*bytes[entry + 8..].first_chunk()?);
        let stored_bytes = u64::from_le_bytes(*bytes[entry + 16..].first_chunk()?);
        let end = offset.checked_add(stored_bytes);
        if let Some(end) = end.filter(|end| *end <= footer as u64) {
            let crc32c = crc32c::crc32c(&bytes[offset as usize..end as usize]);
            bytes[entry + 32..entry + 36].copy_from_slice(&crc32c.to_le_bytes());
        }
    }
    let crc32c = crc32c::crc32c(&bytes[footer..trailer + 12]);
    bytes[trailer + 12..trailer + 16].copy_from_slice(&crc32c.to_le_bytes());
    Some(())
}

/// An object of one batch of `rows` rows, with frame `stored` and declared size `raw_bytes`.
pub fn packed_object(stored: &[u8], raw_bytes: u64, rows: u32) -> Vec<u8> {
    const HEAD: usize = 64;
    let mut object = b"\x89GRMILL\n\x01".to_vec();
    object.resize(HEAD, 0);
    object.extend_from_slice(stored);
    object.resize(object.len().next_multiple_of(64), 0);
    object.extend([0, 1, 0, 0]);
    object.extend(rows.to_le_bytes());
    object.extend([HEAD as u64, stored.len() as u64, raw_bytes].map(u64::to_le_bytes).concat());
    // Checksum and zeros; the trailer.
    object.extend([0; 8]);
    object.extend(40_u64.to_le_bytes());
    object.extend(1_u32.to_le_bytes());
    object.extend([0; 4]);
    object.extend(b"\x89GRMILL\n");
    reseal(&mut object);
    object
}
