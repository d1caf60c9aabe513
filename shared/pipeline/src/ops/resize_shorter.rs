//! `resize_shorter`: an image keeps its aspect ratio, and its shorter side becomes a given length.

use super::{Fields, MAX_SIDE, with_effect};
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8 `[h, w, 1 or 3]` -> u8 `[h', w', c]` whose shorter side is `size` and whose longer one is the integer
/// below `size * longer / shorter`, resized as `resize` does. As torchvision's `Resize` with one number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResizeShorter {
    #[serde(flatten)]
    pub fields: Fields,
    /// The shorter side in pixels.
    pub size: u32,
    pub antialias: bool,
}

impl Operator for ResizeShorter {
    const DECLARATION: Declaration = with_effect("resize_shorter", 1, Effect::Resample);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let size = params.require("size")?;
        let size = params.whole("size", size, 1..=MAX_SIDE)?;
        let antialias = params.bool("antialias", true)?;
        Ok(ResizeShorter { fields: Fields::parse(params)?, size, antialias })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        self.fields.infer("resize_shorter", flow, &[DType::U8], |given| {
            let input = given.schema;
            let mut shape = vec![None, None, input.shape[2]];
            if let [Some(height), Some(width), _] = input.shape[..] {
                let size = self.output_size([height, width])?;
                (shape[0], shape[1]) = (Some(size[0]), Some(size[1]));
            }
            Ok(FieldSchema { shape, ..input.clone() })
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

impl ResizeShorter {
    /// Height and width of what an image becomes; an error if it is longer than any image may be.
    pub fn output_size(&self, [height, width]: [u32; 2]) -> Result<[u32; 2], String> {
        let (shorter, longer) = (height.min(width).max(1), height.max(width));
        let long = u64::from(self.size) * u64::from(longer) / u64::from(shorter);
        let long = u32::try_from(long).ok().filter(|long| *long <= MAX_SIDE);
        let long = long.ok_or_else(|| {
            format!("{width} x {height} resized would be longer than {MAX_SIDE} pixels")
        })?;
        Ok(if height <= width { [self.size, long] } else { [long, self.size] })
    }
}
