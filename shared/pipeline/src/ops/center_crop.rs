//! `center_crop`: the middle of an image.

use super::{MOVABLE, with_effect};
use crate::{
    Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, schema::widened,
    table::Table,
};
use serde::Serialize;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]`: the middle; a smaller image is
/// surrounded by zeros. Exactly as torchvision's `CenterCrop`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CenterCrop {
    pub field: String,
    /// Height and width in pixels.
    pub size: [u32; 2],
}

impl Operator for CenterCrop {
    const DECLARATION: Declaration = with_effect("center_crop", 1, Effect::Window);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(CenterCrop { size: super::size(params)?, field: params.field()? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.image_of("center_crop", &self.field, MOVABLE, &[1, 3])?;
        let [height, width] = self.size.map(Some);
        let shape = vec![height, width, input.shape[2]];
        let range = input.range.map(|range| widened(range, 0.0));
        flow.write("center_crop", &self.field, FieldSchema { shape, range, dtype: input.dtype });
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
