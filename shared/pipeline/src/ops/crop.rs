//! `crop`: a fixed part of an image.

use super::{Fields, Given, MAX_SIDE, MOVABLE, with_effect};
use crate::{
    Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[height, width, c]`, the same part of every image, which
/// must hold it. Exactly as `tf.image.crop_to_bounding_box`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Crop {
    #[serde(flatten)]
    pub fields: Fields,
    pub top: u32,
    pub left: u32,
    pub height: u32,
    pub width: u32,
}

impl Operator for Crop {
    const DECLARATION: Declaration = with_effect("crop", 1, Effect::Window);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let mut corner =
            |key| params.get(key).map_or(Ok(0), |node| params.whole(key, node, 0..=100_000_000));
        let (top, left) = (corner("top")?, corner("left")?);
        let mut side = |key| {
            let node = params.require(key)?;
            params.whole(key, node, 1..=MAX_SIDE)
        };
        let (height, width) = (side("height")?, side("width")?);
        Ok(Crop { fields: Fields::parse(params)?, top, left, height, width })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let Crop { top, left, height, width, .. } = *self;
        self.fields.infer("crop", flow, MOVABLE, |given| {
            let Given { name, schema: input, origin, .. } = given;
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
