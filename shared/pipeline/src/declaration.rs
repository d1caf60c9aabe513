//! Declarations of operators as data, independent of their parameters.
//!
//! Passes and policies rely on declarations and never on an operator's name.

use crate::{ElementSchema, PipelineStage, TouchedFields};

use gristmill_model::DeclaredCost;
use serde::Serialize;

/// Whether equal input gives equal output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Randomness {
    Deterministic,
    /// The output also depends on (seed, epoch, record, repeat, copy, ordinal).
    Random,
}

/// How many elements an operator makes of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cardinality {
    OneToOne,
    Filter,
    OneToMany,
    Batch,
}

/// How much of the dataset an operator must see at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorScope {
    Element,
    Split,
    Global,
}

/// The effect of an operator on its field, which decides with which operators it commutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorEffect {
    /// Unknown effect: other operators on the same field cannot move across it.
    Opaque,
    /// Changes each value on its own.
    Value,
    /// Changes each pixel on its own, with its channels together.
    Colour,
    /// Permutes the pixels of the image.
    Mirror,
    /// Changes the resolution of the image.
    Resample,
    /// Cuts out a part of the image, or adds a border.
    Window,
    /// Moves pixels across the image and its edges.
    Warp,
    /// Keeps or drops the element without changing it.
    Select,
}

impl OperatorEffect {
    /// Whether the effect moves pixels.
    pub(crate) fn moves(self) -> bool {
        matches!(
            self,
            OperatorEffect::Mirror
                | OperatorEffect::Resample
                | OperatorEffect::Window
                | OperatorEffect::Warp
        )
    }

    /// Whether two operators on one field can swap without changing the meaning. Values may then
    /// differ by rounding and interpolation, but the image shows the same.
    pub fn commutes_with(self, other: OperatorEffect) -> bool {
        use OperatorEffect::{Colour, Mirror, Opaque, Resample, Select, Value, Warp, Window};
        match (self, other) {
            (Opaque | Select, _) | (_, Opaque | Select) => false,
            // Gray has no hue to change, and a corner filled before a change differs from one
            // filled after. Two functions of a value seldom commute: a threshold is on the scale of its input.
            (Colour, Colour)
            | (Value, Value)
            | (Value, Warp)
            | (Warp, Value)
            | (Value, Colour)
            | (Colour, Value) => false,
            (Window, Value | Colour | Mirror) | (Value | Colour | Mirror, Window) => true,
            (Window, Window | Resample | Warp) | (Resample | Warp, Window) => false,
            (
                Value | Colour | Mirror | Resample | Warp,
                Value | Colour | Mirror | Resample | Warp,
            ) => true,
        }
    }
}

/// The declaration of an operator, independent of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OperatorDeclaration {
    /// The name used in pipeline files.
    pub name: &'static str,
    /// Increases when the same parameters give other results; part of every fingerprint.
    pub version: u32,
    pub randomness: Randomness,
    pub cardinality: Cardinality,
    /// Prevents other operators from moving across it.
    pub pins_position: bool,
    pub scope: OperatorScope,
    pub effect: OperatorEffect,
    /// With usual parameters.
    pub cost: DeclaredCost,
}

impl OperatorDeclaration {
    /// The defaults fit most operators: deterministic, one element in and one out, movable, and of
    /// unknown effect, so that other operators on its field cannot move across it. Override others
    /// like this: `OperatorDeclaration { effect: OperatorEffect::Value,
    /// ..OperatorDeclaration::new("my_crate.my_op", 1) }`.
    pub const fn new(name: &'static str, version: u32) -> OperatorDeclaration {
        OperatorDeclaration {
            name,
            version,
            randomness: Randomness::Deterministic,
            cardinality: Cardinality::OneToOne,
            pins_position: false,
            scope: OperatorScope::Element,
            effect: OperatorEffect::Opaque,
            cost: DeclaredCost::UNKNOWN,
        }
    }

    /// Declares that it draws.
    #[must_use]
    pub const fn random(mut self) -> OperatorDeclaration {
        self.randomness = Randomness::Random;
        self
    }

    /// Declares nanoseconds an element, and picoseconds a byte that it reads.
    #[must_use]
    pub const fn costs(mut self, element_ns: u64, byte_ps: u64) -> OperatorDeclaration {
        self.cost = DeclaredCost::new(element_ns, byte_ps);
        self
    }
}

// Pairs of operators that give the same bytes in either order, for every input and all parameters.
// By default nothing else changes places on a field. A test of the executor runs each operator
// that declares one of these effects in both orders.

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
