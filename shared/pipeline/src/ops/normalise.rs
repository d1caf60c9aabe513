//! `normalise`: pixels become numbers around zero.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, ValueRange, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// u8 or f32 `[h, w, 3]` -> f32 `[h, w, 3]`: `(x / 255 - mean) / std` per channel, computed as one
/// f32 multiplication and one addition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalise {
    pub field: String,
    /// Per channel R, G, B, on the scale 0 to 1.
    pub mean: [f64; 3],
    /// Per channel R, G, B, on the scale 0 to 1.
    pub std: [f64; 3],
}

impl Operator for Normalise {
    const DECLARATION: Declaration = with_effect("normalise", 1, Effect::Value);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        // Beyond these bounds f32 loses what the numbers say.
        let mean = params.require("mean")?;
        let mean = params.numbers("mean", mean, -1e6..=1e6)?;
        let std = params.require("std")?;
        let std = params.numbers("std", std, 1e-6..=1e6)?;
        Ok(Normalise { field: params.field()?, mean, std })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.image("normalise", &self.field, &[DType::U8, DType::F32])?;
        let range = input.range.map(|range| self.range(range));
        let output = FieldSchema { dtype: DType::F32, shape: input.shape.clone(), range };
        flow.write("normalise", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}

impl Normalise {
    /// Per channel the factor and the addend of `x * factor + addend`.
    pub fn affine(&self) -> [(f32, f32); 3] {
        let channel = |c: usize| {
            let (mean, std) = (self.mean[c], self.std[c]);
            ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32)
        };
        [channel(0), channel(1), channel(2)]
    }

    fn range(&self, input: ValueRange) -> ValueRange {
        let at = |x: f64, c: usize| (x / 255.0 - self.mean[c]) / self.std[c];
        let over = |x: f64| (0..3).map(move |c| at(x, c));
        ValueRange {
            min: over(input.min).fold(f64::INFINITY, f64::min),
            max: over(input.max).fold(f64::NEG_INFINITY, f64::max),
        }
    }
}
