//! `solarize`: inverts bright values, with a probability.

use crate::prelude::*;

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; with probability `p` every value of at
/// least `threshold` becomes 255 (f32: 1) minus itself. Exactly as torchvision's `RandomSolarize`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Solarize {
    pub field: String,
    pub threshold: f64,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl OperatorDefinition for Solarize {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("solarize", 1, OperatorEffect::Value).costs(500, 200)
    };

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or(
            "threshold",
            ParameterKind::Number { min: 0.0, max: 255.0 },
            "128.0",
            "Values from it on are inverted.",
        ),
        or("p", ParameterKind::Number { min: 0.0, max: 1.0 }, "0.5", "Probability, 0 to 1."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let threshold = real::<Self>(params, "threshold")?;
        let p = real::<Self>(params, "p")?;
        Ok(Solarize { field: params.field()?, threshold, p })
    }
}

impl Operator for Solarize {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.colours("solarize", &self.field, &[1, 3])?.clone();
        if field.dtype == FieldDType::F32 && self.threshold > 1.0 {
            return Err(format!(
                "`solarize` of f32 takes a `threshold` from 0 to 1, not {}",
                self.threshold
            ));
        }
        flow.write("solarize", &self.field, in_full_range(field));
        Ok(())
    }

    replaces_field!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::EachPixel
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let (whole, threshold) = (input.field()?.dtype == FieldDType::U8, self.threshold);
        Ok(sometimes(self.p, move |value, _, _, _| {
            if whole {
                let threshold = threshold.ceil() as u8;
                vectorised(|| {
                    value.iter_mut().for_each(|x| *x = if *x >= threshold { !*x } else { *x });
                });
            } else {
                let threshold = threshold as f32;
                for to in value.as_chunks_mut::<4>().0 {
                    let x = f32::from_le_bytes(*to);
                    *to = if x >= threshold { 1.0 - x } else { x }.to_le_bytes();
                }
            }
            Ok(())
        }))
    }
}
