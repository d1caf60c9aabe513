//! The tensors of a pipeline's frames, independent of the number of rows.

use crate::{ChunkFormatError, FrameLayout};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Most tensors in one frame.
const MAX_TENSORS: usize = 1024;
/// Longest tensor name, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Most dimensions of one row.
const MAX_RANK: usize = 16;
/// Suffix of the tensor with the row bounds of a ragged one.
pub(crate) const OFFSETS_SUFFIX: &str = ".offsets";

/// One named tensor of an element, without the leading batch dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Not empty, at most 255 bytes, not `__metadata__`, not ending in `.offsets`.
    pub name: String,
    pub dtype: TensorDType,
    /// Shape of one row, or of one item of a ragged tensor, whose rows have any number of items. At most 16
    /// dimensions. 0 stands in fixed tensors only: sequences padded to the longest of a batch may all be empty.
    pub shape: Vec<usize>,
    /// Whether rows differ in length along their first axis.
    pub ragged: bool,
}

impl TensorSpec {
    /// A tensor of shape `[rows, ..shape]`.
    pub fn fixed(
        name: impl Into<String>,
        dtype: TensorDType,
        shape: impl Into<Vec<usize>>,
    ) -> Self {
        TensorSpec { name: name.into(), dtype, shape: shape.into(), ragged: false }
    }

    /// A tensor whose row `i` has shape `[items_i, ..shape]`, stored as one tensor of all items
    /// `[sum of items, ..shape]` and `<name>.offsets`, u64 `[rows + 1]`.
    pub fn ragged(
        name: impl Into<String>,
        dtype: TensorDType,
        shape: impl Into<Vec<usize>>,
    ) -> Self {
        TensorSpec { name: name.into(), dtype, shape: shape.into(), ragged: true }
    }
}

/// Role of a [`TensorPart`] within its tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorPartRole {
    Values,
    Offsets,
}

/// One tensor as it appears in the header: a fixed tensor is one part, a ragged one two.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TensorPart {
    pub(crate) tensor: usize,
    pub(crate) role: TensorPartRole,
    pub(crate) name: String,
    pub(crate) dtype: TensorDType,
}

#[derive(Debug)]
struct Inner {
    tensors: Vec<TensorSpec>,
    /// Per tensor: bytes of one row, or of one item of a ragged tensor.
    item_bytes: Vec<usize>,
    /// Parts in frame order.
    parts: Vec<TensorPart>,
}

/// A validated set of tensors; cheap to clone. Tensors are addressed by their index in the given order; equality, and
/// the bytes of frames, do not depend on that order.
#[derive(Clone, Debug)]
pub struct FrameSchema(Arc<Inner>);

impl FrameSchema {
    /// Checks names and shapes.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] naming the invalid tensor.
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Self, ChunkFormatError> {
        if tensors.is_empty() || tensors.len() > MAX_TENSORS {
            return Err(ChunkFormatError::invalid(format!(
                "a frame holds 1 to {MAX_TENSORS} tensors, not {}",
                tensors.len()
            )));
        }
        let mut item_bytes = Vec::with_capacity(tensors.len());
        let mut parts = Vec::with_capacity(tensors.len());
        for (tensor, spec) in tensors.iter().enumerate() {
            item_bytes.push(checked_item_bytes(spec)?);
            let (name, dtype) = (spec.name.clone(), spec.dtype);
            parts.push(TensorPart { tensor, role: TensorPartRole::Values, name, dtype });
            if spec.ragged {
                let name = format!("{}{OFFSETS_SUFFIX}", spec.name);
                parts.push(TensorPart {
                    tensor,
                    role: TensorPartRole::Offsets,
                    name,
                    dtype: TensorDType::U64,
                });
            }
        }
        if tensors.iter().zip(&item_bytes).all(|(spec, bytes)| !spec.ragged && *bytes == 0) {
            // Rows without bytes would let a short frame claim any number of rows.
            return Err(ChunkFormatError::invalid("every tensor has a dimension of 0"));
        }
        // Decreasing element size aligns every tensor to its own type without gaps, which safetensors
        // forbids.
        parts.sort_by(|a, b| {
            b.dtype.size_bytes().cmp(&a.dtype.size_bytes()).then_with(|| a.name.cmp(&b.name))
        });
        let mut names: Vec<&str> = tensors.iter().map(|spec| spec.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ChunkFormatError::invalid(format!("two tensors are named {:?}", twice[0])));
        }
        Ok(FrameSchema(Arc::new(Inner { tensors, item_bytes, parts })))
    }

    /// The tensors in the order given to [`FrameSchema::new`].
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.0.tensors
    }

    /// Index of the tensor called `name`.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.0.tensors.iter().position(|spec| spec.name == name)
    }

    /// Bytes of one row of a fixed tensor, of one item of a ragged one.
    pub fn item_bytes(&self, tensor: usize) -> Option<usize> {
        self.0.item_bytes.get(tensor).copied()
    }

    /// Whether any tensor is ragged.
    pub fn has_ragged(&self) -> bool {
        self.0.parts.len() > self.0.tensors.len()
    }

    /// The layout of a frame of `rows` rows. `ragged_items` holds the total number of items per tensor; entries of
    /// fixed tensors are ignored and missing ones are 0.
    ///
    /// # Errors
    /// [`ChunkFormatError::OverLimit`] if sizes leave the range of `usize` or the header is too long.
    pub fn layout(
        &self,
        rows: usize,
        ragged_items: &[usize],
    ) -> Result<FrameLayout, ChunkFormatError> {
        FrameLayout::new(self.clone(), rows, ragged_items)
    }

    pub(crate) fn parts(&self) -> &[TensorPart] {
        &self.0.parts
    }
}

impl PartialEq for FrameSchema {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.parts().len() == other.parts().len()
                && self.parts().iter().zip(other.parts()).all(|(a, b)| {
                    a.role == b.role && self.0.tensors[a.tensor] == other.0.tensors[b.tensor]
                }))
    }
}

impl Eq for FrameSchema {}

fn checked_item_bytes(spec: &TensorSpec) -> Result<usize, ChunkFormatError> {
    let name = &spec.name;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(ChunkFormatError::invalid(format!(
            "tensor name {name:?} has {} bytes; use 1 to {MAX_NAME_BYTES}",
            name.len()
        )));
    }
    if name == "__metadata__" || name.ends_with(OFFSETS_SUFFIX) {
        return Err(ChunkFormatError::invalid(format!(
            "tensor name {name:?} is reserved by the format; choose another"
        )));
    }
    if spec.shape.len() > MAX_RANK {
        return Err(ChunkFormatError::invalid(format!(
            "tensor {name:?} has {} dimensions; use at most {MAX_RANK}",
            spec.shape.len()
        )));
    }
    if spec.ragged && spec.shape.contains(&0) {
        return Err(ChunkFormatError::invalid(format!(
            "the items of ragged tensor {name:?} have a dimension of 0 in {:?}",
            spec.shape
        )));
    }
    let size = spec.dtype.size_bytes();
    let bytes = spec.shape.iter().try_fold(size, |bytes, dim| bytes.checked_mul(*dim));
    bytes.ok_or_else(|| {
        ChunkFormatError::invalid(format!(
            "tensor {name:?} with row shape {:?} is too large",
            spec.shape
        ))
    })
}

/// The type of one tensor element, little-endian. Serialised as its safetensors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TensorDType {
    /// One byte, 0 or 1.
    Bool,
    U8,
    I8,
    U16,
    I16,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `F32`.
    BF16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl TensorDType {
    pub const ALL: [TensorDType; 13] = [
        TensorDType::Bool,
        TensorDType::U8,
        TensorDType::I8,
        TensorDType::U16,
        TensorDType::I16,
        TensorDType::F16,
        TensorDType::BF16,
        TensorDType::U32,
        TensorDType::I32,
        TensorDType::F32,
        TensorDType::U64,
        TensorDType::I64,
        TensorDType::F64,
    ];

    /// Bytes of one element: 1, 2, 4 or 8.
    pub const fn size_bytes(self) -> usize {
        match self {
            TensorDType::Bool | TensorDType::U8 | TensorDType::I8 => 1,
            TensorDType::U16 | TensorDType::I16 | TensorDType::F16 | TensorDType::BF16 => 2,
            TensorDType::U32 | TensorDType::I32 | TensorDType::F32 => 4,
            TensorDType::U64 | TensorDType::I64 | TensorDType::F64 => 8,
        }
    }

    /// The name in a safetensors header, for example `"BF16"`.
    pub const fn name(self) -> &'static str {
        match self {
            TensorDType::Bool => "BOOL",
            TensorDType::U8 => "U8",
            TensorDType::I8 => "I8",
            TensorDType::U16 => "U16",
            TensorDType::I16 => "I16",
            TensorDType::F16 => "F16",
            TensorDType::BF16 => "BF16",
            TensorDType::U32 => "U32",
            TensorDType::I32 => "I32",
            TensorDType::F32 => "F32",
            TensorDType::U64 => "U64",
            TensorDType::I64 => "I64",
            TensorDType::F64 => "F64",
        }
    }
}

impl fmt::Display for TensorDType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
