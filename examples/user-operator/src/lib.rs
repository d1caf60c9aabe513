//! An operator of a user: Cutout, which blanks a square of an image (DeVries and Taylor, "Improved
//! Regularization of Convolutional Neural Networks with Cutout", 2017, section 3).
//!
//! Copy this crate, rename it, and list your own operators in [`operators`]. In a pipeline file:
//!
//! ```yaml
//! ops:
//!   - decode
//!   - resize: { size: 32 }
//!   - user_operator.cutout: { size: 16 }
//!   - batch: { size: 64 }
//! ```

use gristmill_kernel::{
    Kernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, TransformKernel, ValueView,
};
use gristmill_pipeline::{
    FieldDType, FieldSchema, KernelInput, MappingReader, Operator, OperatorDeclaration,
    OperatorDefinition, OperatorEffect, OperatorRegistry, Parameter, ParameterKind, PipelineError,
    Randomness, SchemaFlow, TouchedFields,
    table::{absent, or, required},
};
use serde::Serialize;

/// Largest side of a square, and most squares.
const MAX: u32 = 16_384;

/// The operators of gristmill and those of this crate, to build a program with.
///
/// # Errors
/// Two operators have the same name.
pub fn operators() -> Result<OperatorRegistry, String> {
    gristmill_operators::registry().clone().with::<Cutout>()
}

/// u8, f16, bf16 or f32 `[h, w, c]` -> the same with `holes` squares of `size` pixels set to 0. Their centres
/// are drawn uniformly from all pixels, so part of a square may lie outside, as in the paper. Apply it after
/// `normalise`, where 0 is the mean.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cutout {
    field: String,
    into: Option<String>,
    /// Side of a square, in pixels.
    size: u32,
    /// Number of squares.
    holes: u32,
}

impl OperatorDefinition for Cutout {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        // Cutout commutes with mirroring, but not with resizing.
        effect: OperatorEffect::Window,
        ..OperatorDeclaration::new("user_operator.cutout", 1)
    };

    const PARAMETERS: &'static [Parameter] = &[
        or("field", ParameterKind::Field, "image", "The image."),
        absent(
            "into",
            ParameterKind::Field,
            "A new field for the result; the image itself unless given.",
        ),
        required("size", COUNT, "Side of a square in pixels."),
        or("holes", COUNT, "1", "Number of squares."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = params.field()?;
        let into = params.get("into").map(|node| params.text("into", node)).transpose()?;
        let (size, holes) = (params.read_whole("size")?, params.read_whole("holes")?);
        Ok(Cutout { field, into, size, holes })
    }
}

const COUNT: ParameterKind = ParameterKind::Whole { min: 1, max: MAX as u64 };

impl Operator for Cutout {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let name = Self::DECLARATION.name;
        let input = flow.field(name, &self.field)?;
        let moves = matches!(
            input.dtype,
            FieldDType::U8 | FieldDType::F16 | FieldDType::BF16 | FieldDType::F32
        );
        let [_, _, Some(_)] = input.shape[..] else {
            return Err("it takes images, [h, w, channels]".into());
        };
        if !moves {
            return Err("it takes u8, f16, bf16 or f32".into());
        }
        // Blanked pixels are 0, which may be outside the image's range.
        let output = FieldSchema { range: None, ..input.clone() };
        match &self.into {
            Some(into) => flow.write_new(name, into, output),
            None => {
                flow.write(name, &self.field, output);
                Ok(())
            }
        }
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Derives {
            field: &self.field,
            into: self.into.as_deref().unwrap_or(&self.field),
        }
    }

    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let channels = given.shape.last().copied().flatten().unwrap_or(1) as usize;
        let value_bytes = given.dtype.size_bytes().unwrap_or(1) as usize;
        let (size, holes) = (self.size as usize, self.holes);
        Ok(Kernel::transform(Blank { size, holes, pixel_bytes: channels * value_bytes }))
    }
}

/// The kernel of [`Cutout`].
struct Blank {
    size: usize,
    holes: u32,
    pixel_bytes: usize,
}

impl TransformKernel for Blank {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        _: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let [height, width] = input.size;
        let made = output.take(input.bytes.len())?;
        made.copy_from_slice(input.bytes);
        for _ in 0..self.holes {
            let rows = square(height, self.size, draw);
            let columns = square(width, self.size, draw);
            for row in rows {
                let start = row * width;
                made[(start + columns.start) * self.pixel_bytes
                    ..(start + columns.end) * self.pixel_bytes]
                    .fill(0);
            }
        }
        Ok(OutputSize { bytes: input.bytes.len(), size: input.size })
    }
}

/// The extent of a square along a side of `pixels` pixels, with its centre drawn from them.
fn square(pixels: usize, size: usize, draw: &mut OperatorDraws) -> std::ops::Range<usize> {
    let middle = draw.up_to((pixels as u32).saturating_sub(1)) as usize;
    let start = middle.saturating_sub(size / 2);
    let end = (middle + size).saturating_sub(size / 2).min(pixels);
    start..end
}
