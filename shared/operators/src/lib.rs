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

pub use batch::bucket_by_sequence_length::BucketBySequenceLength;
pub use batch::padded_batch::PaddedBatch;
pub use batch::plain::Batch;
pub use dataset::in_order::InOrder;
pub use dataset::interleave::Interleave;
pub use dataset::repeat::Repeat;
pub use dataset::shuffle::Shuffle;
pub use dataset::skip::Skip;
pub use dataset::take::Take;
pub use element::autocache::Autocache;
pub use element::copy_field::CopyField;
pub use element::drop_fields::DropFields;
pub use element::duplicate::Duplicate;
pub use element::filter::Filter;
pub use element::flat_map::FlatMap;
pub use element::inflate::Inflate;
pub use element::sleep::{Sleep, SleepPer};
pub use image::center_crop::CenterCrop;
pub use image::color_jitter::ColorJitter;
pub use image::crop::Crop;
pub use image::decode::{Decode, DecodeMode};
pub use image::flip::Flip;
pub use image::gaussian_blur::GaussianBlur;
pub use image::grayscale::Grayscale;
pub use image::pad::Pad;
pub use image::posterize::Posterize;
pub use image::random_crop::RandomCrop;
pub use image::random_erasing::RandomErasing;
pub use image::random_resized_crop::RandomResizedCrop;
pub use image::resize::Resize;
pub use image::resize_shorter::ResizeShorter;
pub use image::rotate::Rotate;
pub use image::shear::Shear;
pub use image::solarize::Solarize;
pub use image::turn::{Angle, Angles, Interpolation, Turn};
pub use image::vertical_flip::VerticalFlip;
pub use number::cast::{Cast, CastDType};
pub use number::clip::Clip;
pub use number::layout::{Layout, Order};
pub use number::normalise::Normalise;
pub use number::one_hot::OneHot;
pub use number::scale::Scale;
pub use number::standardise::Standardise;
pub use parse::parse_csv::ParseCsv;
pub use parse::parse_example::ParseExample;
pub use parse::parse_json::ParseJson;
pub use sequence::length::Length;
pub use sequence::pad_sequence::PadSequence;
pub use sequence::tokenise::{TokenDType, Tokenise};
pub use sequence::truncate::Truncate;

#[cfg(feature = "kernels")]
pub use kernels::floor;

use gristmill_pipeline::{Pipeline, PipelineError, Registry};
use std::sync::LazyLock;

/// All operators, in the order of the documentation.
static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    Registry::new()
        .and::<Take>()
        .and::<Skip>()
        .and::<Repeat>()
        .and::<Interleave>()
        .and::<Shuffle>()
        .and::<InOrder>()
        .and::<Decode>()
        .and::<Resize>()
        .and::<ResizeShorter>()
        .and::<CenterCrop>()
        .and::<RandomCrop>()
        .and::<Crop>()
        .and::<Pad>()
        .and::<RandomResizedCrop>()
        .and::<Flip>()
        .and::<VerticalFlip>()
        .and::<Rotate>()
        .and::<Shear>()
        .and::<ColorJitter>()
        .and::<Grayscale>()
        .and::<GaussianBlur>()
        .and::<Solarize>()
        .and::<Posterize>()
        .and::<RandomErasing>()
        .and::<Scale>()
        .and::<Clip>()
        .and::<Normalise>()
        .and::<Standardise>()
        .and::<Cast>()
        .and::<Layout>()
        .and::<OneHot>()
        .and::<Length>()
        .and::<Truncate>()
        .and::<PadSequence>()
        .and::<Tokenise>()
        .and::<ParseJson>()
        .and::<ParseCsv>()
        .and::<ParseExample>()
        .and::<CopyField>()
        .and::<DropFields>()
        .and::<Filter>()
        .and::<Duplicate>()
        .and::<FlatMap>()
        .and::<Batch>()
        .and::<PaddedBatch>()
        .and::<BucketBySequenceLength>()
        .and::<Autocache>()
        .and::<Sleep>()
        .and::<Inflate>()
});

/// All operators of this project.
pub fn registry() -> &'static Registry {
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
