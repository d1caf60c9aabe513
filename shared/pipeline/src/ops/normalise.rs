//! `normalise`: pixels become numbers around zero.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, ValueRange, flow::Flow, node::Value,
    op::Operator, table::Table,
};
use serde::Serialize;
use std::ops::RangeInclusive;

/// u8 or f32 `[h, w, 3]` -> f32 `[h, w, 3]`: `(x / 255 - mean) / std` per channel, computed as one
/// f32 multiplication and one addition. Grey `[h, w, 1]` with one mean and one std.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalise {
    pub field: String,
    /// Per channel R, G, B, or one for grey, on the scale 0 to 1.
    pub mean: Vec<f64>,
    /// As many as `mean`, on the scale 0 to 1.
    pub std: Vec<f64>,
}

impl Operator for Normalise {
    const DECLARATION: Declaration = with_effect("normalise", 1, Effect::Value);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        // Beyond these bounds f32 loses what the numbers say.
        let mean = per_channel(params, "mean", -1e6..=1e6)?;
        let std = per_channel(params, "std", 1e-6..=1e6)?;
        if mean.len() != std.len() {
            return Err(params.error("`normalise` needs as many numbers in `std` as in `mean`"));
        }
        Ok(Normalise { field: params.field()?, mean, std })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let channels = self.mean.len() as u32;
        let dtypes = [DType::U8, DType::F32];
        let input = flow.image_of("normalise", &self.field, &dtypes, &[channels])?;
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
    pub fn affine(&self) -> Vec<(f32, f32)> {
        let channels = self.mean.iter().zip(&self.std);
        let affine =
            |(mean, std): (&f64, &f64)| ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32);
        channels.map(affine).collect()
    }

    fn range(&self, input: ValueRange) -> ValueRange {
        let at = |x: f64, c: usize| (x / 255.0 - self.mean[c]) / self.std[c];
        let over = |x: f64| (0..self.mean.len()).map(move |c| at(x, c));
        ValueRange {
            min: over(input.min).fold(f64::INFINITY, f64::min),
            max: over(input.max).fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// `key`: three numbers, or one for grey, alone or in a list.
fn per_channel(
    params: &mut Table<'_>,
    key: &'static str,
    range: RangeInclusive<f64>,
) -> Result<Vec<f64>, PipelineError> {
    let node = params.require(key)?;
    Ok(match &node.value {
        Value::Seq(items) if items.len() == 1 => params.numbers::<1>(key, node, range)?.to_vec(),
        Value::Seq(_) => params.numbers::<3>(key, node, range)?.to_vec(),
        _ => vec![params.number(key, node, range)?],
    })
}
