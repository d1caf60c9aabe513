//! `color_jitter`: changes brightness, contrast, saturation and hue at random.

use crate::prelude::*;

/// Largest factor.
const MAX_FACTOR: f64 = 15.9;

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; grey has no hue or saturation. With probability
/// `p` each of the four amounts is drawn uniformly from its bounds, and the changes apply in random order.
/// As torchvision's `ColorJitter` on tensors: one change of u8 within 1 of torchvision 0.29, all four within
/// 2 in 99 of 100 values (in a nearly grey pixel a difference of 1 can shift the hue); f32 within 1e-5.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColorJitter {
    pub field: String,
    pub brightness: [f64; 2],
    pub contrast: [f64; 2],
    pub saturation: [f64; 2],
    pub hue: [f64; 2],
    pub p: f64,
}

impl OperatorDefinition for ColorJitter {
    const DECLARATION: OperatorDeclaration =
        with_effect("color_jitter", 1, OperatorEffect::Colour).costs(10_000, 4_000).random();

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or(
            "brightness",
            ParameterKind::List(&ParameterKind::Number { min: 0.0, max: MAX_FACTOR }),
            "[1.0, 1.0]",
            "Bounds of the factor. Written as one number b: 1 - b, but at least 0, to 1 + b.",
        ),
        or(
            "contrast",
            ParameterKind::List(&ParameterKind::Number { min: 0.0, max: MAX_FACTOR }),
            "[1.0, 1.0]",
            "As `brightness`: away from the image's mean grey.",
        ),
        or(
            "saturation",
            ParameterKind::List(&ParameterKind::Number { min: 0.0, max: MAX_FACTOR }),
            "[1.0, 1.0]",
            "As `brightness`: away from each pixel's grey.",
        ),
        or(
            "hue",
            ParameterKind::List(&ParameterKind::Number { min: -0.5, max: 0.5 }),
            "[0.0, 0.0]",
            "Bounds of what is added to the hue, in turns, -0.5 to 0.5. Written as one number h: -h to h.",
        ),
        probability("1.0"),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let mut factor = |key| {
            let around_one = |b: f64| [(1.0 - b).max(0.0), 1.0 + b];
            interval(params, key, around_one)
        };
        let brightness = factor("brightness")?;
        let contrast = factor("contrast")?;
        let saturation = factor("saturation")?;
        let hue = interval(params, "hue", |h| [-h, h])?;
        let p = params.read_number("p")?;
        Ok(ColorJitter { field: params.field()?, brightness, contrast, saturation, hue, p })
    }
}

impl Operator for ColorJitter {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.colours("color_jitter", &self.field, &[1, 3])?.clone();
        flow.write("color_jitter", &self.field, in_full_range(field));
        Ok(())
    }

    replaces_field!();

    fn exact_effect(&self, input: &FieldSchema) -> ExactEffect {
        // A contrast depends on the mean of the image.
        if self.contrast == [1.0; 2] { each_pixel_of_u8(input) } else { ExactEffect::Unknown }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        // With one channel there is no hue or saturation.
        let (op, dtype, gray) = (self.clone(), given.dtype, channels_of(given) == 1);
        Ok(sometimes(self.p, move |value, _, tools, draw| {
            let changes = op.draw(draw);
            if gray {
                kernel::apply_to_gray(&changes, dtype, value, &mut tools.pixels)
            } else {
                kernel::apply(&changes, dtype, value)
            }
            Ok(())
        }))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use super::*;
    use crate::kernels::colours::{ColourArithmetic, GreySum};
    use crate::kernels::planes::{self, F32Pixels, RgbBlock, U8Pixels};
    use gristmill_kernel::OperatorDraws;

    /// One change with its drawn amount.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum ColourChange {
        /// Factor.
        Brightness(f32),
        /// Factor.
        Contrast(f32),
        /// Factor.
        Saturation(f32),
        /// Turns.
        Hue(f32),
    }

    impl ColourChange {
        /// The equivalent change if all channels are equal.
        fn on_gray(self) -> ColourChange {
            match self {
                ColourChange::Saturation(_) => ColourChange::Saturation(1.0),
                ColourChange::Hue(_) => ColourChange::Hue(0.0),
                other => other,
            }
        }

        /// Whether the change leaves every image as it is.
        fn is_nothing(&self) -> bool {
            match *self {
                ColourChange::Brightness(x)
                | ColourChange::Contrast(x)
                | ColourChange::Saturation(x) => x == 1.0,
                ColourChange::Hue(x) => x == 0.0,
            }
        }
    }

    impl ColorJitter {
        /// Draws an order and four amounts, as `torchvision.transforms.ColorJitter`.
        pub(super) fn draw(&self, draw: &mut OperatorDraws) -> [ColourChange; 4] {
            let mut order = [0, 1, 2, 3];
            for i in (1..4).rev() {
                order.swap(i, draw.up_to(i as u32) as usize);
            }
            let mut between = |[low, high]: [f64; 2]| draw.between(low, high) as f32;
            let changes = [
                ColourChange::Brightness(between(self.brightness)),
                ColourChange::Contrast(between(self.contrast)),
                ColourChange::Saturation(between(self.saturation)),
                ColourChange::Hue(between(self.hue)),
            ];
            order.map(|i| changes[i])
        }
    }

    /// Applies `changes` as to an RGB image with three such channels.
    pub(super) fn apply_to_gray(
        changes: &[ColourChange; 4],
        dtype: FieldDType,
        gray: &mut [u8],
        rgb: &mut Vec<u8>,
    ) {
        let bytes = dtype_bytes(dtype);
        rgb.clear();
        rgb.extend(gray.chunks_exact(bytes).flat_map(|value| value.repeat(3)));
        apply(&changes.map(ColourChange::on_gray), dtype, rgb);
        for (pixel, value) in rgb.chunks_exact(3 * bytes).zip(gray.chunks_exact_mut(bytes)) {
            value.copy_from_slice(&pixel[..bytes]);
        }
    }

    /// Applies `changes` in their order to an RGB image.
    pub(crate) fn apply(changes: &[ColourChange; 4], dtype: FieldDType, pixels: &mut [u8]) {
        match dtype {
            FieldDType::U8 => apply_to::<U8Pixels>(changes, pixels),
            _ => apply_to::<F32Pixels>(changes, pixels),
        }
    }

    /// Takes one pass over the image, or two with a contrast, which needs the mean of its input.
    fn apply_to<S: ColourArithmetic>(changes: &[ColourChange; 4], pixels: &mut [u8]) {
        let contrast =
            changes.iter().position(|c| matches!(c, ColourChange::Contrast(x) if *x != 1.0));
        let (before, after) = changes.split_at(contrast.unwrap_or(0));
        let mut mean = 0.0;
        if contrast.is_some() {
            let mut sum = GreySum::new();
            if before.iter().all(ColourChange::is_nothing) {
                planes::read::<S>(pixels, |planes| S::sum(planes, &mut sum));
            } else {
                planes::change::<S>(pixels, |planes| {
                    before.iter().for_each(|change| change.apply::<S>(planes, 0.0));
                    S::sum(planes, &mut sum);
                });
            }
            mean = sum.mean(pixels.len() / (3 * S::BYTES));
        }
        if !after.iter().all(ColourChange::is_nothing) {
            planes::change::<S>(pixels, |planes| {
                after.iter().for_each(|change| change.apply::<S>(planes, mean));
            });
        }
    }

    impl ColourChange {
        fn apply<S: ColourArithmetic>(&self, planes: &mut RgbBlock<S::Value>, mean: f32) {
            match *self {
                change if change.is_nothing() => {}
                ColourChange::Brightness(factor) => S::affine(planes, factor, 0.0),
                ColourChange::Contrast(factor) => S::affine(planes, factor, mean * (1.0 - factor)),
                ColourChange::Saturation(factor) => S::saturate(planes, factor),
                ColourChange::Hue(turns) => S::turn(planes, turns),
            }
        }
    }
}
