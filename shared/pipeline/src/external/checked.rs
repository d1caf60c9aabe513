//! Kernels of users' operators that check every output.

use super::one_line;
use crate::{FieldDType, FieldSchema};
use gristmill_kernel::{
    InPlaceKernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, TransformKernel,
    ValueView,
};

/// The kernel of a user's operator. Its output is checked against its schema.
pub(super) struct CheckedTransform {
    pub(super) kernel: Box<dyn TransformKernel>,
    pub(super) output: FieldSchema,
    pub(super) random: bool,
}

/// The same for an operator that changes its field in place.
pub(super) struct CheckedInPlace {
    pub(super) kernel: Box<dyn InPlaceKernel>,
    pub(super) random: bool,
}

/// Turns an operator's message into a record's error: short, and on one line.
fn said(why: String) -> String {
    one_line(&why.chars().take(300).collect::<String>())
}

impl TransformKernel for CheckedTransform {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        // An operator declared deterministic always gets the same draws: otherwise its results
        // could depend on values that are not part of its fingerprint.
        let mut fixed = OperatorDraws::fixed();
        let draw = if self.random { draw } else { &mut fixed };
        // The buffer's old content may differ from run to run.
        let (made, room) = match output {
            KernelOutput::Buffer(buffer) => {
                buffer.clear();
                let made = self.kernel.run(input, KernelOutput::Buffer(&mut *buffer), tools, draw);
                (made, buffer.len())
            }
            KernelOutput::Row(row) => {
                row.fill(0);
                let made = self.kernel.run(input, KernelOutput::Row(&mut *row), tools, draw);
                (made, row.len())
            }
        };
        let made = made.map_err(said)?;
        if made.bytes > room {
            return Err(format!("the operator says that it made {} bytes, not {room}", made.bytes));
        }
        if is_of(&self.output, made) {
            Ok(made)
        } else {
            let (OutputSize { bytes, size: [height, width] }, schema) = (made, &self.output);
            Err(format!(
                "the operator made {bytes} bytes, an image of {height} x {width} if it is one, \
                     which is no {schema}"
            ))
        }
    }
}

impl InPlaceKernel for CheckedInPlace {
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<(), String> {
        let mut fixed = OperatorDraws::fixed();
        let draw = if self.random { draw } else { &mut fixed };
        self.kernel.run(value, size, tools, draw).map_err(said)
    }
}

/// Whether the output can be a value of this schema.
fn is_of(schema: &FieldSchema, made: OutputSize) -> bool {
    if schema.dtype == FieldDType::Bytes {
        return true;
    }
    if let Some(bytes) = schema.element_bytes() {
        return made.bytes as u64 == bytes;
    }
    match (schema.item_bytes(), schema.shape.as_slice(), schema.dtype.size_bytes()) {
        (Some(item), _, _) => (made.bytes as u64).is_multiple_of(item.max(1)),
        // An image of varying size.
        (None, [height, width, Some(channels)], Some(value)) => {
            let [h, w] = made.size.map(|side| side as u64);
            let is = |dim: &Option<u32>, side| dim.is_none_or(|dim| u64::from(dim) == side);
            let bytes = h.checked_mul(w).and_then(|n| n.checked_mul(u64::from(*channels) * value));
            is(height, h) && is(width, w) && bytes == Some(made.bytes as u64)
        }
        _ => false,
    }
}
