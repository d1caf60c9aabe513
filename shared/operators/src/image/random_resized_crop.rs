//! `random_resized_crop`: crops a random window of an image and resizes it.

use crate::image::resize::{RESIZE_INTERPOLATION, ResizeFilter, resized};
use crate::prelude::*;

/// u8 or f32 `[h, w, 1 or 3]` -> the same dtype, `[size[0], size[1], c]`: a rectangle of random area, aspect
/// ratio and position, resized as by `resize`. Chosen as in torchvision's `RandomResizedCrop`: ten attempts, then the largest
/// centred rectangle within the ratio bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomResizedCrop {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: [u32; 2],
    pub scale: [f64; 2],
    pub ratio: [f64; 2],
    #[serde(flatten)]
    pub filter: ResizeFilter,
}

/// Lower bound of area and ratio: below it an area has no pixel and a ratio is meaningless. It also keeps
/// logarithms small.
const MIN_BOUND: f64 = 1e-6;

impl OperatorDefinition for RandomResizedCrop {
    const DECLARATION: OperatorDeclaration =
        with_effect("random_resized_crop", 1, OperatorEffect::Window).costs(20_000, 1_500).random();

    const PARAMETERS: &'static [Parameter] = &with_fields::<15>(
        &[
            SIZE,
            or(
                "scale",
                ParameterKind::List(&ParameterKind::Number { min: MIN_BOUND, max: 1.0 }),
                "[0.08, 1.0]",
                "Bounds of the area, as a fraction of the image's; 0 < low <= high <= 1.",
            ),
            or(
                "ratio",
                ParameterKind::List(&ParameterKind::Number { min: MIN_BOUND, max: 1e6 }),
                // torchvision's 3/4 and 4/3.
                "[0.75, 1.3333333333333333]",
                "Bounds of width / height; drawn uniformly in its logarithm; 0 < low <= high.",
            ),
            ANTIALIAS,
            RESIZE_INTERPOLATION,
        ],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size(params, "size")?;
        let scale = bounds(params, "scale")?;
        let ratio = bounds(params, "ratio")?;
        let filter = ResizeFilter::parse(params)?;
        Ok(RandomResizedCrop { fields: ImageFields::parse(params)?, size, scale, ratio, filter })
    }
}

impl Operator for RandomResizedCrop {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        resized(flow, "random_resized_crop", &self.fields, self.size, self.filter)
    }

    fn cost(&self) -> DeclaredCost {
        self.filter.cost(Self::DECLARATION.cost)
    }

    moves_fields!(crop => OperatorGeometry::Resize(crop.drawn()));

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let to = || MaskResize::Drawn(kernel::CropAndResize::new(self, given), self.size);
        Ok(masks::or_resized(&self.fields, given, to, || {
            let crop = kernel::CropAndResize::new(self, given);
            transform(move |input, output, tools, draw| crop.run(input, output, tools, draw))
        }))
    }
}

#[cfg(feature = "kernels")]
impl RandomResizedCrop {
    /// The draws that move boxes; of the image, they need its size alone.
    fn drawn(&self) -> MaskResize {
        MaskResize::Drawn(kernel::CropAndResize::new(self, &kernel::rgb()), self.size)
    }
}

/// `[low, high]` with low <= high, within the declared range.
fn bounds(params: &mut MappingReader<'_>, key: &str) -> Result<[f64; 2], PipelineError> {
    let (min, max) = params.numbers_of(key).into_inner();
    let node = params.present(key)?;
    let [low, high] = params.numbers(key, &node, 0.0..=max)?;
    if low < min || low > high {
        return Err(node.error(format!(
            "`random_resized_crop` `{key}` must be [low, high] with {min} <= low <= high, \
             not [{low}, {high}]"
        )));
    }
    Ok([low, high])
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use super::*;
    use crate::image::resize::kernel::{ImageWindow, ResizeImage};
    use gristmill_kernel::*;

    /// Attempts before falling back to the centre; torchvision's number.
    const TRIES: u32 = 10;

    /// The schema of decoded images.
    pub(crate) fn rgb() -> FieldSchema {
        let shape = vec![None, None, Some(3)];
        FieldSchema { dtype: FieldDType::U8, shape, range: None }
    }

    /// Images of the given dtype -> `[size[0], size[1], c]`. The resizer reads the window in place.
    #[derive(Debug)]
    pub(crate) struct CropAndResize {
        pub(crate) resize: ResizeImage,
        scale: [f64; 2],
        ratio: [f64; 2],
        log_ratio: [f64; 2],
    }

    impl CropAndResize {
        pub(crate) fn new(op: &RandomResizedCrop, given: &FieldSchema) -> Self {
            CropAndResize {
                resize: ResizeImage::new(op.size, given, op.filter),
                scale: op.scale,
                ratio: op.ratio,
                // libm, because the last bit of the platform's logarithm depends on its C library.
                log_ratio: op.ratio.map(libm::log),
            }
        }

        /// As `torchvision.transforms.RandomResizedCrop.get_params`.
        pub(crate) fn window(
            &self,
            [height, width]: [usize; 2],
            draw: &mut OperatorDraws,
        ) -> ImageWindow {
            let area = (height * width) as f64;
            for _ in 0..TRIES {
                let target = area * draw.between(self.scale[0], self.scale[1]);
                let ratio = libm::exp(draw.between(self.log_ratio[0], self.log_ratio[1]));
                // Square roots round exactly on every platform; ties to even is Python's `round`.
                let w = (target * ratio).sqrt().round_ties_even();
                let h = (target / ratio).sqrt().round_ties_even();
                if w >= 1.0 && w <= width as f64 && h >= 1.0 && h <= height as f64 {
                    let (w, h) = (w as u32, h as u32);
                    let top = draw.up_to(height as u32 - h);
                    let left = draw.up_to(width as u32 - w);
                    return ImageWindow { left, top, width: w, height: h };
                }
            }
            self.centre([height, width])
        }

        /// The largest centred window with a ratio within the bounds.
        fn centre(&self, [height, width]: [usize; 2]) -> ImageWindow {
            let ratio = width as f64 / height as f64;
            let side =
                |length: f64, most: usize| (length.round_ties_even() as u32).clamp(1, most as u32);
            let (w, h) = if ratio < self.ratio[0] {
                (width as u32, side(width as f64 / self.ratio[0], height))
            } else if ratio > self.ratio[1] {
                (side(height as f64 * self.ratio[1], width), height as u32)
            } else {
                (width as u32, height as u32)
            };
            ImageWindow {
                left: (width as u32 - w) / 2,
                top: (height as u32 - h) / 2,
                width: w,
                height: h,
            }
        }

        pub(crate) fn run(
            &self,
            input: ValueView<'_>,
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
            draw: &mut OperatorDraws,
        ) -> Result<OutputSize, String> {
            let window = self.window(input.size, draw);
            self.resize.resize(input, window, output, tools)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use gristmill_model::RecordKey;

        fn crop(scale: [f64; 2], ratio: [f64; 2]) -> CropAndResize {
            let (fields, size) = (ImageFields::one("image"), [8, 8]);
            let interpolation = PixelInterpolation::Bilinear;
            let filter = ResizeFilter { antialias: true, interpolation };
            let op = RandomResizedCrop { fields, size, scale, ratio, filter };
            CropAndResize::new(&op, &rgb())
        }

        fn draws() -> impl Iterator<Item = OperatorDraws> {
            (0..500).map(|record| {
                let record = RecordKey { file: 0, record };
                DrawKey { seed: 7, epoch: 0, record, repeat: 0, copy: 0, ordinal: 1 }.draw()
            })
        }

        #[test]
        fn windows_have_the_area_and_ratio_asked_for() {
            let crop = crop([0.08, 1.0], [0.75, 4.0 / 3.0]);
            let mut mean_area = 0.0;
            for mut draw in draws() {
                let ImageWindow { left, top, width, height } = crop.window([375, 500], &mut draw);
                assert!(left + width <= 500 && top + height <= 375);
                let (width, height) = (f64::from(width), f64::from(height));
                assert!((0.73..1.37).contains(&(width / height)), "{width} x {height}");
                assert!(width * height >= 0.075 * 375.0 * 500.0);
                mean_area += width * height / (375.0 * 500.0) / 500.0;
            }
            assert!((0.4..0.6).contains(&mean_area), "{mean_area}");
        }

        #[test]
        fn the_centre_is_taken_when_nothing_fits() {
            let crop = crop([1.0, 1.0], [0.75, 4.0 / 3.0]);
            for mut draw in draws() {
                let wide = crop.window([10, 1000], &mut draw);
                assert_eq!(wide, ImageWindow { left: 493, top: 0, width: 13, height: 10 });
                let tall = crop.window([1000, 9], &mut draw);
                assert_eq!(tall, ImageWindow { left: 0, top: 494, width: 9, height: 12 });
                let dot = crop.window([1, 1], &mut draw);
                assert_eq!(dot, ImageWindow { left: 0, top: 0, width: 1, height: 1 });
            }
        }

        #[test]
        fn extreme_parameters_stay_inside_the_image() {
            let crop = crop([1e-6, 1.0], [1e-6, 1e6]);
            for (mut draw, side) in draws().zip((1..).step_by(7)) {
                let ImageWindow { left, top, width, height } = crop.window([side, 3], &mut draw);
                assert!(width >= 1 && height >= 1);
                assert!(left + width <= 3 && (top + height) as usize <= side);
            }
        }
    }
}
