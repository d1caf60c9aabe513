//! A preprocessing pipeline as data: a source, a sequence of operators, and the steps of delivery.
//!
//! [`Pipeline::parse`] reads a YAML file, fills in defaults and checks the pipeline as a whole.
//! Every operator declares its input and output ([`Schema`]), so a pipeline that parses also runs.
//! [`Pipeline::canonical_json`] is the frozen form that jobs carry; fingerprints identify its
//! results. Pure: no I/O, no clock, no randomness.

mod asset;
mod batching;
mod cache_point;
mod canonical;
mod declaration;
mod deliver;
mod division;
mod exact;
mod external;
mod fields;
mod fingerprint;
mod flow;
mod number;
mod operator;
pub mod parameters;
pub mod passes;
mod pipeline;
mod registry;
mod sizes;
mod source;
mod stages;

pub use gristmill_syntax::{node, schema::widened, table};

pub use asset::{Asset, MAX_ASSET_BYTES};
pub use batching::{Batching, Buckets, MAX_BATCH_SIZE, Padding};
pub use cache_point::{CachePoint, DescribedOp, DescribedPrefix};
pub use declaration::{Cardinality, Declaration, Effect, Randomness, Scope};
pub use deliver::Deliver;
pub use exact::ExactEffect;
pub use fields::{BoxFormat, Boxes, Fields, Given, OF_FIELDS, OF_FILLED_FIELDS};
pub use flow::Flow;
pub use gristmill_sources::{
    Feature, FeatureDType, Features, Format, MAX_VALUES, check_name as check_field_name,
};
pub use gristmill_syntax::{
    COPY_FIELD, DType, DefaultValue, FieldSchema, KEY_FIELD, Kind, MAX_TEXT_BYTES, Node, Parameter,
    PipelineError, Schema, Table, ValueRange,
};
pub use number::{Number, value_bytes};
pub use operator::{CacheHere, Define, Described, KernelInput, Op, Operator, Stage, Touched};
pub use pipeline::Pipeline;
pub use registry::{Entry, Registry};
pub use source::Source;

/// Maximum size of a batch in bytes of all its tensors. It fits one frame of a chunk object, with
/// room for the header.
pub const MAX_BATCH_BYTES: u64 = 511 << 20;

/// Maximum side in pixels of an image that an operator makes.
pub const MAX_SIDE: u32 = 16_384;
