//! zstd frames within objects that pass them to the readers: decompressed as by a trainer, and resumed from as by a
//! worker.

use crate::{
    cache, one_line,
    read_everything::{self, packed_object},
};
use bytes::{Bytes, BytesMut};
use gristmill_chunk::{Chunk, ChunkFrame};
use zstd::zstd_safe::get_frame_content_size;

/// A compressed frame, with indices that state its own size, and other sizes.
pub fn packed(bytes: &[u8]) {
    let stated = get_frame_content_size(bytes).ok().flatten();
    let mut rows = None;
    for raw_bytes in [stated.unwrap_or(0), 64, 1 << 20, 512 << 20, u64::MAX] {
        rows = rows.or(unpack(bytes, raw_bytes, stated));
    }
    let Some(rows) = rows else { return };
    let object = packed_object(bytes, stated.unwrap_or(0), rows);
    assert!(read_everything::read_everything(&object) > 0, "a frame that was read once");
    cache::cache(&object);
}

/// Rows of the frame, if it is one.
fn unpack(stored: &[u8], raw_bytes: u64, stated: Option<u64>) -> Option<u32> {
    let limits = read_everything::limits();
    let object = Bytes::from(packed_object(stored, raw_bytes, 1));
    let chunk = Chunk::open(object, &limits).map_err(|error| one_line(&error.to_string())).ok()?;
    let mut taken = None;
    let take = |bytes| {
        taken = Some(bytes as u64);
        BytesMut::with_capacity(bytes)
    };
    let frame = chunk.frame_with(0, take, BytesMut::freeze);
    // Memory is allocated only for a size that index and frame agree on, within the limits.
    assert!(taken.is_none_or(|taken| taken <= limits.frame_bytes && Some(taken) == stated));
    let frame = frame.map_err(|error| one_line(&error.to_string())).ok()?;
    assert_eq!(frame.len() as u64, raw_bytes);
    let frame =
        ChunkFrame::parse(frame, &limits).map_err(|error| one_line(&error.to_string())).ok()?;
    u32::try_from(frame.rows()).ok()
}
