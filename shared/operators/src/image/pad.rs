//! `pad`: pads an image.

use crate::prelude::*;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> larger, padded with `fill`. With `padding`, by that on each
/// side, exactly as torchvision's `Pad`. With `size`, to that with the image centred (an odd pixel goes to
/// the right and bottom), as `tf.image.resize_with_crop_or_pad` pads. An image larger than `size` is an
/// error of its record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pad {
    #[serde(flatten)]
    pub fields: ImageFields,
    /// Left, top, right, bottom; also written as one number, or as [left and right, top and bottom].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<[u32; 4]>,
    /// Height and width in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<[u32; 2]>,
    pub fill: f64,
}

impl OperatorDefinition for Pad {
    const DECLARATION: OperatorDeclaration =
        with_effect("pad", 1, OperatorEffect::Window).costs(1_000, 100);

    const PARAMETERS: &'static [Parameter] = &with_fields::<14>(
        &[
            absent(
                "padding",
                SIDES,
                "Left, top, right, bottom; written as one number, or as [left and right, top and bottom], too.",
            ),
            absent("size", IMAGE_SIZE, "Height and width to pad to, in place of `padding`."),
            FILL,
        ],
        true,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let padding = sides::<Self>(params, "padding")?;
        let size = optional_size::<Self>(params, "size")?;
        if padding.is_some() == size.is_some() {
            return Err(params.error(
                "`pad` needs either `padding` (pixels on each side) or `size` (height and width); \
                 for sequences there is `pad_sequence`",
            ));
        }
        let fill = real::<Self>(params, "fill")?;
        Ok(Pad { fields: ImageFields::parse_filled(params)?, padding, size, fill })
    }
}

impl Operator for Pad {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("pad", flow, MOVABLE, |given| self.padded(given))
    }

    moves_fields!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let choice = canvas::WindowOperator::Padded(self.clone());
        Ok(canvas::kernel(choice, input.field()?, self.fields.fill(self.fill)))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(
            &self.fields,
            boxes::OperatorGeometry::Window(canvas::WindowOperator::Padded(self.clone())),
        )
    }
}

impl Pad {
    fn padded(&self, given: &ImageInput<'_>) -> Result<FieldSchema, String> {
        let ImageInput { name, schema: input, origin, .. } = given;
        let fill = given.fill(self.fill);
        check_fill("pad", input, fill)?;
        let before = &input.shape;
        let sides = match (self.size, self.padding) {
            (Some(size), _) => size.map(Some),
            (None, padding) => {
                let [left, top, right, bottom] = padding.unwrap_or_default();
                let more = |side: Option<u32>, by: u32| side.map(|side| side.saturating_add(by));
                [more(before[0], top + bottom), more(before[1], left + right)]
            }
        };
        let wrong = |i: usize| match (before[i], sides[i]) {
            (Some(before), Some(after)) => after < before || after > MAX_SIDE,
            _ => false,
        };
        if wrong(0) || wrong(1) {
            return Err(format!(
                "`pad` cannot make that of `{name}`, which is {input}{origin}; its sides must not \
                 shrink, nor exceed {MAX_SIDE}"
            ));
        }
        let shape = vec![sides[0], sides[1], before[2]];
        let range = input.range.map(|range| widened(range, fill));
        Ok(FieldSchema { shape, range, dtype: input.dtype })
    }
}
