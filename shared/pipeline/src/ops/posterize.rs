//! `posterize`: colours become few, or not.

use super::{probability, with_effect};
use crate::{
    DType, Declaration, Effect, PipelineError, Randomness, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8 `[h, w, 1 or 3]` -> the same; with probability `p` only the upper `bits` bits of each value stay.
/// Exactly as torchvision's `RandomPosterize`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Posterize {
    pub field: String,
    /// 0 to 8.
    pub bits: u32,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl Operator for Posterize {
    const DECLARATION: Declaration = Declaration {
        randomness: Randomness::Random,
        ..with_effect("posterize", 1, Effect::Value)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let bits = params.require("bits")?;
        let bits = params.whole("bits", bits, 0..=8)?;
        let p = probability(params, 0.5)?;
        Ok(Posterize { field: params.field()?, bits, p })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let field = flow.image_of("posterize", &self.field, &[DType::U8], &[1, 3])?.clone();
        flow.write("posterize", &self.field, super::in_full_range(field));
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
