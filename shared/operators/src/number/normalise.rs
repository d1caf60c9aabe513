//! `normalise` and `standardise`: subtract a mean and divide by a standard deviation, given or of each image.

use crate::prelude::*;

/// u8 or f32 `[h, w, 3]` -> f32 `[h, w, 3]`: `(x / 255 - mean) / std` per channel, computed as one
/// f32 multiplication and one addition. Grey `[h, w, 1]` with one mean and one std.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalise {
    pub field: String,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

impl OperatorDefinition for Normalise {
    const DECLARATION: OperatorDeclaration =
        with_effect("normalise", 1, OperatorEffect::Value).costs(300, 400);

    // Beyond these bounds f32 loses the precision of the parameters.
    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "mean",
            ParameterKind::List(&ParameterKind::Number { min: -1e6, max: 1e6 }),
            "Per channel R, G, B, or one for grey, on the scale 0 to 1.",
        ),
        required(
            "std",
            ParameterKind::List(&ParameterKind::Number { min: 1e-6, max: 1e6 }),
            "As many as `mean`, on the scale 0 to 1.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let mean = per_channel(params, "mean")?;
        let std = per_channel(params, "std")?;
        if mean.len() != std.len() {
            return Err(params.error("`normalise` needs as many numbers in `std` as in `mean`"));
        }
        Ok(Normalise { field: params.field()?, mean, std })
    }
}

impl Operator for Normalise {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let channels = self.mean.len() as u32;
        let dtypes = [FieldDType::U8, FieldDType::F32];
        let input = flow.image_of("normalise", &self.field, &dtypes, &[channels])?;
        let range = input.range.map(|range| self.range(range));
        let output = FieldSchema { dtype: FieldDType::F32, shape: input.shape.clone(), range };
        flow.write("normalise", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let dtype = input.field()?.dtype;
        let affine = kernel::AffineKernel::new(self);
        Ok(transform(move |ValueView { bytes, size }, output, _, _| {
            let made = bytes.len() / dtype_bytes(dtype) * 4;
            let output = output.take(made)?;
            match dtype {
                FieldDType::U8 => affine.pixels(bytes, output),
                _ => affine.floats(bytes, output),
            }
            Ok(OutputSize { bytes: made, size })
        }))
    }

    #[cfg(feature = "kernels")]
    fn fuse(&self, then: &[&dyn Operator], given: &FieldSchema) -> Option<FusedKernel> {
        let is = |i: usize| (then[i].downcast_ref::<Layout>(), then[i].downcast_ref::<Cast>());
        let name = match (0..then.len()).map(is).collect::<Vec<_>>()[..] {
            [(Some(_), _)] => "normalise+layout",
            [(_, Some(_))] => "normalise+cast",
            [(Some(_), _), (_, Some(_))] => "normalise+layout+cast",
            [(_, Some(_)), (Some(_), _)] => "normalise+cast+layout",
            _ => return None,
        };
        let kernel = crate::kernels::fused::NetworkInput::new(self, then, given)?;
        Some((name, Box::new(kernel)))
    }
}

impl Normalise {
    /// Factor and addend of `x * factor + addend`, per channel.
    pub fn affine(&self) -> Vec<(f32, f32)> {
        let channels = self.mean.iter().zip(&self.std);
        let affine =
            |(mean, std): (&f64, &f64)| ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32);
        channels.map(affine).collect()
    }

    fn range(&self, input: ValueRange) -> ValueRange {
        let at = |x: f64, c: usize| (x / 255.0 - self.mean[c]) / self.std[c];
        let over = |x: f64| (0..self.mean.len()).map(move |c| at(x, c));
        ValueRange {
            min: over(input.min).fold(f64::INFINITY, f64::min),
            max: over(input.max).fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Parses `key`: three numbers, or one for grey, as a number or a list.
fn per_channel(params: &mut MappingReader<'_>, key: &str) -> Result<Vec<f64>, PipelineError> {
    let (node, range) = (params.present(key)?, params.numbers_of(key));
    Ok(match &node.value {
        NodeValue::Seq(items) if items.len() == 1 => {
            params.numbers::<1>(key, &node, range)?.to_vec()
        }
        NodeValue::Seq(_) => params.numbers::<3>(key, &node, range)?.to_vec(),
        _ => vec![params.number(key, &node, range)?],
    })
}

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
pub(crate) mod kernel {
    use super::*;

    /// u8 or f32 `[h, w, 1 or 3]` -> f32 of the same shape: one multiplication and one addition per value.
    #[derive(Debug)]
    pub(crate) struct AffineKernel {
        /// Repeated for four pixels, so that whole pixels fill whole vector registers.
        factor: [f32; 12],
        addend: [f32; 12],
    }

    impl AffineKernel {
        pub(crate) fn new(op: &Normalise) -> Self {
            let affine = op.affine();
            let (mut factor, mut addend) = ([0.0; 12], [0.0; 12]);
            for i in 0..12 {
                (factor[i], addend[i]) = affine[i % affine.len()];
            }
            AffineKernel { factor, addend }
        }

        /// Normalises value `i` of a group of whole pixels.
        fn one(&self, i: usize, x: f32) -> [u8; 4] {
            (x * self.factor[i % 12] + self.addend[i % 12]).to_le_bytes()
        }

        pub(super) fn pixels(&self, input: &[u8], output: &mut [u8]) {
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

        pub(super) fn floats(&self, input: &[u8], output: &mut [u8]) {
            let inputs = input.as_chunks::<4>().0.iter().enumerate();
            for ((i, x), to) in inputs.zip(output.as_chunks_mut::<4>().0) {
                *to = self.one(i, f32::from_le_bytes(*x));
            }
        }
    }

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
    fn byte_sums(values: &[u8]) -> (f64, f64) {
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
    fn float_sums(values: &[[u8; 4]], mean: f64) -> (f64, f64) {
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
                let (sum, squares) = vectorised(|| byte_sums(bytes));
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
                let mean = float_sums(values, 0.0).0 / (count as f64).max(1.0);
                let (sum, squares) = float_sums(values, mean);
                let (_, scale) = moments(sum, squares, count);
                let (mean, scale) = (mean as f32, scale as f32);
                for (x, to) in values.iter().zip(outs) {
                    *to = ((f32::from_le_bytes(*x) - mean) * scale).to_le_bytes();
                }
            }
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
            AffineKernel::new(&op).pixels(&pixels, &mut from_u8);
            AffineKernel::new(&op).floats(&floats, &mut from_f32);
            assert_eq!(from_u8, from_f32);
            for (i, (x, y)) in pixels.iter().zip(from_u8.as_chunks::<4>().0).enumerate() {
                let expected = (f64::from(*x) / 255.0 - op.mean[i % 3]) / op.std[i % 3];
                let y = f64::from(f32::from_le_bytes(*y));
                assert!((y - expected).abs() < 1e-6, "{x}: {y} is not {expected}");
            }
        }
    }
}
