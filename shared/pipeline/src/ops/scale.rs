//! `scale`: numbers times a factor, plus an offset.

use super::{number, with_effect};
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, ValueRange, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// Any shape of u8, f16, bf16 or f32 -> f32: `x * factor + offset`, by default u8 0 to 255 to f32 0 to 1.
/// One f32 multiplication and one addition: within 1e-6 of torchvision's `ToDtype(scale=True)`, which
/// divides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    pub field: String,
    pub factor: f64,
    pub offset: f64,
}

impl Operator for Scale {
    const DECLARATION: Declaration = with_effect("scale", 1, Effect::Value);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let factor = number(params, "factor", 1.0 / 255.0, -1e9..=1e9)?;
        let offset = number(params, "offset", 0.0, -1e9..=1e9)?;
        Ok(Scale { field: params.field()?, factor, offset })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("scale", &self.field)?;
        if !matches!(input.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32) {
            let advice = match input.dtype {
                DType::Bytes => "put `decode` before it",
                _ => "put `cast: { dtype: f32 }` before it",
            };
            let (field, origin) = (&self.field, flow.origin(&self.field));
            return Err(format!(
                "`scale` needs u8, f16, bf16 or f32, but `{field}` is {input}{origin}; {advice}"
            ));
        }
        let range = input.range.map(|ValueRange { min, max }| {
            let ends = [min, max].map(|x| x * self.factor + self.offset);
            ValueRange { min: ends[0].min(ends[1]), max: ends[0].max(ends[1]) }
        });
        let output = FieldSchema { dtype: DType::F32, shape: input.shape.clone(), range };
        flow.write("scale", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
