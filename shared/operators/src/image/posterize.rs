//! `posterize`: reduces the bits of colours, with a probability.

use crate::prelude::*;

/// u8 `[h, w, 1 or 3]` -> the same; with probability `p` each value keeps only its upper `bits` bits.
/// Exactly as torchvision's `RandomPosterize`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Posterize {
    pub field: String,
    /// 0 to 8.
    pub bits: u32,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl OperatorDefinition for Posterize {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("posterize", 1, OperatorEffect::Value).costs(500, 200)
    };

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "bits",
            ParameterKind::Whole { min: 0, max: 8 },
            "Bits of each value that are kept, 0 to 8.",
        ),
        or("p", ParameterKind::Number { min: 0.0, max: 1.0 }, "0.5", "Probability, 0 to 1."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let bits = whole::<Self>(params, "bits")?;
        let p = real::<Self>(params, "p")?;
        Ok(Posterize { field: params.field()?, bits, p })
    }
}

impl Operator for Posterize {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.image_of("posterize", &self.field, &[FieldDType::U8], &[1, 3])?.clone();
        flow.write("posterize", &self.field, in_full_range(field));
        Ok(())
    }

    replaces_field!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::EachPixel
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let mask = !((0xff_u16 >> self.bits) as u8);
        Ok(sometimes(self.p, move |value, _, _, _| {
            value.iter_mut().for_each(|x| *x &= mask);
            Ok(())
        }))
    }
}
