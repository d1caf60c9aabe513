//! The layout of a frame: ranges of header and tensors. Headers are written only here.

use std::fmt::Write;
use std::ops::Range;

use crate::schema::{TensorPart, TensorPartRole};
use crate::{ChunkFormatError, ChunkLimits, FrameSchema, aligned};

/// Length of the size field before the header.
pub(crate) const PREFIX_BYTES: usize = 8;

/// The complete layout of a frame with a known number of rows. Ranges count from the frame start.
#[derive(Clone, Debug)]
pub struct FrameLayout {
    schema: FrameSchema,
    rows: usize,
    /// Length prefix, JSON and padding: everything before the data section.
    header: Vec<u8>,
    values: Vec<Range<usize>>,
    offsets: Vec<Range<usize>>,
    /// Per tensor: its leading dimension.
    items: Vec<usize>,
    frame_bytes: usize,
}

impl FrameLayout {
    pub(crate) fn new(
        schema: FrameSchema,
        rows: usize,
        ragged_items: &[usize],
    ) -> Result<Self, ChunkFormatError> {
        ChunkFormatError::within("number of rows", rows as u64, u32::MAX.into())?;
        let tensors = schema.tensors().len();
        let mut values = vec![0..0; tensors];
        let mut offsets = vec![0..0; tensors];
        let mut items = vec![0; tensors];
        let mut json = String::with_capacity(128 * schema.parts().len());
        let mut data_bytes = 0usize;
        for part in schema.parts() {
            let leading = match (part.role, schema.tensors()[part.tensor].ragged) {
                (TensorPartRole::Values, false) => Some(rows),
                (TensorPartRole::Values, true) => {
                    Some(ragged_items.get(part.tensor).copied().unwrap_or(0))
                }
                (TensorPartRole::Offsets, _) => rows.checked_add(1),
            };
            let item_bytes = match part.role {
                TensorPartRole::Values => schema.item_bytes(part.tensor),
                TensorPartRole::Offsets => Some(part.dtype.size_bytes()),
            };
            let range = leading.zip(item_bytes).and_then(|(leading, item_bytes)| {
                let end = data_bytes.checked_add(leading.checked_mul(item_bytes)?)?;
                Some((leading, data_bytes..end))
            });
            let (leading, range) = range.ok_or_else(too_large)?;
            write_entry(&mut json, &schema, part, leading, &range);
            data_bytes = range.end;
            match part.role {
                TensorPartRole::Values => {
                    values[part.tensor] = range;
                    items[part.tensor] = leading;
                }
                TensorPartRole::Offsets => offsets[part.tensor] = range,
            }
        }
        json.push('}');
        let header = finish_header(json)?;
        let frame_bytes = header.len().checked_add(data_bytes).ok_or_else(too_large)?;
        for range in values.iter_mut().chain(&mut offsets) {
            *range = range.start + header.len()..range.end + header.len();
        }
        Ok(FrameLayout { schema, rows, header, values, offsets, items, frame_bytes })
    }

    pub fn schema(&self) -> &FrameSchema {
        &self.schema
    }

    /// The leading dimension.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Everything before the data section; its length is a multiple of 64.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Size of the whole frame.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Leading dimension of a tensor's values: the rows, or all items of a ragged tensor.
    pub(crate) fn items(&self, tensor: usize) -> usize {
        self.items.get(tensor).copied().unwrap_or(0)
    }

    /// Bytes of a tensor's values; `None` if there is no such tensor.
    pub fn values(&self, tensor: usize) -> Option<Range<usize>> {
        self.values.get(tensor).cloned()
    }

    /// Bytes of a ragged tensor's offsets; empty for a fixed one.
    pub fn offsets(&self, tensor: usize) -> Option<Range<usize>> {
        self.offsets.get(tensor).cloned()
    }

    /// Bytes of row `row` of a fixed tensor; `None` out of range and for ragged tensors.
    pub fn row(&self, tensor: usize, row: usize) -> Option<Range<usize>> {
        if row >= self.rows || self.schema.tensors().get(tensor)?.ragged {
            return None;
        }
        let bytes = self.schema.item_bytes(tensor)?;
        let start = self.values[tensor].start + row * bytes;
        Some(start..start + bytes)
    }
}

fn too_large() -> ChunkFormatError {
    let limit = usize::MAX as u64;
    ChunkFormatError::OverLimit { what: "frame size in bytes", actual: u64::MAX, limit }
}

/// Appends `"name":{"dtype":..,"shape":[..],"data_offsets":[..]}` in the canonical encoding, so that equal frames are
/// equal bytes: no spaces, this key order, plain decimal numbers.
fn write_entry(
    json: &mut String,
    schema: &FrameSchema,
    part: &TensorPart,
    leading: usize,
    at: &Range<usize>,
) {
    json.push(if json.is_empty() { '{' } else { ',' });
    json.push_str(&serde_json::Value::from(part.name.as_str()).to_string());
    // Writing to a string cannot fail.
    let _ = write!(json, ":{{\"dtype\":\"{}\",\"shape\":[{leading}", part.dtype);
    if part.role == TensorPartRole::Values {
        for dim in &schema.tensors()[part.tensor].shape {
            let _ = write!(json, ",{dim}");
        }
    }
    let _ = write!(json, "],\"data_offsets\":[{},{}]}}", at.start, at.end);
}

fn finish_header(json: String) -> Result<Vec<u8>, ChunkFormatError> {
    let limit = ChunkLimits::default().header_bytes;
    let total = aligned(PREFIX_BYTES + json.len()).ok_or_else(too_large)?;
    let header_bytes = (total - PREFIX_BYTES) as u64;
    ChunkFormatError::within("frame header size in bytes", header_bytes, limit)?;
    let mut header = Vec::with_capacity(total);
    header.extend_from_slice(&header_bytes.to_le_bytes());
    header.extend_from_slice(json.as_bytes());
    header.resize(total, b' ');
    Ok(header)
}
