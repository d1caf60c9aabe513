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

use gristmill_kernel::{
    InPlaceKernel, Kernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, TransformKernel,
    ValueView,
};
pub(crate) use gristmill_pipeline::value_bytes;
use gristmill_pipeline::{FieldDType, FieldSchema};

/// A kernel that writes its output elsewhere than its input.
pub(crate) fn transform(
    run: impl Fn(
        ValueView<'_>,
        KernelOutput<'_>,
        &mut KernelScratch,
        &mut OperatorDraws,
    ) -> Result<OutputSize, String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    struct Run<F>(F);
    impl<F> TransformKernel for Run<F>
    where
        F: Fn(
                ValueView<'_>,
                KernelOutput<'_>,
                &mut KernelScratch,
                &mut OperatorDraws,
            ) -> Result<OutputSize, String>
            + Send
            + Sync,
    {
        fn run(
            &self,
            input: ValueView<'_>,
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
            draw: &mut OperatorDraws,
        ) -> Result<OutputSize, String> {
            (self.0)(input, output, tools, draw)
        }
    }
    Kernel::transform(Run(run))
}

/// A kernel that changes values where they are.
pub(crate) fn in_place(
    change: impl Fn(&mut [u8], [usize; 2], &mut KernelScratch, &mut OperatorDraws) -> Result<(), String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    struct Change<F>(F);
    impl<F> InPlaceKernel for Change<F>
    where
        F: Fn(&mut [u8], [usize; 2], &mut KernelScratch, &mut OperatorDraws) -> Result<(), String>
            + Send
            + Sync,
    {
        fn run(
            &self,
            value: &mut [u8],
            size: [usize; 2],
            tools: &mut KernelScratch,
            draw: &mut OperatorDraws,
        ) -> Result<(), String> {
            (self.0)(value, size, tools, draw)
        }
    }
    Kernel::in_place(Change(change))
}

/// A kernel that changes each value with probability `p`.
pub(crate) fn sometimes(
    p: f64,
    change: impl Fn(&mut [u8], [usize; 2], &mut KernelScratch, &mut OperatorDraws) -> Result<(), String>
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
pub(crate) fn dtype_bytes(dtype: FieldDType) -> usize {
    dtype.size_bytes().map_or(1, |bytes| bytes as usize)
}

/// Reads `bytes` as an integer of `dtype`; none for floats and byte strings.
pub(crate) fn integer(dtype: FieldDType, bytes: &[u8]) -> Option<i128> {
    Some(match dtype {
        FieldDType::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::U64 => u64::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::Bytes
        | FieldDType::F16
        | FieldDType::BF16
        | FieldDType::F32
        | FieldDType::F64 => return None,
    })
}

/// Bytes of one item of a sequence; 1 if items differ in size.
pub(crate) fn item_bytes(schema: &FieldSchema) -> usize {
    schema.item_bytes().map_or(1, |bytes| bytes.max(1) as usize)
}
