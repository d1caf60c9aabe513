//! `scale`: multiplies numbers by a factor and adds an offset.

use crate::prelude::*;
#[cfg(feature = "kernels")]
use half::{bf16, f16};

/// Any shape of u8, f16, bf16 or f32 -> f32: `x * factor + offset`, by default u8 0 to 255 to f32 0 to 1.
/// One f32 multiplication and one addition: within 1e-6 of torchvision's `ToDtype(scale=True)`, which
/// divides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    pub field: String,
    pub factor: f64,
    pub offset: f64,
}

impl OperatorDefinition for Scale {
    const DECLARATION: OperatorDeclaration =
        with_effect("scale", 1, OperatorEffect::Value).costs(300, 400);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or(
            "factor",
            ParameterKind::Number { min: -1e9, max: 1e9 },
            "0.00392156862745098",
            "Factor; 1/255 unless given.",
        ),
        or(
            "offset",
            ParameterKind::Number { min: -1e9, max: 1e9 },
            "0.0",
            "Added after the multiplication.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let factor = real::<Self>(params, "factor")?;
        let offset = real::<Self>(params, "offset")?;
        Ok(Scale { field: params.field()?, factor, offset })
    }
}

impl Operator for Scale {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("scale", &self.field)?;
        if !matches!(
            input.dtype,
            FieldDType::U8 | FieldDType::F16 | FieldDType::BF16 | FieldDType::F32
        ) {
            let advice = match input.dtype {
                FieldDType::Bytes => "put `decode` before it",
                _ => "put `cast: { dtype: f32 }` before it",
            };
            let (field, origin) = (&self.field, flow.origin(&self.field));
            return Err(format!(
                "`scale` needs u8, f16, bf16 or f32, but `{field}` is {input}{origin}; {advice}"
            ));
        }
        let range = input.range.map(|ValueRange { min, max }| {
            let ends = [min, max].map(|x| x * self.factor + self.offset);
            ValueRange { min: ends[0].min(ends[1]), max: ends[0].max(ends[1]) }
        });
        let output = FieldSchema { dtype: FieldDType::F32, shape: input.shape.clone(), range };
        flow.write("scale", &self.field, output);
        Ok(())
    }

    replaces_field!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::EachPixel
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        #[inline(always)]
        fn write(values: impl Iterator<Item = f32>, by: [f32; 2], out: &mut [u8]) {
            for (x, to) in values.zip(out.as_chunks_mut::<4>().0) {
                *to = (x * by[0] + by[1]).to_le_bytes();
            }
        }
        let dtype = input.field()?.dtype;
        let by = [self.factor as f32, self.offset as f32];
        Ok(transform(move |input, output, _, _| {
            let ValueView { bytes, size } = input;
            let made = bytes.len() / dtype_bytes(dtype) * 4;
            let out = output.take(made)?;
            match dtype {
                FieldDType::U8 => {
                    vectorised(|| write(bytes.iter().map(|x| f32::from(*x)), by, out))
                }
                FieldDType::F16 => {
                    let read = |x: &[u8; 2]| f16::from_le_bytes(*x).to_f32();
                    write(bytes.as_chunks().0.iter().map(read), by, out);
                }
                FieldDType::BF16 => {
                    let read = |x: &[u8; 2]| bf16::from_le_bytes(*x).to_f32();
                    write(bytes.as_chunks().0.iter().map(read), by, out);
                }
                FieldDType::F32 => {
                    let read = |x: &[u8; 4]| f32::from_le_bytes(*x);
                    vectorised(|| write(bytes.as_chunks().0.iter().map(read), by, out));
                }
                other => return Err(format!("cannot scale {other}")),
            }
            Ok(OutputSize { bytes: made, size })
        }))
    }
}
