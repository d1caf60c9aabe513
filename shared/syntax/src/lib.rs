//! How pipeline files are read: YAML or canonical JSON becomes a tree of [`SyntaxNode`]s that know their
//! lines, a [`MappingReader`] reads the keys of one mapping, and a [`PipelineError`] says what is wrong and
//! where. [`Parameter`]s describe those keys as data. [`ElementSchema`] is the type of an element.
//!
//! Sources and operators build on this crate; it knows none of them. Pure: no I/O, no clock.

mod error;
pub mod node;
mod parameter;
pub mod schema;
pub mod table;

pub use error::PipelineError;
pub use node::SyntaxNode;
pub use parameter::{DefaultValue, Parameter, ParameterKind};
pub use schema::{COPY_FIELD, ElementSchema, FieldDType, FieldSchema, KEY_FIELD, ValueRange};
pub use table::MappingReader;

/// Largest pipeline text, in bytes.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
