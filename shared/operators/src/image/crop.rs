//! Windows of an image: `crop`, `center_crop`, `random_crop`, and `pad`, whose window exceeds the image.

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
            or("top", from_to(0, MAX_CORNER), "0", "First row."),
            or("left", from_to(0, MAX_CORNER), "0", "First column."),
            required("height", from_to(1, MAX_SIDE), "Rows."),
            required("width", from_to(1, MAX_SIDE), "Columns."),
        ],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (top, left) = (params.read_whole("top")?, params.read_whole("left")?);
        let (height, width) = (params.read_whole("height")?, params.read_whole("width")?);
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

    moves_fields!(crop => OperatorGeometry::Window(Box::new(crop.clone())));

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::Cut
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(canvas::kernel(self.clone(), input.field()?, 0.0))
    }
}

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]`: the centre. A smaller image is padded
/// with zeros. Exactly as torchvision's `CenterCrop`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CenterCrop {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: [u32; 2],
}

impl OperatorDefinition for CenterCrop {
    const DECLARATION: OperatorDeclaration =
        with_effect("center_crop", 1, OperatorEffect::Window).costs(1_000, 100);

    const PARAMETERS: &'static [Parameter] = &with_fields::<12>(&[SIZE], true);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size(params, "size")?;
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

    moves_fields!(crop => OperatorGeometry::Window(Box::new(crop.clone())));

    fn exact_effect(&self, input: &FieldSchema) -> ExactEffect {
        let mut sides = self.size.iter().zip(&input.shape);
        let fits = sides.all(|(size, side)| side.is_some_and(|side| *size <= side));
        if fits { ExactEffect::Cut } else { ExactEffect::Unknown }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(canvas::kernel(self.clone(), input.field()?, self.fields.fill(0.0)))
    }
}

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]` at a random position of the image with
/// `padding` around it. As torchvision's `RandomCrop`: with `pad_if_needed`, an image that is still too
/// small is padded on both sides by the missing pixels; without, it is an error of its record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomCrop {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: [u32; 2],
    pub padding: [u32; 4],
    pub pad_if_needed: bool,
    pub fill: f64,
}

impl OperatorDefinition for RandomCrop {
    const DECLARATION: OperatorDeclaration =
        with_effect("random_crop", 1, OperatorEffect::Window).costs(1_000, 100).random();

    const PARAMETERS: &'static [Parameter] = &with_fields::<15>(
        &[
            SIZE,
            or(
                "padding",
                SIDES,
                "[0, 0, 0, 0]",
                "Left, top, right, bottom; written as one number, or as [left and right, top and bottom], too.",
            ),
            switch(
                "pad_if_needed",
                "Whether an image that is too small is padded; otherwise it is an error of its record.",
            ),
            FILL,
        ],
        true,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size(params, "size")?;
        let padding = sides(params, "padding")?.unwrap_or_default();
        let pad_if_needed = params.read_flag("pad_if_needed")?;
        let fill = params.read_number("fill")?;
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

    moves_fields!(crop => OperatorGeometry::Window(Box::new(crop.clone())));

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        let padded = self.pad_if_needed || self.padding != [0; 4];
        if padded { ExactEffect::Unknown } else { ExactEffect::Cut }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(canvas::kernel(self.clone(), input.field()?, self.fields.fill(self.fill)))
    }
}

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> larger, padded with `fill`. With `padding`, by that on each
/// side, exactly as torchvision's `Pad`. With `size`, to that with the image centred (an odd pixel goes to
/// the right and bottom), as `tf.image.resize_with_crop_or_pad` pads. An image larger than `size` is an
/// error of its record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pad {
    #[serde(flatten)]
    pub fields: ImageFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<[u32; 4]>,
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
        let padding = sides(params, "padding")?;
        let size = optional_size(params, "size")?;
        if padding.is_some() == size.is_some() {
            return Err(params.error(
                "`pad` needs either `padding` (pixels on each side) or `size` (height and width); \
                 for sequences there is `pad_sequence`",
            ));
        }
        let fill = params.read_number("fill")?;
        Ok(Pad { fields: ImageFields::parse_filled(params)?, padding, size, fill })
    }
}

impl Operator for Pad {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("pad", flow, MOVABLE, |given| self.padded(given))
    }

    moves_fields!(pad => OperatorGeometry::Window(Box::new(pad.clone())));

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(canvas::kernel(self.clone(), input.field()?, self.fields.fill(self.fill)))
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
