//! A preprocessing pipeline as data: a source, a sequence of operators, and the steps of delivery.
//!
//! [`Pipeline::parse`] reads a YAML file, fills in defaults and checks the pipeline as a whole.
//! Every operator declares its input and output ([`ElementSchema`]), so a pipeline that parses also runs.
//! [`Pipeline::canonical_json`] is the frozen form that jobs carry; fingerprints identify its
//! results. Pure: no I/O, no clock, no randomness.

mod asset;
mod authored_number;
mod batching;
mod cache_point;
mod declaration;
mod division;
mod external;
mod fields;
mod fingerprint;
mod flow;
mod operator;
pub mod passes;
mod pipeline;
mod registry;
mod source;

pub use gristmill_syntax::{node, schema::widened, table};

pub use asset::{AssetReference, MAX_ASSET_BYTES};
pub use authored_number::{AuthoredNumber, value_bytes};
pub use batching::{
    Batching, DeliveryOperators, KeyGroups, LengthBuckets, MAX_BATCH_SIZE, SequencePadding,
};
pub use cache_point::{CachePoint, DescribedOp, DescribedPrefix};
pub use declaration::{
    Cardinality, ExactEffect, OperatorDeclaration, OperatorEffect, OperatorScope, Randomness,
};
pub use fields::{BoxFields, BoxFormat, ImageFields, ImageInput, OF_FIELDS, OF_FILLED_FIELDS};
pub use flow::SchemaFlow;
pub use gristmill_sources::{
    Feature, FeatureDType, FeatureMap, FileFormat, MAX_VALUES, check_name as check_field_name,
};
pub use gristmill_syntax::{
    COPY_FIELD, DefaultValue, ElementSchema, FieldDType, FieldSchema, KEY_FIELD, MAX_TEXT_BYTES,
    MappingReader, Parameter, ParameterKind, PipelineError, SyntaxNode, ValueRange,
};
pub use operator::{
    BoxedOperator, KernelInput, Operator, OperatorDefinition, OperatorFacts, PipelineStage,
    TouchedFields,
};
pub use pipeline::{MAX_OPS, Pipeline};
pub use registry::{OperatorRegistry, RegisteredOperator};
pub use source::PipelineSource;

/// Maximum size of a batch in bytes of all its tensors. It fits one frame of a chunk object, with
/// room for the header.
pub const MAX_BATCH_BYTES: u64 = 511 << 20;

/// Maximum side in pixels of an image that an operator makes.
pub const MAX_SIDE: u32 = 16_384;
