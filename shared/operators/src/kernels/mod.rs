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
pub(crate) mod warp;

use gristmill_kernel::{Draw, InPlace, Kernel, Made, Sink, Tools, Transform, View};
pub(crate) use gristmill_pipeline::value_bytes;
use gristmill_pipeline::{DType, FieldSchema};

/// A kernel that writes its output elsewhere than its input.
pub(crate) fn transform(
    run: impl Fn(View<'_>, Sink<'_>, &mut Tools, &mut Draw) -> Result<Made, String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    struct Run<F>(F);
    impl<F> Transform for Run<F>
    where
        F: Fn(View<'_>, Sink<'_>, &mut Tools, &mut Draw) -> Result<Made, String> + Send + Sync,
    {
        fn run(
            &self,
            input: View<'_>,
            output: Sink<'_>,
            tools: &mut Tools,
            draw: &mut Draw,
        ) -> Result<Made, String> {
            (self.0)(input, output, tools, draw)
        }
    }
    Kernel::transform(Run(run))
}

/// A kernel that changes values where they are.
pub(crate) fn in_place(
    change: impl Fn(&mut [u8], [usize; 2], &mut Tools, &mut Draw) -> Result<(), String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    struct Change<F>(F);
    impl<F> InPlace for Change<F>
    where
        F: Fn(&mut [u8], [usize; 2], &mut Tools, &mut Draw) -> Result<(), String> + Send + Sync,
    {
        fn run(
            &self,
            value: &mut [u8],
            size: [usize; 2],
            tools: &mut Tools,
            draw: &mut Draw,
        ) -> Result<(), String> {
            (self.0)(value, size, tools, draw)
        }
    }
    Kernel::in_place(Change(change))
}

/// A kernel that changes each value with probability `p`.
pub(crate) fn sometimes(
    p: f64,
    change: impl Fn(&mut [u8], [usize; 2], &mut Tools, &mut Draw) -> Result<(), String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    in_place(
        move |value, size, tools, draw| {
            if draw.unit() >= p { Ok(()) } else { change(value, size, tools, draw) }
        },
    )
}

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
