//! `random_crop`: crops an image at a random position.

use crate::prelude::*;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]` at a random position of the image with
/// `padding` around it. As torchvision's `RandomCrop`: with `pad_if_needed`, an image that is still too
/// small is padded on both sides by the missing pixels; without, it is an error of its record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomCrop {
    #[serde(flatten)]
    pub fields: ImageFields,
    /// Height and width in pixels.
    pub size: [u32; 2],
    /// Left, top, right, bottom; also written as one number, or as [left and right, top and bottom].
    pub padding: [u32; 4],
    pub pad_if_needed: bool,
    /// Value of padding.
    pub fill: f64,
}

impl OperatorDefinition for RandomCrop {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("random_crop", 1, OperatorEffect::Window).costs(1_000, 100)
    };

    const PARAMETERS: &'static [Parameter] = &with_fields::<15>(
        &[
            SIZE,
            or(
                "padding",
                SIDES,
                "[0, 0, 0, 0]",
                "Left, top, right, bottom; written as one number, or as [left and right, top and bottom], too.",
            ),
            or(
                "pad_if_needed",
                ParameterKind::Bool,
                "false",
                "Whether an image that is too small is padded; otherwise it is an error of its record.",
            ),
            FILL,
        ],
        true,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size::<Self>(params, "size")?;
        let padding = sides::<Self>(params, "padding")?.unwrap_or_default();
        let pad_if_needed = flag::<Self>(params, "pad_if_needed")?;
        let fill = real::<Self>(params, "fill")?;
        Ok(RandomCrop {
            fields: ImageFields::parse_filled(params)?,
            size,
            padding,
            pad_if_needed,
            fill,
        })
    }
}

impl Operator for RandomCrop {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let [left, top, right, bottom] = self.padding;
        let [height, width] = self.size;
        self.fields.infer("random_crop", flow, MOVABLE, |given| {
            let ImageInput { name, schema: input, origin, .. } = given;
            let fill = given.fill(self.fill);
            check_fill("random_crop", input, fill)?;
            let small = |side: Option<u32>, more: u32, wanted: u32| {
                side.is_some_and(|side| side.saturating_add(more) < wanted)
            };
            let small = small(input.shape[0], top + bottom, height)
                || small(input.shape[1], left + right, width);
            if small && !self.pad_if_needed {
                return Err(format!(
                    "`random_crop` to {height} x {width} needs more than `{name}`, which is \
                     {input}{origin}; say `pad_if_needed: true`, or put a resize before it"
                ));
            }
            let padded = self.pad_if_needed || self.padding != [0; 4];
            let range =
                if padded { input.range.map(|range| widened(range, fill)) } else { input.range };
            let shape = vec![Some(height), Some(width), input.shape[2]];
            Ok(FieldSchema { shape, range, dtype: input.dtype })
        })
    }

    moves_fields!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        let padded = self.pad_if_needed || self.padding != [0; 4];
        if padded { ExactEffect::Unknown } else { ExactEffect::Cut }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let choice = canvas::WindowOperator::Random(self.clone());
        Ok(canvas::kernel(choice, input.field()?, self.fields.fill(self.fill)))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(
            &self.fields,
            boxes::OperatorGeometry::Window(canvas::WindowOperator::Random(self.clone())),
        )
    }
}
