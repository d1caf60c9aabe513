//! `grayscale`: three equal channels, or one.

use super::planes::{self, F32, Sample, U8, vectorised};
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
            match planes::is_whole(self.dtype) {
                true => vectorised(|| to_grey::<U8>(value)),
                false => vectorised(|| to_grey::<F32>(value)),
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn to_grey<S: Sample>(pixels: &mut [u8]) {
    planes::change::<S>(pixels, |planes| *planes = [planes::grey::<S>(planes); 3]);
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
        match planes::is_whole(self.dtype) {
            true => vectorised(|| to_one::<U8>(bytes, output)),
            false => vectorised(|| to_one::<F32>(bytes, output)),
        }
        Ok(Made { bytes: output.len(), size })
    }
}

#[inline(always)]
fn to_one<S: Sample>(pixels: &[u8], output: &mut [u8]) {
    let mut blocks = output.chunks_mut(planes::BLOCK * S::BYTES);
    planes::read::<S>(pixels, |planes| {
        if let Some(block) = blocks.next() {
            S::store_one(&planes::grey::<S>(planes), block);
        }
    });
}
