//! `resize_shorter`: resizes the shorter side to a given length, keeping the aspect ratio.

#[cfg(feature = "kernels")]
use crate::image::resize::kernel::{ImageWindow, ResizeImage};
use crate::prelude::*;

/// u8 `[h, w, 1 or 3]` -> u8 `[h', w', c]`, resized as by `resize`. The shorter side becomes `size`, the
/// longer one `size * longer / shorter`, rounded down. As torchvision's `Resize` with one number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResizeShorter {
    #[serde(flatten)]
    pub fields: ImageFields,
    /// The shorter side in pixels.
    pub size: u32,
    pub antialias: bool,
}

impl OperatorDefinition for ResizeShorter {
    const DECLARATION: OperatorDeclaration =
        with_effect("resize_shorter", 1, OperatorEffect::Resample).costs(20_000, 1_500);

    const PARAMETERS: &'static [Parameter] = &with_fields::<12>(
        &[
            required(
                "size",
                ParameterKind::Whole { min: 1, max: MAX_SIDE as u64 },
                "The shorter side in pixels.",
            ),
            ANTIALIAS,
        ],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = whole::<Self>(params, "size")?;
        let antialias = flag::<Self>(params, "antialias")?;
        Ok(ResizeShorter { fields: ImageFields::parse(params)?, size, antialias })
    }
}

impl Operator for ResizeShorter {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("resize_shorter", flow, &[FieldDType::U8], |given| {
            let input = given.schema;
            let mut shape = vec![None, None, input.shape[2]];
            if let [Some(height), Some(width), _] = input.shape[..] {
                let size = self.output_size([height, width])?;
                (shape[0], shape[1]) = (Some(size[0]), Some(size[1]));
            }
            Ok(FieldSchema { shape, ..input.clone() })
        })
    }

    moves_fields!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let to = || masks::MaskResize::Shorter(self.clone());
        let op = self.clone();
        Ok(masks::or_resized(&self.fields, given, to, |channels| {
            transform(move |input, output, tools, _| {
                let size = op.output_size(input.size.map(|side| side as u32))?;
                let resize = ResizeImage::new(size, channels, op.antialias);
                resize.resize(input, ImageWindow::whole(input.size), output, tools)
            })
        }))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::OperatorGeometry::Shorter(self.clone()))
    }
}

impl ResizeShorter {
    /// Height and width of the output; an error if a side exceeds the limit.
    pub fn output_size(&self, [height, width]: [u32; 2]) -> Result<[u32; 2], String> {
        let (shorter, longer) = (height.min(width).max(1), height.max(width));
        let long = u64::from(self.size) * u64::from(longer) / u64::from(shorter);
        let long = u32::try_from(long).ok().filter(|long| *long <= MAX_SIDE);
        let long = long.ok_or_else(|| {
            format!("{width} x {height} resized would be longer than {MAX_SIDE} pixels")
        })?;
        Ok(if height <= width { [self.size, long] } else { [long, self.size] })
    }
}
