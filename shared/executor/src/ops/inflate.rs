//! `inflate`: a value, several times over. For studies.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::ops::Inflate;

/// `[..shape]` -> `[factor, ..shape]`.
#[derive(Debug)]
pub(crate) struct Repeat {
    factor: usize,
}

impl Repeat {
    pub(crate) fn new(op: &Inflate) -> Self {
        Repeat { factor: op.factor as usize }
    }
}

impl Transform for Repeat {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let View { bytes, size } = input;
        let made = bytes.len() * self.factor;
        for copy in output.take(made)?.chunks_exact_mut(bytes.len().max(1)) {
            copy.copy_from_slice(bytes);
        }
        Ok(Made { bytes: made, size })
    }
}
