//! The operators, a file each or one for a family of small ones: parameters, schema, declaration, kernel and
//! their tests. The fields of an operator are its parameters: `PARAMETERS` says what each means.
//!
//! [`registry`] lists them. The feature `kernels` adds the kernels; a program that only plans jobs leaves
//! it off, and links neither decoders nor resizers.

mod batch;
mod dataset;
pub mod describe;
#[cfg(feature = "kernels")]
mod kernels;
mod parameters;
mod parse;

/// Operators on elements.
mod element {
    pub mod filter;
    pub mod whole;
}

/// Operators on images.
mod image {
    pub mod color_jitter;
    pub mod crop;
    pub mod decode;
    pub mod flip;
    pub mod gaussian_blur;
    pub mod grayscale;
    pub mod random_erasing;
    pub mod random_resized_crop;
    pub mod resize;
    pub mod rotate_or_shear;
}

/// Operators on individual numbers.
mod number {
    pub mod arithmetic;
    pub mod cast;
    pub mod layout;
    pub mod normalise;
    pub mod scale;
}

/// Operators on sequences.
mod sequence {
    pub mod length;
    pub mod tokenise;
}

pub use dataset::ShardUnit;
pub use element::whole::SleepPer;
pub use image::decode::DecodeMode;
pub use image::resize::{PixelInterpolation, ResizeFilter};
pub use image::rotate_or_shear::{AngleBounds, Interpolation, RotateOrShear, WarpAngle};
#[cfg(feature = "kernels")]
pub use kernels::floor;
pub use number::arithmetic::{Arithmetic, ArithmeticOperand, ArithmeticOperation};
pub use number::layout::DimensionOrder;

use gristmill_pipeline::{OperatorRegistry, Pipeline, PipelineError};
use std::sync::LazyLock;

/// Imports for the files of operators.
mod prelude {
    #[cfg(feature = "kernels")]
    pub(crate) use crate::kernels::{
        boxes::{self, OperatorGeometry},
        canvas, channels as channels_of, dtype_bytes, in_place, item_bytes as item_bytes_of,
        masks::{self, MaskResize},
        pixel_bytes,
        planes::vectorised,
        sometimes, transform, value_bytes, warp,
    };
    pub(crate) use crate::parameters::*;
    #[cfg(feature = "kernels")]
    pub(crate) use crate::*;
    #[cfg(feature = "kernels")]
    pub(crate) use gristmill_kernel::{FusedKernel, Kernel, OutputSize, ValueView};
    pub(crate) use gristmill_model::{DatasetOp, DeclaredCost};
    pub(crate) use gristmill_pipeline::{
        AssetReference, AuthoredNumber, Batching, Cardinality, ExactEffect, Feature, FieldDType,
        FieldSchema, ImageFields, ImageInput, KeyGroups, LengthBuckets, MAX_BATCH_BYTES,
        MAX_BATCH_SIZE, MAX_SIDE, MappingReader, Operator, OperatorDeclaration, OperatorDefinition,
        OperatorEffect, OperatorScope, Parameter, ParameterKind, PipelineError, SchemaFlow,
        SequencePadding, TouchedFields, ValueRange, check_field_name,
        node::{NodeValue, SyntaxNode, shown},
        table::{absent, nearest, or, required},
        widened,
    };
    #[cfg(feature = "kernels")]
    pub(crate) use gristmill_pipeline::{BoxFields, BoxFormat, FeatureDType, KernelInput};
    pub(crate) use serde::Serialize;
    pub(crate) use std::collections::BTreeMap;
}

/// Exports the operators, file by file, and lists them in the order of the documentation.
macro_rules! operators {
    ($($($file:ident)::+: $($name:ident),+;)+) => {
        $(pub use $($file)::+::{$($name),+};)+

        static REGISTRY: LazyLock<OperatorRegistry> =
            LazyLock::new(|| OperatorRegistry::new()$($(.and::<$name>())+)+);
    };
}

operators! {
    dataset: Take, Skip, Select, Shard, Repeat, Interleave, Shuffle, InOrder;
    image::decode: Decode;
    image::resize: Resize, ResizeShorter;
    image::crop: CenterCrop, RandomCrop, Crop, Pad;
    image::random_resized_crop: RandomResizedCrop;
    image::flip: Flip, VerticalFlip;
    image::rotate_or_shear: Rotate, Shear;
    image::color_jitter: ColorJitter;
    image::grayscale: Grayscale;
    image::gaussian_blur: GaussianBlur;
    image::grayscale: Solarize, Posterize;
    image::random_erasing: RandomErasing;
    number::arithmetic: Add, Subtract, Multiply, Divide;
    number::scale: Scale, Clip;
    number::normalise: Normalise, Standardise;
    number::cast: Cast;
    number::layout: Layout;
    number::scale: OneHot;
    sequence::length: Length, Truncate, PadSequence;
    sequence::tokenise: Tokenise;
    parse: ParseJson, ParseCsv, ParseExample, ParseRaw;
    element::whole: CopyField, DropFields;
    element::filter: Filter;
    element::whole: Duplicate, FlatMap, UnbatchLists;
    batch: PlainBatch, PaddedBatch, BucketBySequenceLength, GroupByWindow;
    element::whole: Autocache, Sleep, Inflate;
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
