//! `random_resized_crop`: a random part of an image, resized.

use super::{Fields, with_effect};
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, Randomness, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// u8 `[h, w, 1 or 3]` -> u8 `[size[0], size[1], c]`: a rectangle of random area and aspect ratio at a
/// random place, resized as `resize` does. Chosen as torchvision's `RandomResizedCrop`: ten tries,
/// then the largest centred rectangle within the ratio bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomResizedCrop {
    #[serde(flatten)]
    pub fields: Fields,
    /// Height and width in pixels.
    pub size: [u32; 2],
    /// Bounds of the area, as a fraction of the image's; 0 < low <= high <= 1.
    pub scale: [f64; 2],
    /// Bounds of width / height; drawn uniformly in its logarithm; 0 < low <= high.
    pub ratio: [f64; 2],
    pub antialias: bool,
}

impl Operator for RandomResizedCrop {
    const DECLARATION: Declaration = Declaration {
        randomness: Randomness::Random,
        ..with_effect("random_resized_crop", 1, Effect::Window)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let size = super::size(params)?;
        let scale = bounds(params, "scale", [0.08, 1.0], 1.0)?;
        // torchvision's 3/4 and 4/3.
        let ratio = bounds(params, "ratio", [0.75, 1.3333333333333333], 1e6)?;
        let antialias = params.bool("antialias", true)?;
        Ok(RandomResizedCrop { fields: Fields::parse(params)?, size, scale, ratio, antialias })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let [height, width] = self.size.map(Some);
        self.fields.infer("random_resized_crop", flow, &[DType::U8], |given| {
            let shape = vec![height, width, given.schema.shape[2]];
            Ok(FieldSchema { shape, ..given.schema.clone() })
        })
    }

    fn field(&self) -> Option<&str> {
        Some(&self.fields.field)
    }

    fn together(&self) -> Option<&Fields> {
        Some(&self.fields)
    }

    fn together_mut(&mut self) -> Option<&mut Fields> {
        Some(&mut self.fields)
    }
}

/// `[low, high]` with 0 < low <= high <= `most`.
fn bounds(
    params: &mut Table<'_>,
    key: &'static str,
    default: [f64; 2],
    most: f64,
) -> Result<[f64; 2], PipelineError> {
    let Some(node) = params.get(key) else { return Ok(default) };
    let [low, high] = params.numbers(key, node, 0.0..=most)?;
    // Below this an area has no pixel and a ratio no sense; logarithms stay tame.
    if low < 1e-6 || low > high {
        return Err(node.error(format!(
            "`random_resized_crop` `{key}` must be [low, high] with 0.000001 <= low <= high, \
             not [{low}, {high}]"
        )));
    }
    Ok([low, high])
}
