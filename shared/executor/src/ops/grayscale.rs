//! `grayscale`: three equal channels, or one.

use super::planes::{self, BLOCK, F32, Sample, U8};
use crate::{
    cell::Sink,
    random::Draw,
    step::{InPlace, Made, Tools, Transform, View},
};
use gristmill_pipeline::DType;

/// `[h, w, 3]` of u8 or f32 -> the same with equal channels, in place.
#[derive(Debug)]
pub(crate) struct Grey {
    pub(crate) p: f64,
    pub(crate) dtype: DType,
}

impl InPlace for Grey {
    fn run(
        &self,
        value: &mut [u8],
        _: [usize; 2],
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String> {
        if draw.unit() < self.p {
            match self.dtype {
                DType::U8 => to_grey::<U8>(value),
                _ => to_grey::<F32>(value),
            }
        }
        Ok(())
    }
}

fn to_grey<S: Sample>(pixels: &mut [u8]) {
    let mut grey = [S::Value::default(); BLOCK];
    planes::change::<S>(pixels, |planes| {
        S::grey(planes, &mut grey);
        *planes = [grey; 3];
    });
}

/// `[h, w, 3]` of u8 or f32 -> `[h, w, 1]`.
#[derive(Debug)]
pub(crate) struct OneChannel {
    pub(crate) dtype: DType,
}

impl Transform for OneChannel {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let View { bytes, size } = input;
        let output = output.take(bytes.len() / 3)?;
        match self.dtype {
            DType::U8 => to_one::<U8>(bytes, output),
            _ => to_one::<F32>(bytes, output),
        }
        Ok(Made { bytes: output.len(), size })
    }
}

fn to_one<S: Sample>(pixels: &[u8], output: &mut [u8]) {
    let mut grey = [S::Value::default(); BLOCK];
    let mut blocks = output.chunks_mut(BLOCK * S::BYTES);
    planes::read::<S>(pixels, |planes| {
        if let Some(block) = blocks.next() {
            S::grey(planes, &mut grey);
            S::store_one(&grey, block);
        }
    });
}
