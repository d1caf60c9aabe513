//! Pairs of operators that give the same bytes in either order, for every input and all parameters.
//!
//! By default nothing else changes places on a field. A test of the executor runs each operator that
//! declares one of these effects in both orders.

use crate::{ElementSchema, PipelineStage, TouchedFields};

/// The effect of an operator on its images, as far as it is exact to the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExactEffect {
    /// Anything else: the operator keeps its place.
    Unknown,
    /// A pixel of the output depends on the same pixel of the input and on draws for the whole
    /// image, and height and width stay.
    EachPixel,
    /// The same pixels in another order, which depends on height, width and draws.
    Mirror,
    /// Some of the pixels in the same order, chosen by height, width and draws; no border is added.
    Cut,
}

/// Effects of which either may come first.
const PAIRS: [[ExactEffect; 2]; 2] =
    [[ExactEffect::EachPixel, ExactEffect::Mirror], [ExactEffect::EachPixel, ExactEffect::Cut]];

impl ExactEffect {
    /// Whether two operators on one image can swap and give the same bytes.
    pub fn commutes_with(self, other: ExactEffect) -> bool {
        PAIRS.contains(&[self, other]) || PAIRS.contains(&[other, self])
    }
}

impl PipelineStage {
    /// Its exact effect on the images that it replaces or moves, in elements of schema `input`.
    pub(crate) fn exact_effect(&self, input: &ElementSchema) -> ExactEffect {
        let field = self.op.field().and_then(|field| input.field(field));
        match (self.op.fields(), field) {
            (TouchedFields::Replaces(_) | TouchedFields::Together(_), Some(field)) => {
                self.op.exact_effect(field)
            }
            _ => ExactEffect::Unknown,
        }
    }
}
