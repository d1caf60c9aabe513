//! `vertical_flip`: mirrors an image top to bottom, with a probability.

use crate::prelude::*;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same, mirrored top to bottom with probability `p`.
/// Exactly as torchvision's `RandomVerticalFlip`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerticalFlip {
    #[serde(flatten)]
    pub fields: ImageFields,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl OperatorDefinition for VerticalFlip {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("vertical_flip", 1, OperatorEffect::Mirror).costs(1_000, 100)
    };

    const PARAMETERS: &'static [Parameter] = &with_fields::<11>(
        &[or("p", ParameterKind::Number { min: 0.0, max: 1.0 }, "0.5", "Probability, 0 to 1.")],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(VerticalFlip { p: real::<Self>(params, "p")?, fields: ImageFields::parse(params)? })
    }
}

impl Operator for VerticalFlip {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("vertical_flip", flow, MOVABLE, |given| Ok(given.schema.clone()))
    }

    moves_fields!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::Mirror
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        input.field()?;
        Ok(sometimes(self.p, |value, [height, _], _, _| {
            if height > 1 {
                let row_bytes = value.len() / height;
                let (mut top, mut bottom) = value.split_at_mut(height / 2 * row_bytes);
                while let Some((row, rest)) = top.split_at_mut_checked(row_bytes)
                    && !row.is_empty()
                {
                    let (before, other) = bottom.split_at_mut(bottom.len() - row_bytes);
                    row.swap_with_slice(other);
                    (top, bottom) = (rest, before);
                }
            }
            Ok(())
        }))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::OperatorGeometry::UpsideDown { p: self.p })
    }
}
