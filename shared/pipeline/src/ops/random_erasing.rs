//! `random_erasing`: a random rectangle of an image is blotted out, or not.

use super::{MOVABLE, check_fill, element_wise, interval, number, probability};
use crate::{
    Declaration, FieldSchema, PipelineError, Randomness, flow::Flow, op::Operator, schema::widened,
    table::Table,
};
use serde::Serialize;

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same; with probability `p` a rectangle of random area
/// and aspect ratio at a random place becomes `value`. Chosen as torchvision's `RandomErasing`: ten
/// tries, then none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomErasing {
    pub field: String,
    /// Probability, 0 to 1.
    pub p: f64,
    /// Bounds of the area, as a fraction of the image's.
    pub scale: [f64; 2],
    /// Bounds of height / width; drawn uniformly in its logarithm.
    pub ratio: [f64; 2],
    pub value: f64,
}

impl Operator for RandomErasing {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..element_wise("random_erasing", 1) };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let p = probability(params, 0.5)?;
        let scale = interval(params, "scale", Some([0.02, 0.33]), 0.0..=1.0, |s| [s, s])?;
        let ratio = interval(params, "ratio", Some([0.3, 3.3]), 1e-6..=1e6, |r| [r, r])?;
        let value = number(params, "value", 0.0, -1e9..=1e9)?;
        Ok(RandomErasing { field: params.field()?, p, scale, ratio, value })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.image_of("random_erasing", &self.field, MOVABLE, &[1, 3])?;
        check_fill("random_erasing", input, self.value)?;
        let range = input.range.map(|range| widened(range, self.value));
        let output = FieldSchema { range, ..input.clone() };
        flow.write("random_erasing", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
