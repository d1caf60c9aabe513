//! An operator of a user: Cutout, which blanks a square of an image (DeVries and Taylor, "Improved
//! Regularization of Convolutional Neural Networks with Cutout", 2017, section 3).
//!
//! Copy this crate, rename it, and have [`operators`] name what is yours. In a pipeline file:
//!
//! ```yaml
//! ops:
//!   - decode
//!   - resize: { size: 32 }
//!   - user_operator.cutout: { size: 16 }
//!   - batch: { size: 64 }
//! ```

use gristmill_executor::{
    ExecError,
    user::{Draw, Operators, Output, UserOperator, View},
};
use gristmill_pipeline::{DType, Declaration, Effect, FieldSchema, Randomness};
use serde::Deserialize;

/// All operators of this crate, for a program to be built with.
///
/// # Errors
/// If two have one name.
pub fn operators() -> Result<Operators, ExecError> {
    Operators::new().with::<Cutout>()
}

/// The parameters of [`Cutout`], as a pipeline file has them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Side of the square in pixels, at least 1.
    size: u32,
    /// Squares; 1 unless given.
    #[serde(default = "one")]
    holes: u32,
}

fn one() -> u32 {
    1
}

/// u8, f16, bf16 or f32 `[h, w, c]` -> the same with `holes` squares of `size` pixels set to 0. Their middles
/// are drawn uniformly from all pixels, so that part of a square may lie outside, as in the paper. Cut from
/// images that are normalised already: 0 is then the mean.
#[derive(Debug)]
pub struct Cutout {
    size: usize,
    holes: u32,
    pixel_bytes: usize,
}

impl UserOperator for Cutout {
    const DECLARATION: Declaration = Declaration {
        randomness: Randomness::Random,
        // A mirrored image may be cut as well as a cut one mirrored; a resized one may not.
        effect: Effect::Window,
        ..Declaration::of_user("user_operator.cutout", 1)
    };

    type Params = Params;

    fn output(params: &Params, input: &FieldSchema) -> Result<FieldSchema, String> {
        let moves = matches!(input.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32);
        let [_, _, Some(_)] = input.shape[..] else {
            return Err("it takes images, [h, w, channels]".into());
        };
        if !moves {
            return Err("it takes u8, f16, bf16 or f32".into());
        }
        if params.size == 0 || params.holes == 0 {
            return Err("`size` and `holes` must be at least 1".into());
        }
        // What is blanked is 0, which may be outside of what the image held before.
        Ok(FieldSchema { range: None, ..input.clone() })
    }

    fn new(Params { size, holes }: Params, input: &FieldSchema) -> Result<Self, String> {
        let channels = input.shape.last().copied().flatten().unwrap_or(1) as usize;
        let value_bytes = input.dtype.size_bytes().unwrap_or(1) as usize;
        Ok(Cutout { size: size as usize, holes, pixel_bytes: channels * value_bytes })
    }

    fn run(&self, input: View<'_>, output: &mut Output<'_>, draw: &mut Draw) -> Result<(), String> {
        let [height, width] = input.size;
        let made = output.image(input.size, input.bytes.len())?;
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
        Ok(())
    }
}

/// Where a square lies along a side of `pixels`, its middle anywhere on it.
fn square(pixels: usize, size: usize, draw: &mut Draw) -> std::ops::Range<usize> {
    let middle = draw.up_to((pixels as u32).saturating_sub(1)) as usize;
    let start = middle.saturating_sub(size / 2);
    let end = (middle + size).saturating_sub(size / 2).min(pixels);
    start..end
}
