//! Reads one frame.
//!
//! A frame has exactly one valid encoding: the header is generated again from its own tensors and must be identical.
//! This excludes overlaps, gaps and ranges outside the data.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::footer::u64_at;
use crate::layout::PREFIX_BYTES;
use crate::schema::OFFSETS_SUFFIX;
use crate::{ChunkFormatError, ChunkLimits, FrameLayout, FrameSchema, TensorDType, TensorSpec};

/// A frame with a verified header. Holds the frame's bytes without copying.
#[derive(Clone, Debug)]
pub struct ChunkFrame {
    bytes: Bytes,
    layout: FrameLayout,
}

/// One tensor of a frame.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    frame: &'a ChunkFrame,
    tensor: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: TensorDType,
    shape: Vec<usize>,
    #[allow(dead_code, reason = "must be there; its value is checked by laying out anew")]
    data_offsets: (usize, usize),
}

/// A JSON object as a list, so that duplicate names are detected.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Entries;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a map of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(List)
    }
}

impl ChunkFrame {
    /// Parses and verifies the header of a frame.
    ///
    /// # Errors
    /// [`ChunkFormatError::Corrupt`] for anything a [`ChunkWriter`](crate::ChunkWriter) would not have
    /// written; [`ChunkFormatError::OverLimit`] for a header or frame beyond `limits`.
    pub fn parse(bytes: Bytes, limits: &ChunkLimits) -> Result<Self, ChunkFormatError> {
        limits.check_frame(bytes.len() as u64)?;
        let header_bytes =
            u64_at(&bytes, 0).ok_or_else(|| ChunkFormatError::corrupt("a frame is cut short"))?;
        ChunkFormatError::within("frame header size in bytes", header_bytes, limits.header_bytes)?;
        let json = usize::try_from(header_bytes)
            .ok()
            .and_then(|len| bytes[PREFIX_BYTES..].get(..len))
            .ok_or_else(|| ChunkFormatError::corrupt("a frame is cut short in its header"))?;
        // The error's text may quote hostile content.
        let Entries(entries) = serde_json::from_slice(json).map_err(|error| {
            let column = error.column();
            ChunkFormatError::corrupt(format!("a frame header is not valid at column {column}"))
        })?;
        let layout = layout_of(entries).ok_or_else(|| {
            ChunkFormatError::corrupt("the tensors of a frame do not belong together")
        })?;
        if !bytes.starts_with(layout.header()) || bytes.len() != layout.frame_bytes() {
            return Err(ChunkFormatError::corrupt(
                "a frame is not laid out as its tensors require",
            ));
        }
        let frame = ChunkFrame { bytes, layout };
        for tensor in 0..frame.schema().tensors().len() {
            frame.check_offsets(tensor)?;
        }
        Ok(frame)
    }

    /// The whole frame: a safetensors blob.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The tensors in frame order.
    pub fn schema(&self) -> &FrameSchema {
        self.layout.schema()
    }

    pub fn layout(&self) -> &FrameLayout {
        &self.layout
    }

    /// Leading dimension of every tensor.
    pub fn rows(&self) -> usize {
        self.layout.rows()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        Some(TensorView { frame: self, tensor: self.schema().index_of(name)? })
    }

    /// The tensors in the order of [`schema`](Self::schema).
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        (0..self.schema().tensors().len()).map(|tensor| TensorView { frame: self, tensor })
    }

    pub(crate) fn tensor(&self, tensor: usize) -> TensorView<'_> {
        TensorView { frame: self, tensor }
    }

    fn check_offsets(&self, tensor: usize) -> Result<(), ChunkFormatError> {
        let view = self.tensor(tensor);
        if !view.spec().ragged {
            return Ok(());
        }
        let mut last = 0;
        for (i, offset) in view.offset_values().enumerate() {
            if offset < last || (i == 0 && offset != 0) {
                return Err(ChunkFormatError::corrupt(format!(
                    "the offsets of tensor {:?} do not ascend from 0",
                    view.spec().name
                )));
            }
            last = offset;
        }
        if last != view.items() as u64 {
            return Err(ChunkFormatError::corrupt(format!(
                "the offsets of tensor {:?} do not end with its items",
                view.spec().name
            )));
        }
        Ok(())
    }
}

impl<'a> TensorView<'a> {
    pub fn spec(&self) -> &'a TensorSpec {
        &self.frame.schema().tensors()[self.tensor]
    }

    /// Shape of the values: `[rows, ..]`, or `[items of all rows, ..]` of a ragged tensor.
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = vec![self.items()];
        shape.extend_from_slice(&self.spec().shape);
        shape
    }

    /// The values as bytes of the frame.
    pub fn values(&self) -> &'a [u8] {
        &self.frame.bytes[self.frame.layout.values(self.tensor).unwrap_or_default()]
    }

    /// The offsets of a ragged tensor, u64 little-endian `[rows + 1]`; empty for a fixed one.
    pub fn offsets(&self) -> &'a [u8] {
        &self.frame.bytes[self.frame.layout.offsets(self.tensor).unwrap_or_default()]
    }

    /// The values of one row, `None` past the last.
    pub fn row(&self, row: usize) -> Option<&'a [u8]> {
        let end = row.checked_add(1).filter(|end| *end <= self.frame.rows())?;
        self.values().get(self.row_bytes(row, end))
    }

    /// Range of one row's values in the frame's bytes, `None` past the last row.
    pub fn row_range(&self, row: usize) -> Option<std::ops::Range<usize>> {
        let end = row.checked_add(1).filter(|end| *end <= self.frame.rows())?;
        let start = self.frame.layout.values(self.tensor)?.start;
        let within = self.row_bytes(row, end);
        Some(start + within.start..start + within.end)
    }

    /// Bytes, within the values, of rows `from..to`; both must be at most the number of rows.
    pub(crate) fn row_bytes(&self, from: usize, to: usize) -> std::ops::Range<usize> {
        let item_bytes = self.frame.schema().item_bytes(self.tensor).unwrap_or(0);
        self.item_at(from) * item_bytes..self.item_at(to) * item_bytes
    }

    /// The first item of row `row`; the number of items if `row` is the number of rows.
    pub(crate) fn item_at(&self, row: usize) -> usize {
        if self.spec().ragged { u64_at(self.offsets(), row * 8).unwrap_or(0) as usize } else { row }
    }

    fn offset_values(&self) -> impl Iterator<Item = u64> {
        self.offsets().as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk))
    }

    fn items(&self) -> usize {
        self.frame.layout.items(self.tensor)
    }
}

/// The layout required by a header with these entries; `None` if there is none.
fn layout_of(entries: Vec<(String, Entry)>) -> Option<FrameLayout> {
    let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let is_ragged = |name: &str| names.binary_search(&&*format!("{name}{OFFSETS_SUFFIX}")).is_ok();
    let is_offsets = |name: &str| {
        name.strip_suffix(OFFSETS_SUFFIX).is_some_and(|stem| names.binary_search(&stem).is_ok())
    };
    let mut rows = None;
    let mut tensors = Vec::with_capacity(entries.len());
    let mut items = Vec::with_capacity(entries.len());
    for (name, entry) in &entries {
        let (leading, shape) = entry.shape.split_first()?;
        if is_offsets(name) {
            rows = Some(leading.checked_sub(1)?);
            continue;
        }
        let ragged = is_ragged(name);
        if !ragged {
            rows = Some(*leading);
        }
        items.push(*leading);
        tensors.push(TensorSpec {
            name: name.clone(),
            dtype: entry.dtype,
            shape: shape.to_vec(),
            ragged,
        });
    }
    FrameSchema::new(tensors).ok()?.layout(rows.filter(|rows| *rows > 0)?, &items).ok()
}
