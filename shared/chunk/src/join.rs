//! Joins rows of several frames into one: remainders of neighbouring splits become batches.

use bytes::BytesMut;
use std::ops::Range;

use crate::{ChunkFormatError, ChunkFrame, ChunkLimits};

/// Joins row ranges of several frames, in the given order; ranges may repeat. All frames must have the same
/// schema. The result equals a frame written from the same rows. `buffer` provides an empty buffer of the given
/// capacity.
///
/// # Errors
/// [`ChunkFormatError::Invalid`] if there are no rows, a range is outside its frame or schemas differ;
/// [`ChunkFormatError::OverLimit`] if the frame would be larger than `limits` allow.
pub fn join_rows(
    pieces: &[(&ChunkFrame, Range<usize>)],
    limits: &ChunkLimits,
    buffer: impl FnOnce(usize) -> BytesMut,
) -> Result<BytesMut, ChunkFormatError> {
    let Some((first, _)) = pieces.first() else {
        return Err(ChunkFormatError::invalid("there are no rows to join"));
    };
    let schema = first.schema();
    let tensors = schema.tensors().len();
    let mut rows = 0usize;
    let mut items = vec![0usize; tensors];
    for (frame, range) in pieces {
        if range.start > range.end || range.end > frame.rows() {
            return Err(ChunkFormatError::invalid(format!(
                "rows {range:?} are not in a frame of {} rows",
                frame.rows()
            )));
        }
        if frame.schema() != schema {
            return Err(ChunkFormatError::invalid(
                "frames with different tensors cannot be joined",
            ));
        }
        rows = rows.saturating_add(range.len());
        for (tensor, items) in items.iter_mut().enumerate() {
            let view = frame.tensor(tensor);
            *items = items.saturating_add(view.item_at(range.end) - view.item_at(range.start));
        }
    }
    if rows == 0 {
        return Err(ChunkFormatError::invalid("there are no rows to join"));
    }
    let layout = schema.layout(rows, &items)?;
    ChunkFormatError::within(
        "frame size in bytes",
        layout.frame_bytes() as u64,
        limits.frame_bytes,
    )?;
    let mut joined = buffer(layout.frame_bytes());
    joined.extend_from_slice(layout.header());
    // Parts are appended in frame order, so that every byte is written once.
    for part in schema.parts() {
        match part.role {
            crate::schema::TensorPartRole::Values => {
                for (frame, range) in pieces {
                    let view = frame.tensor(part.tensor);
                    joined
                        .extend_from_slice(&view.values()[view.row_bytes(range.start, range.end)]);
                }
            }
            crate::schema::TensorPartRole::Offsets => {
                append_offsets(&mut joined, part.tensor, pieces)
            }
        }
    }
    Ok(joined)
}

fn append_offsets(joined: &mut BytesMut, tensor: usize, pieces: &[(&ChunkFrame, Range<usize>)]) {
    let mut base = 0u64;
    joined.extend_from_slice(&base.to_le_bytes());
    for (frame, range) in pieces {
        let view = frame.tensor(tensor);
        let start = view.item_at(range.start);
        for row in range.clone() {
            let end = base + (view.item_at(row + 1) - start) as u64;
            joined.extend_from_slice(&end.to_le_bytes());
        }
        base += (view.item_at(range.end) - start) as u64;
    }
}
