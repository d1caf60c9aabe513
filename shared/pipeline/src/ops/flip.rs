//! `flip`: an image is mirrored left to right, or not.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, PipelineError, Randomness, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// `[h, w, 1 or 3]` of u8, f16, bf16 or f32 -> the same, mirrored left to right with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    pub field: String,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl Operator for Flip {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..with_effect("flip", 1, Effect::Mirror) };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let p = match params.get("p") {
            Some(node) => params.number("p", node, 0.0..=1.0)?,
            None => 0.5,
        };
        Ok(Flip { field: params.field()?, p })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let dtypes = [DType::U8, DType::F16, DType::BF16, DType::F32];
        let field = flow.image_of("flip", &self.field, &dtypes, &[1, 3])?.clone();
        flow.write("flip", &self.field, field);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
