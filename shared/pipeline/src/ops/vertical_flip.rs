//! `vertical_flip`: an image is turned upside down, or not.

use super::{Fields, MOVABLE, probability, with_effect};
use crate::{
    Declaration, Effect, PipelineError, Randomness, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same, mirrored top to bottom with probability `p`.
/// Exactly as torchvision's `RandomVerticalFlip`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerticalFlip {
    #[serde(flatten)]
    pub fields: Fields,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl Operator for VerticalFlip {
    const DECLARATION: Declaration = Declaration {
        randomness: Randomness::Random,
        ..with_effect("vertical_flip", 1, Effect::Mirror)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(VerticalFlip { p: probability(params, 0.5)?, fields: Fields::parse(params)? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        self.fields.infer("vertical_flip", flow, MOVABLE, |given| Ok(given.schema.clone()))
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
