//! How pipeline files are read: YAML or canonical JSON becomes a tree of [`SyntaxNode`]s that know their
//! lines, a [`MappingReader`] reads the keys of one mapping, and a [`PipelineError`] says what is wrong and
//! where. [`Parameter`]s describe those keys as data. [`ElementSchema`] is the type of an element.
//!
//! Sources and operators build on this crate; it knows none of them. Pure: no I/O, no clock.

pub mod node;
pub mod schema;
pub mod table;

use std::fmt;

pub use node::SyntaxNode;
pub use schema::{COPY_FIELD, ElementSchema, FieldDType, FieldSchema, KEY_FIELD, ValueRange};
pub use table::MappingReader;
pub use table::{DefaultValue, Parameter, ParameterKind};

/// Largest pipeline text, in bytes.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// A pipeline that cannot run: one line that says what, where and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineError {
    /// Line of the YAML text, from 1; none for what belongs to no line.
    pub line: Option<u32>,
    /// Column in that line, from 1.
    pub column: Option<u32>,
    /// The problem and its remedy, without the line.
    pub message: String,
}

impl PipelineError {
    /// An error of the whole file.
    pub fn general(message: impl Into<String>) -> Self {
        PipelineError { line: None, column: None, message: message.into() }
    }

    /// An error at a line from 1, if it is known.
    pub fn at_line(line: Option<u32>, message: impl Into<String>) -> Self {
        PipelineError { line, column: None, message: message.into() }
    }
}

impl fmt::Display for PipelineError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(out, "line {line}: {}", self.message),
            None => out.write_str(&self.message),
        }
    }
}

impl std::error::Error for PipelineError {}
