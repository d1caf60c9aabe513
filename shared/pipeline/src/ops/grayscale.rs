//! `grayscale`: an image loses its colours, or not.

use super::{probability, with_effect};
use crate::{
    Declaration, Effect, FieldSchema, PipelineError, Randomness, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// u8 or f32 `[h, w, 3]` -> the same with three equal channels, `0.2989 r + 0.587 g + 0.114 b` cut to
/// the integer below for u8, with probability `p`; or `[h, w, 1]` with `channels: 1`. As torchvision's
/// `RandomGrayscale` and `Grayscale` on tensors: u8 within 1 of torchvision 0.29, f32 within 1e-6.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grayscale {
    pub field: String,
    /// Probability, 0 to 1; 1 with one channel.
    pub p: f64,
    /// 1 or 3.
    pub channels: u32,
}

impl Operator for Grayscale {
    const DECLARATION: Declaration = Declaration {
        randomness: Randomness::Random,
        ..with_effect("grayscale", 1, Effect::Colour)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let channels = super::channels(params, 3)?;
        let p = probability(params, 1.0)?;
        if channels == 1 && p < 1.0 {
            return Err(params.error(
                "`grayscale` with `channels: 1` changes the shape, so that `p` must be 1; leave \
                 `channels` out",
            ));
        }
        Ok(Grayscale { field: params.field()?, p, channels })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.colours("grayscale", &self.field, &[3])?;
        let mut shape = input.shape.clone();
        shape[2] = Some(self.channels);
        let output = FieldSchema { shape, ..input.clone() };
        flow.write("grayscale", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
