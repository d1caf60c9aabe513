//! `center_crop`: crops the centre of an image.

use crate::prelude::*;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]`: the centre. A smaller image is padded
/// with zeros. Exactly as torchvision's `CenterCrop`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CenterCrop {
    #[serde(flatten)]
    pub fields: ImageFields,
    /// Height and width in pixels.
    pub size: [u32; 2],
}

impl OperatorDefinition for CenterCrop {
    const DECLARATION: OperatorDeclaration =
        with_effect("center_crop", 1, OperatorEffect::Window).costs(1_000, 100);

    const PARAMETERS: &'static [Parameter] = &with_fields::<12>(&[SIZE], true);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size::<Self>(params, "size")?;
        Ok(CenterCrop { size, fields: ImageFields::parse_filled(params)? })
    }
}

impl Operator for CenterCrop {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let [height, width] = self.size.map(Some);
        self.fields.infer("center_crop", flow, MOVABLE, |given| {
            let input = given.schema;
            let fill = given.fill(0.0);
            check_fill("center_crop", input, fill)?;
            let shape = vec![height, width, input.shape[2]];
            let range = input.range.map(|range| widened(range, fill));
            Ok(FieldSchema { shape, range, dtype: input.dtype })
        })
    }

    moves_fields!();

    fn exact_effect(&self, input: &FieldSchema) -> ExactEffect {
        let mut sides = self.size.iter().zip(&input.shape);
        let fits = sides.all(|(size, side)| side.is_some_and(|side| *size <= side));
        if fits { ExactEffect::Cut } else { ExactEffect::Unknown }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let choice = canvas::WindowOperator::Centre(self.clone());
        Ok(canvas::kernel(choice, input.field()?, self.fields.fill(0.0)))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(
            &self.fields,
            boxes::OperatorGeometry::Window(canvas::WindowOperator::Centre(self.clone())),
        )
    }
}
