//! Kernels and helpers that several operators share.

pub(crate) mod assets;
pub(crate) mod boxes;
pub(crate) mod canvas;
pub(crate) mod colours;
pub(crate) mod decode_crop;
pub mod floor;
#[cfg(test)]
mod golden;
pub(crate) mod masks;
pub(crate) mod normalise_layout_cast;
pub(crate) mod planes;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod timing;
pub(crate) mod tones;
pub(crate) mod warp;

pub(crate) use gristmill_pipeline::value_bytes;
use gristmill_pipeline::{DType, FieldSchema};

/// Channels of an `[h, w, c]` image.
pub(crate) fn channels(schema: &FieldSchema) -> usize {
    schema.shape.last().copied().flatten().unwrap_or(1) as usize
}

/// Bytes of one pixel of an `[h, w, c]` image.
pub(crate) fn pixel_bytes(schema: &FieldSchema) -> usize {
    channels(schema) * dtype_bytes(schema.dtype)
}

/// Bytes of one value; 1 for byte strings.
pub(crate) fn dtype_bytes(dtype: DType) -> usize {
    dtype.size_bytes().map_or(1, |bytes| bytes as usize)
}

/// Reads `bytes` as an integer of `dtype`; none for floats and byte strings.
pub(crate) fn integer(dtype: DType, bytes: &[u8]) -> Option<i128> {
    Some(match dtype {
        DType::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::U64 => u64::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::Bytes | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return None,
    })
}

/// Bytes of one item of a sequence; 1 if items differ in size.
pub(crate) fn item_bytes(schema: &FieldSchema) -> usize {
    schema.item_bytes().map_or(1, |bytes| bytes.max(1) as usize)
}
