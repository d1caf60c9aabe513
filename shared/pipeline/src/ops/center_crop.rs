//! `center_crop`: the middle of an image.

use super::{Fields, MOVABLE, check_fill, with_effect};
use crate::{
    Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, schema::widened,
    table::Table,
};
use serde::Serialize;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]`: the middle; a smaller image is
/// surrounded by zeros. Exactly as torchvision's `CenterCrop`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CenterCrop {
    #[serde(flatten)]
    pub fields: Fields,
    /// Height and width in pixels.
    pub size: [u32; 2],
}

impl Operator for CenterCrop {
    const DECLARATION: Declaration = with_effect("center_crop", 1, Effect::Window);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(CenterCrop { size: super::size(params)?, fields: Fields::parse_filled(params)? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let [height, width] = self.size.map(Some);
        self.fields.infer("center_crop", flow, MOVABLE, |given| {
            let input = given.schema;
            let fill = given.fill(0.0);
            check_fill("center_crop", input, fill)?;
            let shape = vec![height, width, input.shape[2]];
            let range = input.range.map(|range| widened(range, fill));
            Ok(FieldSchema { shape, range, dtype: input.dtype })
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
