//! A preprocessing pipeline as data: a source, a row of operators, and what the trainer does last.
//!
//! [`Pipeline::parse`] reads the YAML people write, fills in defaults and checks it as a whole:
//! every operator declares what it takes and gives ([`Schema`]), and a pipeline that parses runs.
//! [`Pipeline::canonical_json`] is the frozen form that jobs carry, and fingerprints name its
//! results. Pure: no I/O, no clock, no randomness.

mod asset;
mod batching;
mod cache_point;
mod deliver;
mod fingerprint;
mod flow;
mod number;
mod op;
pub mod ops;
pub mod passes;
mod pipeline;
mod signature;
mod source;

use gristmill_syntax::{node, schema, table};

pub use asset::{Asset, MAX_ASSET_BYTES};
pub use batching::{Batching, Buckets, Padding};
pub use cache_point::{CachePoint, DescribedOp, DescribedPrefix};
pub use deliver::Deliver;
pub use gristmill_sources::{Feature, FeatureDType, Features, Format, MAX_VALUES};
pub use gristmill_syntax::{
    COPY_FIELD, DType, FieldSchema, KEY_FIELD, MAX_TEXT_BYTES, PipelineError, Schema, ValueRange,
};
pub use number::Number;
pub use op::{Cardinality, Declaration, Effect, Op, Randomness, Scope, Stage};
pub use pipeline::Pipeline;
pub use signature::{Signature, Signatures};
pub use source::Source;

/// Largest batch, in bytes of all its tensors: what fits one frame of a chunk object with room for
/// its header.
pub const MAX_BATCH_BYTES: u64 = 511 << 20;
