//! `grayscale`: removes the colours of an image, with a probability.

#[cfg(feature = "kernels")]
use crate::kernels::planes::{F32Pixels, U8Pixels};
use crate::prelude::*;

/// u8 or f32 `[h, w, 3]` -> the same with three equal channels, `0.2989 r + 0.587 g + 0.114 b` (rounded
/// down for u8), with probability `p`; or `[h, w, 1]` with `channels: 1`. As torchvision's
/// `RandomGrayscale` and `Grayscale` on tensors: u8 within 1 of torchvision 0.29, f32 within 1e-6.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grayscale {
    pub field: String,
    /// Probability, 0 to 1; 1 with one channel.
    pub p: f64,
    /// 1 or 3.
    pub channels: u32,
}

impl OperatorDefinition for Grayscale {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("grayscale", 1, OperatorEffect::Colour).costs(1_000, 700)
    };

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or("channels", ParameterKind::Choice(&["1", "3"]), "3", "1 or 3."),
        or(
            "p",
            ParameterKind::Number { min: 0.0, max: 1.0 },
            "1.0",
            "Probability, 0 to 1; 1 with one channel.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let channels = channels::<Self>(params)?;
        let p = real::<Self>(params, "p")?;
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

#[cfg(feature = "kernels")]
mod kernel {
    //! `grayscale`: three equal channels, or one.

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
