//! `random_erasing`: erases a random rectangle of an image, with a probability.

#[cfg(feature = "kernels")]
use crate::image::resize::kernel::ImageWindow;
use crate::prelude::*;
#[cfg(feature = "kernels")]
use gristmill_kernel::OperatorDraws;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same; with probability `p` a rectangle of random area,
/// aspect ratio and position becomes `value`. Chosen as in torchvision's `RandomErasing`: ten attempts,
/// then nothing is erased.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomErasing {
    pub field: String,
    pub p: f64,
    pub scale: [f64; 2],
    pub ratio: [f64; 2],
    pub value: f64,
}

impl OperatorDefinition for RandomErasing {
    const DECLARATION: OperatorDeclaration =
        element_wise("random_erasing", 1).costs(2_000, 100).random();

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        probability("0.5"),
        or(
            "scale",
            ParameterKind::List(&ParameterKind::Number { min: 0.0, max: 1.0 }),
            "[0.02, 0.33]",
            "Bounds of the area, as a fraction of the image's.",
        ),
        or(
            "ratio",
            ParameterKind::List(&ParameterKind::Number { min: 1e-6, max: 1e6 }),
            "[0.3, 3.3]",
            "Bounds of height / width; drawn uniformly in its logarithm.",
        ),
        or(
            "value",
            ParameterKind::Number { min: -1e9, max: 1e9 },
            "0.0",
            "Value of the rectangle.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let p = params.read_number("p")?;
        let scale = interval(params, "scale", |s| [s, s])?;
        let ratio = interval(params, "ratio", |r| [r, r])?;
        let value = params.read_number("value")?;
        Ok(RandomErasing { field: params.field()?, p, scale, ratio, value })
    }
}

impl Operator for RandomErasing {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.image_of("random_erasing", &self.field, MOVABLE, &[1, 3])?;
        check_fill("random_erasing", input, self.value)?;
        let range = input.range.map(|range| widened(range, self.value));
        let output = FieldSchema { range, ..input.clone() };
        flow.write("random_erasing", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let (op, log_ratio) = (self.clone(), self.ratio.map(libm::log));
        let pixel = value_bytes(given.dtype, self.value).repeat(channels_of(given));
        Ok(sometimes(self.p, move |value, size, _, draw| {
            let Some(window) = op.window(log_ratio, size, draw) else { return Ok(()) };
            let ImageWindow { left, top, width, height } = window;
            let rows = value.chunks_exact_mut(size[1] * pixel.len()).skip(top as usize);
            for row in rows.take(height as usize) {
                let erased =
                    &mut row[left as usize * pixel.len()..][..width as usize * pixel.len()];
                erased.chunks_exact_mut(pixel.len()).for_each(|to| to.copy_from_slice(&pixel));
            }
            Ok(())
        }))
    }
}

#[cfg(feature = "kernels")]
impl RandomErasing {
    /// As `torchvision.transforms.RandomErasing.get_params`.
    fn window(
        &self,
        log_ratio: [f64; 2],
        [height, width]: [usize; 2],
        draw: &mut OperatorDraws,
    ) -> Option<ImageWindow> {
        /// Attempts before nothing is erased; torchvision's number.
        const TRIES: u32 = 10;
        let area = (height * width) as f64;
        for _ in 0..TRIES {
            let erased = area * draw.between(self.scale[0], self.scale[1]);
            let ratio = libm::exp(draw.between(log_ratio[0], log_ratio[1]));
            let h = (erased * ratio).sqrt().round_ties_even();
            let w = (erased / ratio).sqrt().round_ties_even();
            if h < height as f64 && w < width as f64 {
                let (h, w) = (h as u32, w as u32);
                let top = draw.up_to(height as u32 - h);
                let left = draw.up_to(width as u32 - w);
                return Some(ImageWindow { left, top, width: w, height: h });
            }
        }
        None
    }
}
