//! `normalise`: subtracts a mean and divides by a standard deviation, per channel.

use crate::prelude::*;

/// u8 or f32 `[h, w, 3]` -> f32 `[h, w, 3]`: `(x / 255 - mean) / std` per channel, computed as one
/// f32 multiplication and one addition. Grey `[h, w, 1]` with one mean and one std.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalise {
    pub field: String,
    /// Per channel R, G, B, or one for grey, on the scale 0 to 1.
    pub mean: Vec<f64>,
    /// As many as `mean`, on the scale 0 to 1.
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

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::EachPixel
    }

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
        let kernel = crate::kernels::normalise_layout_cast::NetworkInput::new(self, then, given)?;
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
    let parameter = declared::<Normalise>(key);
    let (node, range) =
        (parameters::present(params, parameter)?, parameters::numbers_of(parameter));
    Ok(match &node.value {
        NodeValue::Seq(items) if items.len() == 1 => {
            params.numbers::<1>(key, &node, range)?.to_vec()
        }
        NodeValue::Seq(_) => params.numbers::<3>(key, &node, range)?.to_vec(),
        _ => vec![params.number(key, &node, range)?],
    })
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    //! `normalise`: subtracts a mean and divides by a standard deviation, per channel.

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
