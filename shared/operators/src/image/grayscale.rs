//! `grayscale`, `solarize` and `posterize`: fixed changes of colours, with a probability.

use crate::prelude::*;

#[cfg(feature = "kernels")]
use crate::kernels::planes::{F32Pixels, U8Pixels};

/// u8 or f32 `[h, w, 3]` -> the same with three equal channels, `0.2989 r + 0.587 g + 0.114 b` (rounded
/// down for u8), with probability `p`; or `[h, w, 1]` with `channels: 1`. As torchvision's
/// `RandomGrayscale` and `Grayscale` on tensors: u8 within 1 of torchvision 0.29, f32 within 1e-6.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grayscale {
    pub field: String,
    pub p: f64,
    pub channels: u32,
}

impl OperatorDefinition for Grayscale {
    const DECLARATION: OperatorDeclaration =
        with_effect("grayscale", 1, OperatorEffect::Colour).costs(1_000, 700).random();

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or("channels", CHANNELS, "3", "1 or 3."),
        or(
            "p",
            ParameterKind::Number { min: 0.0, max: 1.0 },
            "1.0",
            "Probability, 0 to 1; 1 with one channel.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let channels = channels(params)?;
        let p = params.read_number("p")?;
        if channels == 1 && p < 1.0 {
            return Err(params.error(
                "`grayscale` with `channels: 1` changes the shape, so that `p` must be 1; leave \
                 `channels` out",
            ));
        }
        Ok(Grayscale { field: params.field()?, p, channels })
    }
}

impl Operator for Grayscale {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.colours("grayscale", &self.field, &[3])?;
        let mut shape = input.shape.clone();
        shape[2] = Some(self.channels);
        let output = FieldSchema { shape, ..input.clone() };
        flow.write("grayscale", &self.field, output);
        Ok(())
    }

    replaces_field!();

    fn exact_effect(&self, input: &FieldSchema) -> ExactEffect {
        each_pixel_of_u8(input)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let whole = input.field()?.dtype == FieldDType::U8;
        if self.channels == 1 {
            return Ok(transform(move |input, output, _, _| {
                let bytes = input.bytes.len() / 3;
                let output = output.take(bytes)?;
                if whole {
                    kernel::to_one::<U8Pixels>(input.bytes, output)
                } else {
                    kernel::to_one::<F32Pixels>(input.bytes, output)
                }
                Ok(OutputSize { bytes, size: input.size })
            }));
        }
        Ok(sometimes(self.p, move |value, _, _, _| {
            if whole {
                kernel::to_grey::<U8Pixels>(value)
            } else {
                kernel::to_grey::<F32Pixels>(value)
            }
            Ok(())
        }))
    }
}

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; with probability `p` every value of at
/// least `threshold` becomes 255 (f32: 1) minus itself. Exactly as torchvision's `RandomSolarize`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Solarize {
    pub field: String,
    pub threshold: f64,
    pub p: f64,
}

impl OperatorDefinition for Solarize {
    const DECLARATION: OperatorDeclaration =
        with_effect("solarize", 1, OperatorEffect::Value).costs(500, 200).random();

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or(
            "threshold",
            ParameterKind::Number { min: 0.0, max: 255.0 },
            "128.0",
            "Values from it on are inverted.",
        ),
        probability("0.5"),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let threshold = params.read_number("threshold")?;
        let p = params.read_number("p")?;
        Ok(Solarize { field: params.field()?, threshold, p })
    }
}

impl Operator for Solarize {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.colours("solarize", &self.field, &[1, 3])?.clone();
        if field.dtype == FieldDType::F32 && self.threshold > 1.0 {
            return Err(format!(
                "`solarize` of f32 takes a `threshold` from 0 to 1, not {}",
                self.threshold
            ));
        }
        flow.write("solarize", &self.field, in_full_range(field));
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let (whole, threshold) = (input.field()?.dtype == FieldDType::U8, self.threshold);
        Ok(sometimes(self.p, move |value, _, _, _| {
            if whole {
                let threshold = threshold.ceil() as u8;
                vectorised(|| {
                    value.iter_mut().for_each(|x| *x = if *x >= threshold { !*x } else { *x });
                });
            } else {
                let threshold = threshold as f32;
                for to in value.as_chunks_mut::<4>().0 {
                    let x = f32::from_le_bytes(*to);
                    *to = if x >= threshold { 1.0 - x } else { x }.to_le_bytes();
                }
            }
            Ok(())
        }))
    }
}

/// u8 `[h, w, 1 or 3]` -> the same; with probability `p` each value keeps only its upper `bits` bits.
/// Exactly as torchvision's `RandomPosterize`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Posterize {
    pub field: String,
    pub bits: u32,
    pub p: f64,
}

impl OperatorDefinition for Posterize {
    const DECLARATION: OperatorDeclaration =
        with_effect("posterize", 1, OperatorEffect::Value).costs(500, 200).random();

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "bits",
            ParameterKind::Whole { min: 0, max: 8 },
            "Bits of each value that are kept, 0 to 8.",
        ),
        probability("0.5"),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let bits = params.read_whole("bits")?;
        let p = params.read_number("p")?;
        Ok(Posterize { field: params.field()?, bits, p })
    }
}

impl Operator for Posterize {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.image_of("posterize", &self.field, &[FieldDType::U8], &[1, 3])?.clone();
        flow.write("posterize", &self.field, in_full_range(field));
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let mask = !((0xff_u16 >> self.bits) as u8);
        Ok(sometimes(self.p, move |value, _, _, _| {
            value.iter_mut().for_each(|x| *x &= mask);
            Ok(())
        }))
    }
}

#[cfg(feature = "kernels")]
mod kernel {
    use crate::kernels::planes::{self, BLOCK, PixelType};

    /// Sets all channels of RGB pixels to their grey.
    pub(super) fn to_grey<S: PixelType>(pixels: &mut [u8]) {
        let mut grey = [S::Value::default(); BLOCK];
        planes::change::<S>(pixels, |planes| {
            S::grey(planes, &mut grey);
            *planes = [grey; 3];
        });
    }

    /// Writes the greys of RGB pixels.
    pub(super) fn to_one<S: PixelType>(pixels: &[u8], output: &mut [u8]) {
        let mut grey = [S::Value::default(); BLOCK];
        let mut blocks = output.chunks_mut(BLOCK * S::BYTES);
        planes::read::<S>(pixels, |planes| {
            if let Some(block) = blocks.next() {
                S::grey(planes, &mut grey);
                S::store_one(&grey, block);
            }
        });
    }
}
