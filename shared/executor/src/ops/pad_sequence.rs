//! `pad_sequence`: a sequence is filled up to a length.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::{FieldSchema, ops::PadSequence};

/// `[n, ..]` -> `[length, ..]`.
#[derive(Debug)]
pub(crate) struct FillUp {
    item_bytes: usize,
    length: usize,
    truncate: bool,
    /// One value, as it is stored.
    value: Vec<u8>,
}

impl FillUp {
    pub(crate) fn new(op: &PadSequence, input: &FieldSchema, item_bytes: usize) -> Self {
        let value = super::number_bytes(input.dtype, op.value);
        FillUp { item_bytes, length: op.length as usize, truncate: op.truncate, value }
    }
}

impl Transform for FillUp {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let bytes = self.length.saturating_mul(self.item_bytes);
        if input.bytes.len() > bytes && !self.truncate {
            return Err(format!(
                "a sequence of {} items does not fit {}; `truncate: true` cuts it",
                input.bytes.len() / self.item_bytes,
                self.length
            ));
        }
        let given = input.bytes.len().min(bytes);
        let (start, rest) = output.take(bytes)?.split_at_mut(given);
        start.copy_from_slice(&input.bytes[..given]);
        if self.value.iter().all(|byte| *byte == 0) {
            rest.fill(0);
        } else {
            rest.chunks_exact_mut(self.value.len()).for_each(|to| to.copy_from_slice(&self.value));
        }
        Ok(Made { bytes, size: [0, 0] })
    }
}
