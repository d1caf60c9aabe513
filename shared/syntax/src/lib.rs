//! How pipeline files are read: YAML or canonical JSON becomes a tree of [`Node`]s that know their
//! lines, a [`Table`] reads the keys of one mapping, and a [`PipelineError`] says what is wrong and
//! where. [`Parameter`]s describe those keys as data. [`Schema`] is the type of an element.
//!
//! Sources and operators build on this crate; it knows none of them. Pure: no I/O, no clock.

mod error;
pub mod node;
mod parameter;
pub mod schema;
pub mod table;

pub use error::PipelineError;
pub use node::Node;
pub use parameter::{DefaultValue, Kind, Parameter};
pub use schema::{COPY_FIELD, DType, FieldSchema, KEY_FIELD, Schema, ValueRange};
pub use table::Table;

/// Largest pipeline text, in bytes.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
