//! The error of a pipeline file, with its line.

use std::fmt;

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
    pub fn general(message: impl Into<String>) -> Self {
        PipelineError { line: None, column: None, message: message.into() }
    }

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
