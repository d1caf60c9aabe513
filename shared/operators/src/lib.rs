//! The operators, one file each: parameters, schema, declaration, kernel and their tests.
//!
//! [`registry`] lists them. The feature `kernels` adds the kernels; a program that only plans jobs leaves
//! it off, and links neither decoders nor resizers.

pub mod describe;
#[cfg(feature = "kernels")]
mod kernels;
mod parameters;
mod prelude;

/// Operators that make batches of elements.
mod batch {
    pub mod bucket_by_sequence_length;
    pub mod padded_batch;
    pub mod plain;
}

/// Operators on the sequence of records.
mod dataset {
    pub mod in_order;
    pub mod interleave;
    pub mod repeat;
    pub mod shuffle;
    pub mod skip;
    pub mod take;
}

/// Operators on whole elements.
mod element {
    pub mod autocache;
    pub mod copy_field;
    pub mod drop_fields;
    pub mod duplicate;
    pub mod filter;
    pub mod flat_map;
    pub mod inflate;
    pub mod sleep;
}

/// Operators on images.
mod image {
    pub mod center_crop;
    pub mod color_jitter;
    pub mod crop;
    pub mod decode;
    pub mod flip;
    pub mod gaussian_blur;
    pub mod grayscale;
    pub mod pad;
    pub mod posterize;
    pub mod random_crop;
    pub mod random_erasing;
    pub mod random_resized_crop;
    pub mod resize;
    pub mod resize_shorter;
    pub mod rotate;
    pub mod shear;
    pub mod solarize;
    pub mod turn;
    pub mod vertical_flip;
}

/// Operators on individual numbers.
mod number {
    pub mod cast;
    pub mod clip;
    pub mod layout;
    pub mod normalise;
    pub mod one_hot;
    pub mod scale;
    pub mod standardise;
}

/// Operators that extract several fields from one byte string.
mod parse {
    pub mod parse_csv;
    pub mod parse_example;
    pub mod parse_json;
    pub mod parsing;
}

/// Operators on sequences.
mod sequence {
    pub mod length;
    pub mod pad_sequence;
    pub mod tokenise;
    pub mod truncate;
}

pub use element::sleep::SleepPer;
pub use image::decode::DecodeMode;
pub use image::turn::{AngleBounds, Interpolation, RotateOrShear, WarpAngle};
#[cfg(feature = "kernels")]
pub use kernels::floor;
pub use number::cast::CastDType;
pub use number::layout::DimensionOrder;
pub use sequence::tokenise::TokenDType;

use gristmill_pipeline::{OperatorRegistry, Pipeline, PipelineError};
use std::sync::LazyLock;

/// Exports the operators, and lists them in the order of the documentation.
macro_rules! operators {
    ($($group:ident::$file:ident::$name:ident),+ $(,)?) => {
        $(pub use $group::$file::$name;)+

        static REGISTRY: LazyLock<OperatorRegistry> =
            LazyLock::new(|| OperatorRegistry::new()$(.and::<$name>())+);
    };
}

operators! {
    dataset::take::Take,
    dataset::skip::Skip,
    dataset::repeat::Repeat,
    dataset::interleave::Interleave,
    dataset::shuffle::Shuffle,
    dataset::in_order::InOrder,
    image::decode::Decode,
    image::resize::Resize,
    image::resize_shorter::ResizeShorter,
    image::center_crop::CenterCrop,
    image::random_crop::RandomCrop,
    image::crop::Crop,
    image::pad::Pad,
    image::random_resized_crop::RandomResizedCrop,
    image::flip::Flip,
    image::vertical_flip::VerticalFlip,
    image::rotate::Rotate,
    image::shear::Shear,
    image::color_jitter::ColorJitter,
    image::grayscale::Grayscale,
    image::gaussian_blur::GaussianBlur,
    image::solarize::Solarize,
    image::posterize::Posterize,
    image::random_erasing::RandomErasing,
    number::scale::Scale,
    number::clip::Clip,
    number::normalise::Normalise,
    number::standardise::Standardise,
    number::cast::Cast,
    number::layout::Layout,
    number::one_hot::OneHot,
    sequence::length::Length,
    sequence::truncate::Truncate,
    sequence::pad_sequence::PadSequence,
    sequence::tokenise::Tokenise,
    parse::parse_json::ParseJson,
    parse::parse_csv::ParseCsv,
    parse::parse_example::ParseExample,
    element::copy_field::CopyField,
    element::drop_fields::DropFields,
    element::filter::Filter,
    element::duplicate::Duplicate,
    element::flat_map::FlatMap,
    batch::plain::PlainBatch,
    batch::padded_batch::PaddedBatch,
    batch::bucket_by_sequence_length::BucketBySequenceLength,
    element::autocache::Autocache,
    element::sleep::Sleep,
    element::inflate::Inflate,
}

/// All operators of this project.
pub fn registry() -> &'static OperatorRegistry {
    &REGISTRY
}

/// Parses a pipeline file with the operators of this project.
///
/// # Errors
/// As [`Pipeline::parse`].
pub fn parse(yaml: &str) -> Result<Pipeline, PipelineError> {
    Pipeline::parse(yaml, registry())
}

/// Parses the canonical form of a pipeline with the operators of this project. User operators then have no
/// kernels.
///
/// # Errors
/// As [`Pipeline::from_canonical`].
pub fn from_canonical(json: &str) -> Result<Pipeline, PipelineError> {
    Pipeline::from_canonical(json, registry())
}
