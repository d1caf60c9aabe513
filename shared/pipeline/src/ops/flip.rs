//! `flip`: an image is mirrored left to right, or not.

use super::{Fields, MOVABLE, with_effect};
use crate::{
    Declaration, Effect, PipelineError, Randomness, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// `[h, w, 1 or 3]` of u8, f16, bf16 or f32 -> the same, mirrored left to right with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    #[serde(flatten)]
    pub fields: Fields,
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
        Ok(Flip { fields: Fields::parse(params)?, p })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        self.fields.infer("flip", flow, MOVABLE, |given| Ok(given.schema.clone()))
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
