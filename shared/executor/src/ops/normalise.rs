//! `normalise`: pixels become numbers around zero.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::{DType, ops::Normalise};

/// u8 or f32 `[h, w, 1 or 3]` -> f32 of the same shape: one multiplication and one addition per value.
#[derive(Debug)]
pub(crate) struct Affine {
    /// Four pixels' worth, the least common multiple of a pixel and a vector register.
    factor: [f32; 12],
    addend: [f32; 12],
    input: DType,
}

impl Affine {
    pub(crate) fn new(op: &Normalise, input: DType) -> Self {
        let affine = op.affine();
        let (mut factor, mut addend) = ([0.0; 12], [0.0; 12]);
        for i in 0..12 {
            (factor[i], addend[i]) = affine[i % affine.len()];
        }
        Affine { factor, addend, input }
    }

    /// Value `i` of some whole pixels.
    fn one(&self, i: usize, x: f32) -> [u8; 4] {
        (x * self.factor[i % 12] + self.addend[i % 12]).to_le_bytes()
    }

    fn pixels(&self, input: &[u8], output: &mut [u8]) {
        let (whole, rest) = input.as_chunks::<12>();
        let (outputs, tail) = output.as_chunks_mut::<48>();
        for (from, to) in whole.iter().zip(outputs) {
            let to = to.as_chunks_mut::<4>().0;
            for i in 0..12 {
                to[i] = (f32::from(from[i]) * self.factor[i] + self.addend[i]).to_le_bytes();
            }
        }
        for ((i, x), to) in rest.iter().enumerate().zip(tail.as_chunks_mut::<4>().0) {
            *to = self.one(i, f32::from(*x));
        }
    }

    fn floats(&self, input: &[u8], output: &mut [u8]) {
        let inputs = input.as_chunks::<4>().0.iter().enumerate();
        for ((i, x), to) in inputs.zip(output.as_chunks_mut::<4>().0) {
            *to = self.one(i, f32::from_le_bytes(*x));
        }
    }
}

impl Transform for Affine {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let View { bytes, size } = input;
        let values = bytes.len() / super::dtype_bytes(self.input);
        let output = output.take(values * 4)?;
        match self.input {
            DType::U8 => self.pixels(bytes, output),
            _ => self.floats(bytes, output),
        }
        Ok(Made { bytes: values * 4, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_inputs_give_the_formula() {
        let op = Normalise {
            field: "image".into(),
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
        };
        let pixels: Vec<u8> = (0..=255).chain(0..17).collect();
        let floats: Vec<u8> = pixels.iter().flat_map(|x| f32::from(*x).to_le_bytes()).collect();
        let mut from_u8 = vec![0; pixels.len() * 4];
        let mut from_f32 = from_u8.clone();
        Affine::new(&op, DType::U8).pixels(&pixels, &mut from_u8);
        Affine::new(&op, DType::F32).floats(&floats, &mut from_f32);
        assert_eq!(from_u8, from_f32);
        for (i, (x, y)) in pixels.iter().zip(from_u8.as_chunks::<4>().0).enumerate() {
            let expected = (f64::from(*x) / 255.0 - op.mean[i % 3]) / op.std[i % 3];
            let y = f64::from(f32::from_le_bytes(*y));
            assert!((y - expected).abs() < 1e-6, "{x}: {y} is not {expected}");
        }
    }
}
