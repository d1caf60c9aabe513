//! Parameters of operators and sources as data. Documentation, tools and the Python builder read
//! them; a test of each registry compares them with the keys that parsing asks for.

use serde::Serialize;
use std::fmt;

/// A key of an operator or a source in a pipeline file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: ParameterKind,
    pub default: DefaultValue,
    /// One sentence for the documentation, without the default.
    pub doc: &'static str,
}

/// The values that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterKind {
    Bool,
    /// A whole number, both ends included.
    Whole {
        min: u64,
        max: u64,
    },
    /// A finite number, both ends included.
    Number {
        min: f64,
        max: f64,
    },
    /// Height and width: one whole number for both, or `[height, width]`, each from 1.
    Size {
        max: u64,
    },
    Text,
    /// The name of a field.
    Field,
    Choice(&'static [&'static str]),
    /// A list of values of one kind.
    List(&'static ParameterKind),
    /// A mapping from names to values of one kind.
    Map(&'static ParameterKind),
    /// Fields to find in a record: `NAME: { key, dtype, shape }`.
    Features,
    /// Any other form; the text describes it.
    Other(&'static str),
}

/// The value of a parameter that a file leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultValue {
    Required,
    /// Nothing stands in for it.
    Absent,
    /// A value, as a pipeline file has it.
    Value(&'static str),
}

impl Parameter {
    pub const fn new(
        name: &'static str,
        kind: ParameterKind,
        default: DefaultValue,
        doc: &'static str,
    ) -> Self {
        Parameter { name, kind, default, doc }
    }
}

impl fmt::Display for ParameterKind {
    /// As the documentation has it: "a whole number from 1 to 4".
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterKind::Bool => out.write_str("true or false"),
            ParameterKind::Whole { min, max } => write!(out, "a whole number from {min} to {max}"),
            ParameterKind::Number { min, max } => write!(out, "a number from {min} to {max}"),
            ParameterKind::Size { max } => {
                write!(out, "a whole number from 1 to {max}, or [height, width]")
            }
            ParameterKind::Text => out.write_str("text"),
            ParameterKind::Field => out.write_str("the name of a field"),
            ParameterKind::Choice(choices) => write!(out, "`{}`", choices.join("`, `")),
            ParameterKind::List(kind) => write!(out, "a list, each {kind}"),
            ParameterKind::Map(kind) => write!(out, "a mapping from names, each to {kind}"),
            ParameterKind::Features => out.write_str("`NAME: { key, dtype, shape }`"),
            ParameterKind::Other(form) => out.write_str(form),
        }
    }
}
