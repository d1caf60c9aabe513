//! `solarize`: bright pixels become their negative, or not.

use super::{number, probability, with_effect};
use crate::{
    DType, Declaration, Effect, PipelineError, Randomness, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; with probability `p` every value of at
/// least `threshold` becomes 255 (1) minus itself. Exactly as torchvision's `RandomSolarize`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Solarize {
    pub field: String,
    pub threshold: f64,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl Operator for Solarize {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..with_effect("solarize", 1, Effect::Value) };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let threshold = number(params, "threshold", 128.0, 0.0..=255.0)?;
        let p = probability(params, 0.5)?;
        Ok(Solarize { field: params.field()?, threshold, p })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let field = flow.colours("solarize", &self.field, &[1, 3])?.clone();
        if field.dtype == DType::F32 && self.threshold > 1.0 {
            return Err(format!(
                "`solarize` of f32 takes a `threshold` from 0 to 1, not {}",
                self.threshold
            ));
        }
        flow.write("solarize", &self.field, super::in_full_range(field));
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
