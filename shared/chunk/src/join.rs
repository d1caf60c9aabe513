//! Joins rows of several frames into one: remainders of neighbouring splits become batches.

use crate::{
    ChunkFormatError, ChunkFrame, ChunkLimits, FrameSchema, TensorSpec, schema::TensorPartRole,
};
use bytes::BytesMut;
use std::ops::Range;

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
    limits.check_frame(layout.frame_bytes() as u64)?;
    let mut joined = buffer(layout.frame_bytes());
    joined.extend_from_slice(layout.header());
    // Parts are appended in frame order, so that every byte is written once.
    for part in schema.parts() {
        match part.role {
            TensorPartRole::Values => {
                for (frame, range) in pieces {
                    let view = frame.tensor(part.tensor);
                    joined
                        .extend_from_slice(&view.values()[view.row_bytes(range.start, range.end)]);
                }
            }
            TensorPartRole::Offsets => append_offsets(&mut joined, part.tensor, pieces),
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

/// Replaces fixed tensors of a frame by those of `replaced` with the same names. `buffer` provides an empty buffer of
/// the given capacity. `row` gets the index of a tensor in `replaced`, a row of the old tensor, and the zeroed new row
/// to fill.
///
/// # Errors
/// [`ChunkFormatError::Invalid`] if a tensor is missing or ragged; errors of `row`;
/// [`ChunkFormatError::OverLimit`] if the frame would be larger than `limits` allow.
pub fn replace_tensors(
    frame: &ChunkFrame,
    replaced: &[TensorSpec],
    limits: &ChunkLimits,
    buffer: impl FnOnce(usize) -> BytesMut,
    mut row: impl FnMut(usize, &[u8], &mut [u8]) -> Result<(), ChunkFormatError>,
) -> Result<BytesMut, ChunkFormatError> {
    let schema = schema_with(frame, replaced)?;
    let items: Vec<usize> = schema.tensors().iter().map(|spec| items(frame, spec)).collect();
    let layout = schema.layout(frame.rows(), &items)?;
    limits.check_frame(layout.frame_bytes() as u64)?;
    let mut made = buffer(layout.frame_bytes());
    made.extend_from_slice(layout.header());
    for part in schema.parts() {
        let spec = &schema.tensors()[part.tensor];
        let Some(view) = frame.get(&spec.name) else { continue };
        let place = replaced.iter().position(|replaced| replaced.name == spec.name);
        match (place, part.role) {
            (Some(place), _) => {
                let row_bytes = schema.item_bytes(part.tensor).unwrap_or(0);
                for i in 0..frame.rows() {
                    // Zeroed a row at a time, so that it is still in the cache when it is written.
                    let start = made.len();
                    made.resize(start + row_bytes, 0);
                    row(place, view.row(i).unwrap_or_default(), &mut made[start..])?;
                }
            }
            (None, TensorPartRole::Values) => made.extend_from_slice(view.values()),
            (None, TensorPartRole::Offsets) => made.extend_from_slice(view.offsets()),
        }
    }
    Ok(made)
}

fn schema_with(
    frame: &ChunkFrame,
    replaced: &[TensorSpec],
) -> Result<FrameSchema, ChunkFormatError> {
    let mut tensors = frame.schema().tensors().to_vec();
    for spec in replaced {
        let place = tensors.iter_mut().find(|tensor| tensor.name == spec.name);
        match place.filter(|tensor| !tensor.ragged && !spec.ragged) {
            Some(tensor) => tensor.clone_from(spec),
            None => {
                let name = &spec.name;
                return Err(ChunkFormatError::invalid(format!(
                    "the frame has no fixed tensor {name:?}"
                )));
            }
        }
    }
    FrameSchema::new(tensors)
}

/// Items of all rows of a ragged tensor; 0 of others.
fn items(frame: &ChunkFrame, spec: &TensorSpec) -> usize {
    let view = frame.get(&spec.name).filter(|_| spec.ragged);
    view.map_or(0, |view| view.item_at(frame.rows()))
}
