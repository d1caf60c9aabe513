//! Parameters of operators and sources as data. Documentation, tools and the Python builder read
//! them; a test of each registry compares them with the keys that parsing asks for.

use serde::Serialize;

/// A key of an operator or a source in a pipeline file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub default: DefaultValue,
    /// One sentence for the documentation, without the default.
    pub doc: &'static str,
}

/// The values that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
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
    Text,
    /// The name of a field.
    Field,
    Choice(&'static [&'static str]),
    /// A list of values of one kind.
    List(&'static Kind),
    /// A mapping from names to values of one kind.
    Map(&'static Kind),
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
        kind: Kind,
        default: DefaultValue,
        doc: &'static str,
    ) -> Self {
        Parameter { name, kind, default, doc }
    }
}
