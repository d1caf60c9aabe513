//! `resize`: an image of any size becomes one of a given size.

use super::{Fields, with_effect};
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8 `[h, w, 1 or 3]` -> u8 `[size[0], size[1], c]`, bilinear. With `antialias` every source pixel
/// under the (then wider) triangle counts, as in Pillow; without, the nearest four.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resize {
    #[serde(flatten)]
    pub fields: Fields,
    /// Height and width in pixels.
    pub size: [u32; 2],
    pub antialias: bool,
}

impl Operator for Resize {
    const DECLARATION: Declaration = with_effect("resize", 1, Effect::Resample);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let size = super::size(params)?;
        let antialias = params.bool("antialias", true)?;
        Ok(Resize { fields: Fields::parse(params)?, size, antialias })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let [height, width] = self.size.map(Some);
        self.fields.infer("resize", flow, &[DType::U8], |given| {
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
