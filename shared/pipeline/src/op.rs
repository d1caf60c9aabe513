//! Operators as data: what each declares, and the set of them.
//!
//! Ordering, caching, cutting and planning read declarations; nothing looks at an operator's name.

use crate::{Asset, Batching, PipelineError, flow::Flow, ops, table::Table};
use gristmill_model::DatasetOp;
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

/// What an operator does to its field, as far as that tells which operators it may change places
/// with.
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

/// What an operator declares of itself, whatever its parameters.
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

/// What every operator's file provides.
pub(crate) trait Operator: Sized {
    const DECLARATION: Declaration;

    /// Reads the parameters and fills in defaults.
    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError>;

    /// Turns the schema of its input into that of its output, or says why it cannot.
    fn infer(&self, flow: &mut Flow) -> Result<(), String>;

    /// The field it reads; none if it leaves all fields alone.
    fn field(&self) -> Option<&str>;

    /// The field it writes: the one it reads, unless it makes another. None if it writes several.
    fn output(&self) -> Option<&str> {
        self.field()
    }

    /// Every field it writes.
    fn outputs(&self) -> Vec<&str> {
        match self.together() {
            Some(fields) => fields.all().collect(),
            None => self.output().into_iter().collect(),
        }
    }

    /// The fields it moves with one draw, if that is what it does.
    fn together(&self) -> Option<&ops::Fields> {
        None
    }

    /// The same, for saying more of them.
    fn together_mut(&mut self) -> Option<&mut ops::Fields> {
        None
    }

    /// How it makes batches of elements, if it does.
    fn batching(&self) -> Option<Batching> {
        None
    }

    /// What it does to the sequence of records, if that is what it works on.
    fn dataset(&self) -> Option<DatasetOp> {
        None
    }

    /// The file it needs beside the pipeline, if it does.
    fn asset(&self) -> Option<&Asset> {
        None
    }

    /// The same, to be replaced by another name of it.
    fn asset_mut(&mut self) -> Option<&mut Asset> {
        None
    }
}

macro_rules! operators {
    ($($name:ident),* $(,)?) => {
        /// An operator with its parameters. Serialises as its parameters alone.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[non_exhaustive]
        pub enum Op {
            $($name(ops::$name),)*
            /// An operator of a user.
            Custom(ops::Custom),
        }

        impl Op {
            /// What each of our operators declares, in the order of the documentation.
            pub const DECLARATIONS: &[Declaration] =
                &[$(<ops::$name as Operator>::DECLARATION,)*];

            /// What this operator declares.
            pub fn declaration(&self) -> &'static Declaration {
                match self {
                    $(Op::$name(_) => const { &<ops::$name as Operator>::DECLARATION },)*
                    Op::Custom(op) => op.declaration(),
                }
            }

            /// The field it reads; none if it leaves all fields alone.
            pub fn field(&self) -> Option<&str> {
                match self {
                    $(Op::$name(op) => op.field(),)*
                    Op::Custom(op) => Some(&op.field),
                }
            }

            /// The field it writes: the one it reads, unless it makes another. None if it writes
            /// several.
            pub fn output(&self) -> Option<&str> {
                match self {
                    $(Op::$name(op) => op.output(),)*
                    Op::Custom(op) => Some(op.target()),
                }
            }

            /// Every field it writes.
            pub fn outputs(&self) -> Vec<&str> {
                match self {
                    $(Op::$name(op) => op.outputs(),)*
                    Op::Custom(op) => vec![op.target()],
                }
            }

            /// The fields it moves with one draw, if that is what it does.
            pub fn together(&self) -> Option<&ops::Fields> {
                match self {
                    $(Op::$name(op) => op.together(),)*
                    Op::Custom(_) => None,
                }
            }

            fn together_mut(&mut self) -> Option<&mut ops::Fields> {
                match self {
                    $(Op::$name(op) => op.together_mut(),)*
                    Op::Custom(_) => None,
                }
            }

            /// How it makes batches of elements, if it does.
            pub fn batching(&self) -> Option<Batching> {
                match self {
                    $(Op::$name(op) => op.batching(),)*
                    Op::Custom(_) => None,
                }
            }

            /// The file it needs beside the pipeline, if it does.
            pub fn asset(&self) -> Option<&Asset> {
                match self {
                    $(Op::$name(op) => op.asset(),)*
                    Op::Custom(_) => None,
                }
            }

            pub(crate) fn asset_mut(&mut self) -> Option<&mut Asset> {
                match self {
                    $(Op::$name(op) => op.asset_mut(),)*
                    Op::Custom(_) => None,
                }
            }

            /// What it does to the sequence of records, if that is what it works on.
            pub fn dataset(&self) -> Option<DatasetOp> {
                match self {
                    $(Op::$name(op) => op.dataset(),)*
                    Op::Custom(_) => None,
                }
            }

            /// The operator called `name`, if there is one.
            pub(crate) fn parse(
                name: &str,
                params: &mut Table<'_>,
            ) -> Option<Result<Op, PipelineError>> {
                $(if name == <ops::$name as Operator>::DECLARATION.name {
                    return Some(<ops::$name as Operator>::parse(params).map(Op::$name));
                })*
                None
            }

            pub(crate) fn infer(&self, flow: &mut Flow) -> Result<(), String> {
                match self {
                    $(Op::$name(op) => op.infer(flow),)*
                    Op::Custom(op) => op.infer(flow),
                }
            }
        }
    };
}

operators!(
    Take,
    Skip,
    Repeat,
    Interleave,
    Shuffle,
    InOrder,
    Decode,
    Resize,
    ResizeShorter,
    CenterCrop,
    RandomCrop,
    Crop,
    Pad,
    RandomResizedCrop,
    Flip,
    VerticalFlip,
    Rotate,
    Shear,
    ColorJitter,
    Grayscale,
    GaussianBlur,
    Solarize,
    Posterize,
    RandomErasing,
    Scale,
    Clip,
    Normalise,
    Standardise,
    Cast,
    Layout,
    OneHot,
    Length,
    Truncate,
    PadSequence,
    Tokenise,
    ParseJson,
    ParseCsv,
    ParseExample,
    CopyField,
    DropFields,
    Filter,
    Duplicate,
    FlatMap,
    Batch,
    PaddedBatch,
    BucketBySequenceLength,
    Autocache,
    Sleep,
    Inflate,
);

impl Op {
    /// The place to cache that it is, if it is one.
    pub fn cache_point(&self) -> Option<&ops::Autocache> {
        match self {
            Op::Autocache(op) => Some(op),
            _ => None,
        }
    }

    /// The same for one of the images that it moves alone.
    #[must_use]
    pub fn only(&self, image: &str) -> Op {
        let mut op = self.clone();
        if let Some(fields) = op.together_mut() {
            *fields = fields.only(image);
        }
        op
    }

    /// Settles what depends on how its fields were made.
    pub(crate) fn settle(&mut self, flow: &Flow) {
        if let Some(fields) = self.together_mut() {
            fields.find_masks(flow);
        }
    }

    /// The name used in pipeline files.
    pub fn name(&self) -> &'static str {
        self.declaration().name
    }

    /// Name and version, as the canonical form has them.
    pub fn identity(&self) -> (&str, u32) {
        match self {
            Op::Custom(op) => (&op.name, op.version),
            other => (other.declaration().name, other.declaration().version),
        }
    }
}

/// An operator in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    pub op: Op,
    /// Place in the graph as its author wrote it, from 0: keys the randomness of the operator, so
    /// that moving it does not change what it draws. Places to cache do not count: theirs go down
    /// from `MAX_OPS`, so that adding one changes no draw.
    pub ordinal: u32,
    /// The author forbids moving it.
    pub keep_position: bool,
    /// The author vouches that it may change places with any operator of its field. Says nothing about
    /// results, and so is not part of the canonical form.
    pub assume_commutes: bool,
    /// Line of the pipeline file; none when read from the canonical form.
    pub line: Option<u32>,
}
