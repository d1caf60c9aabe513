//! Operators as data: what each declares, independent of its parameters.
//!
//! Ordering, caching, cutting and planning read declarations; nothing looks at an operator's name.

use serde::Serialize;

/// Whether equal input gives equal output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Randomness {
    Deterministic,
    /// Output depends on (seed, epoch, record, repeat, copy, ordinal) as well.
    Random,
}

/// How many elements come out for those that go in.
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
pub enum Scope {
    Element,
    Split,
    Global,
}

/// The effect of an operator on its field: it decides which operators it may change places with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing is known: others on the same field stay on their side of it.
    Opaque,
    /// Each value changes by itself.
    Value,
    /// Each pixel changes by itself, its channels together.
    Colour,
    /// Pixels change places.
    Mirror,
    /// The same picture with another number of pixels.
    Resample,
    /// Part of the picture, or the picture with something around it.
    Window,
    /// Pixels move across the picture and its edges.
    Warp,
    /// The element stays as it is, or is left out.
    Select,
}

impl Effect {
    /// Whether pixels change places.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Effect::Mirror | Effect::Resample | Effect::Window | Effect::Warp)
    }

    /// Whether two operators on one field can change places and still mean the same. What is computed
    /// may differ by rounding and interpolation, not by what is in the picture.
    pub fn commutes_with(self, other: Effect) -> bool {
        use Effect::{Colour, Mirror, Opaque, Resample, Select, Value, Warp, Window};
        match (self, other) {
            (Opaque | Select, _) | (_, Opaque | Select) => false,
            // Gray has no hue left to change; a corner filled before is not one filled after.
            (Colour, Colour)
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
pub struct Declaration {
    /// The name used in pipeline files.
    pub name: &'static str,
    /// Counts up whenever the same parameters give other results; part of every fingerprint.
    pub version: u32,
    pub randomness: Randomness,
    pub cardinality: Cardinality,
    /// No operator may be moved across it.
    pub pins_position: bool,
    pub scope: Scope,
    pub effect: Effect,
}

impl Declaration {
    /// Declares what most operators are: deterministic, one element in and one out, movable, and of
    /// unknown effect, so that others on its field stay on their side of it. Name the rest before it:
    /// `Declaration { randomness: Randomness::Random, ..Declaration::new("my_crate.my_op", 1) }`.
    pub const fn new(name: &'static str, version: u32) -> Declaration {
        Declaration {
            name,
            version,
            randomness: Randomness::Deterministic,
            cardinality: Cardinality::OneToOne,
            pins_position: false,
            scope: Scope::Element,
            effect: Effect::Opaque,
        }
    }
}
