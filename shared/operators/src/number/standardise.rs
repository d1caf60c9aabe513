//! `standardise`: scales each image to mean 0 and variance 1.

use crate::prelude::*;

/// u8 or f32 `[h, w, 1 or 3]` -> f32 of the same shape: (x - mean) / max(deviation, 1 / sqrt(n)) with the
/// mean and deviation of all n values of the image. As `tf.image.per_image_standardization`, within 1e-4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standardise {
    pub field: String,
}

impl OperatorDefinition for Standardise {
    const DECLARATION: OperatorDeclaration = element_wise("standardise", 1).costs(500, 800);

    const PARAMETERS: &'static [Parameter] = &[FIELD];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Standardise { field: params.field()? })
    }
}

impl Operator for Standardise {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input =
            flow.image_of("standardise", &self.field, &[FieldDType::U8, FieldDType::F32], &[1, 3])?;
        let output =
            FieldSchema { dtype: FieldDType::F32, shape: input.shape.clone(), range: None };
        flow.write("standardise", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let dtype = input.field()?.dtype;
        Ok(transform(move |ValueView { bytes, size }, output, _, _| {
            let made = bytes.len() / dtype_bytes(dtype) * 4;
            kernel::standardise(dtype, bytes, output.take(made)?);
            Ok(OutputSize { bytes: made, size })
        }))
    }
}

#[cfg(feature = "kernels")]
mod kernel {
    //! `standardise`: scales each image to mean 0 and variance 1.

    use super::*;

    /// Number of partial sums. It is constant because a sum of floats depends on its order.
    const LANES: usize = 16;

    /// Mean, and the inverse of the deviation with TensorFlow's lower bound.
    fn moments(sum: f64, squares: f64, count: usize) -> (f64, f64) {
        let n = (count as f64).max(1.0);
        let mean = sum / n;
        let variance = (squares / n - mean * mean).max(0.0);
        (mean, 1.0 / variance.sqrt().max(1.0 / n.sqrt()))
    }

    #[inline(always)]
    fn of_bytes(values: &[u8]) -> (f64, f64) {
        let (mut sum, mut squares) = (0_u64, 0_u64);
        // The sum of 4096 squares fits 32 bits.
        for part in values.chunks(1 << 12) {
            let (mut of_part, mut of_squares) = (0_u32, 0_u32);
            for x in part {
                of_part += u32::from(*x);
                of_squares += u32::from(*x) * u32::from(*x);
            }
            sum += u64::from(of_part);
            squares += u64::from(of_squares);
        }
        (sum as f64, squares as f64)
    }

    #[inline(always)]
    fn of_floats(values: &[[u8; 4]], mean: f64) -> (f64, f64) {
        let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for part in values.chunks(LANES) {
            for (lane, x) in part.iter().enumerate() {
                let x = f64::from(f32::from_le_bytes(*x)) - mean;
                sums[lane] += x;
                squares[lane] += x * x;
            }
        }
        (sums.iter().sum(), squares.iter().sum())
    }

    /// Writes the standardised `bytes`, of u8 or f32.
    pub(super) fn standardise(dtype: FieldDType, bytes: &[u8], out: &mut [u8]) {
        let count = bytes.len() / dtype_bytes(dtype);
        let outs = out.as_chunks_mut::<4>().0;
        match dtype {
            FieldDType::U8 => {
                let (sum, squares) = vectorised(|| of_bytes(bytes));
                let (mean, scale) = moments(sum, squares, count);
                let (mean, scale) = (mean as f32, scale as f32);
                vectorised(|| {
                    for (x, to) in bytes.iter().zip(outs) {
                        *to = ((f32::from(*x) - mean) * scale).to_le_bytes();
                    }
                });
            }
            _ => {
                let values = bytes.as_chunks::<4>().0;
                // Subtract the mean before squaring: floats may be far from zero but close together.
                let mean = of_floats(values, 0.0).0 / (count as f64).max(1.0);
                let (sum, squares) = of_floats(values, mean);
                let (_, scale) = moments(sum, squares, count);
                let (mean, scale) = (mean as f32, scale as f32);
                for (x, to) in values.iter().zip(outs) {
                    *to = ((f32::from_le_bytes(*x) - mean) * scale).to_le_bytes();
                }
            }
        }
    }
}
