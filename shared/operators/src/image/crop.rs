//! `crop`: crops a fixed window of an image.

use crate::prelude::*;

/// Largest `top` or `left`, in pixels.
const MAX_CORNER: u32 = 100_000_000;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[height, width, c]`: the same window of every image, which must
/// lie within the image. Exactly as `tf.image.crop_to_bounding_box`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Crop {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub top: u32,
    pub left: u32,
    pub height: u32,
    pub width: u32,
}

impl OperatorDefinition for Crop {
    const DECLARATION: OperatorDeclaration =
        with_effect("crop", 1, OperatorEffect::Window).costs(1_000, 100);

    const PARAMETERS: &'static [Parameter] = &with_fields::<14>(
        &[
            or("top", ParameterKind::Whole { min: 0, max: MAX_CORNER as u64 }, "0", "First row."),
            or(
                "left",
                ParameterKind::Whole { min: 0, max: MAX_CORNER as u64 },
                "0",
                "First column.",
            ),
            required("height", ParameterKind::Whole { min: 1, max: MAX_SIDE as u64 }, "Rows."),
            required("width", ParameterKind::Whole { min: 1, max: MAX_SIDE as u64 }, "Columns."),
        ],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (top, left) = (whole::<Self>(params, "top")?, whole::<Self>(params, "left")?);
        let (height, width) = (whole::<Self>(params, "height")?, whole::<Self>(params, "width")?);
        Ok(Crop { fields: ImageFields::parse(params)?, top, left, height, width })
    }
}

impl Operator for Crop {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let Crop { top, left, height, width, .. } = *self;
        self.fields.infer("crop", flow, MOVABLE, |given| {
            let ImageInput { name, schema: input, origin, .. } = given;
            let outside = |side: Option<u32>, end: u32| side.is_some_and(|side| end > side);
            if outside(input.shape[0], top + height) || outside(input.shape[1], left + width) {
                return Err(format!(
                    "`crop` ends at row {} and column {}, but `{name}` is {input}{origin}; make it \
                     smaller, or put a `pad` before it",
                    top + height,
                    left + width
                ));
            }
            let shape = vec![Some(height), Some(width), input.shape[2]];
            Ok(FieldSchema { shape, ..(*input).clone() })
        })
    }

    moves_fields!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::Cut
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let choice = canvas::WindowOperator::Fixed(self.clone());
        Ok(canvas::kernel(choice, input.field()?, 0.0))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(
            &self.fields,
            boxes::OperatorGeometry::Window(canvas::WindowOperator::Fixed(self.clone())),
        )
    }
}
