//! Replaces tensors of a frame: used for operators that run on finished batches.

use bytes::BytesMut;

use crate::{
    ChunkFormatError, ChunkFrame, ChunkLimits, FrameSchema, TensorSpec, schema::TensorPartRole,
};

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
    ChunkFormatError::within(
        "frame size in bytes",
        layout.frame_bytes() as u64,
        limits.frame_bytes,
    )?;
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
