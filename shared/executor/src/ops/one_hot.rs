//! `one_hot`: zeros with a one in the place of a class.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::{DType, ops::OneHot};

/// An integer -> f32 or u8 `[classes]`.
#[derive(Debug)]
pub(crate) struct Classes {
    classes: usize,
    input: DType,
    one: Vec<u8>,
}

impl Classes {
    pub(crate) fn new(op: &OneHot, input: DType) -> Self {
        let one = super::value_bytes(op.dtype.dtype(), 1.0);
        Classes { classes: op.classes as usize, input, one }
    }
}

impl Transform for Classes {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let class = super::integer(self.input, input.bytes).ok_or("it has no value")?;
        let place = usize::try_from(class).ok().filter(|place| *place < self.classes);
        let place =
            place.ok_or_else(|| format!("{class} is not one of {} classes, 0 on", self.classes))?;
        let bytes = self.classes * self.one.len();
        let out = output.take(bytes)?;
        out.fill(0);
        out[place * self.one.len()..][..self.one.len()].copy_from_slice(&self.one);
        Ok(Made { bytes, size: [0, 0] })
    }
}
