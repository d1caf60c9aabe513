//! `resize`: an image of any size becomes one of a given size.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8 `[h, w, 1 or 3]` -> u8 `[size[0], size[1], c]`, bilinear. With `antialias` every source pixel
/// under the (then wider) triangle counts, as in Pillow; without, the nearest four.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resize {
    pub field: String,
    /// Height and width in pixels.
    pub size: [u32; 2],
    pub antialias: bool,
}

impl Operator for Resize {
    const DECLARATION: Declaration = with_effect("resize", 1, Effect::Resample);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let size = super::size(params)?;
        let antialias = params.bool("antialias", true)?;
        Ok(Resize { field: params.field()?, size, antialias })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.image_of("resize", &self.field, &[DType::U8], &[1, 3])?;
        let [height, width] = self.size.map(Some);
        let output = FieldSchema { shape: vec![height, width, input.shape[2]], ..input.clone() };
        flow.write("resize", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
