//! `length`: how many items a sequence has.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};

/// A sequence -> i64.
#[derive(Debug)]
pub(crate) struct CountItems {
    pub(crate) item_bytes: usize,
}

impl Transform for CountItems {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let items = (input.bytes.len() / self.item_bytes) as i64;
        output.take(8)?.copy_from_slice(&items.to_le_bytes());
        Ok(Made { bytes: 8, size: [0, 0] })
    }
}
