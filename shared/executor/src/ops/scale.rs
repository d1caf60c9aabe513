//! `scale`: numbers times a factor, plus an offset.

use super::planes::vectorised;
use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::{DType, ops::Scale};
use half::{bf16, f16};

/// Numbers -> f32: one multiplication and one addition each.
#[derive(Debug)]
pub(crate) struct ScaleBy {
    factor: f32,
    offset: f32,
    dtype: DType,
}

impl ScaleBy {
    pub(crate) fn new(op: &Scale, dtype: DType) -> Self {
        ScaleBy { factor: op.factor as f32, offset: op.offset as f32, dtype }
    }

    #[inline(always)]
    fn write(&self, values: impl Iterator<Item = f32>, out: &mut [u8]) {
        for (x, to) in values.zip(out.as_chunks_mut::<4>().0) {
            *to = (x * self.factor + self.offset).to_le_bytes();
        }
    }
}

impl Transform for ScaleBy {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let View { bytes, size } = input;
        let made = bytes.len() / super::dtype_bytes(self.dtype) * 4;
        let out = output.take(made)?;
        match self.dtype {
            DType::U8 => vectorised(|| self.write(bytes.iter().map(|x| f32::from(*x)), out)),
            DType::F16 => {
                let read = |x: &[u8; 2]| f16::from_le_bytes(*x).to_f32();
                self.write(bytes.as_chunks().0.iter().map(read), out);
            }
            DType::BF16 => {
                let read = |x: &[u8; 2]| bf16::from_le_bytes(*x).to_f32();
                self.write(bytes.as_chunks().0.iter().map(read), out);
            }
            DType::F32 => {
                let read = |x: &[u8; 4]| f32::from_le_bytes(*x);
                vectorised(|| self.write(bytes.as_chunks().0.iter().map(read), out));
            }
            other => return Err(format!("cannot scale {other}")),
        }
        Ok(Made { bytes: made, size })
    }
}
