//! `color_jitter`: brightness, contrast, saturation and hue of an image change at random.

use super::{interval, probability, with_effect};
use crate::{
    Declaration, Effect, PipelineError, Randomness, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// Largest factor.
const MAX_FACTOR: f64 = 15.9;

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; gray has no hue or saturation. With probability `p` each of the four is
/// drawn uniformly from its bounds, and they are applied in random order. As torchvision's
/// `ColorJitter` on tensors: one change of u8 within 1 of torchvision 0.29, all four within 2 in 99 of 100
/// values (a nearly grey pixel can turn a difference of 1 into another hue); f32 within 1e-5.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColorJitter {
    pub field: String,
    /// Bounds of the factor. Written as one number b: 1 - b, but at least 0, to 1 + b.
    pub brightness: [f64; 2],
    /// As `brightness`: away from the image's mean grey.
    pub contrast: [f64; 2],
    /// As `brightness`: away from each pixel's grey.
    pub saturation: [f64; 2],
    /// Bounds of what is added to the hue, in turns, -0.5 to 0.5. Written as one number h: -h to h.
    pub hue: [f64; 2],
    /// Probability, 0 to 1.
    pub p: f64,
}

impl Operator for ColorJitter {
    const DECLARATION: Declaration = Declaration {
        randomness: Randomness::Random,
        ..with_effect("color_jitter", 1, Effect::Colour)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let mut factor = |key| {
            let around_one = |b: f64| [(1.0 - b).max(0.0), 1.0 + b];
            interval(params, key, Some([1.0, 1.0]), 0.0..=MAX_FACTOR, around_one)
        };
        let brightness = factor("brightness")?;
        let contrast = factor("contrast")?;
        let saturation = factor("saturation")?;
        let hue = interval(params, "hue", Some([0.0, 0.0]), -0.5..=0.5, |h| [-h, h])?;
        let p = probability(params, 1.0)?;
        Ok(ColorJitter { field: params.field()?, brightness, contrast, saturation, hue, p })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let field = flow.colours("color_jitter", &self.field, &[1, 3])?.clone();
        flow.write("color_jitter", &self.field, super::in_full_range(field));
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
