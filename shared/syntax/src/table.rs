//! A mapping of the pipeline file with a known set of keys, read key by key.

use crate::{
    PipelineError,
    node::{NodeValue, SyntaxNode, shown},
};

use serde::Serialize;
use std::{fmt, ops::RangeInclusive};

/// Reads the keys of one mapping; what nobody asked for is an error at [`MappingReader::finish`].
pub struct MappingReader<'a> {
    /// How messages name the mapping, for example "`resize`".
    what: String,
    line: Option<u32>,
    entries: &'a [(SyntaxNode, SyntaxNode)],
    asked: Vec<&'static str>,
    /// Whether keys that nobody asked for were taken as well.
    open: bool,
}

impl<'a> MappingReader<'a> {
    /// `node` as a mapping; nothing at all is an empty one.
    pub fn new(what: impl Into<String>, node: &'a SyntaxNode) -> Result<Self, PipelineError> {
        let what = what.into();
        let entries: &[(SyntaxNode, SyntaxNode)] = match &node.value {
            NodeValue::Map(entries) => entries,
            NodeValue::Null => &[],
            _ => {
                let found = node.shown();
                return Err(node.error(format!("{what} must be a mapping of keys, not {found}")));
            }
        };
        Ok(MappingReader { what, line: node.line, entries, asked: Vec::new(), open: false })
    }

    /// A mapping without keys, as a bare operator name has.
    pub fn empty(what: impl Into<String>, line: Option<u32>) -> Self {
        MappingReader { what: what.into(), line, entries: &[], asked: Vec::new(), open: false }
    }

    /// An error at the line of this mapping.
    pub fn error(&self, message: impl Into<String>) -> PipelineError {
        PipelineError::at_line(self.line, message)
    }

    /// The value of `key`, if it is there.
    pub fn get(&mut self, key: &'static str) -> Option<&'a SyntaxNode> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        let named = |(name, _): &&(SyntaxNode, SyntaxNode)| matches!(&name.value, NodeValue::Str(n) if n == key);
        self.entries.iter().find(named).map(|(_, value)| value)
    }

    /// The value of `key`.
    pub fn require(&mut self, key: &'static str) -> Result<&'a SyntaxNode, PipelineError> {
        if let Some(node) = self.get(key) {
            return Ok(node);
        }
        // A misspelt key explains more than a missing one.
        let misspelt = |(name, _): &&(SyntaxNode, SyntaxNode)| match &name.value {
            NodeValue::Str(name) => nearest(name, &[key]).is_some(),
            _ => false,
        };
        Err(match self.entries.iter().find(misspelt) {
            Some((name, _)) => {
                let (what, shown) = (&self.what, name.shown());
                name.error(format!("{what} has no key {shown}; did you mean `{key}`?"))
            }
            None => self.error(format!("{} needs `{key}`", self.what)),
        })
    }

    /// The error for the value of `key` at `node`: it must be `wanted`.
    pub fn wrong(&self, key: &str, node: &SyntaxNode, wanted: &str) -> PipelineError {
        node.error(format!("{} `{key}` must be {wanted}, not {}", self.what, node.shown()))
    }

    /// The value of `key`: `default` if it is not there.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub fn bool(&mut self, key: &'static str, default: bool) -> Result<bool, PipelineError> {
        match self.get(key) {
            None => Ok(default),
            Some(SyntaxNode { value: NodeValue::Bool(value), .. }) => Ok(*value),
            Some(node) => Err(self.wrong(key, node, "true or false")),
        }
    }

    /// The text at `node`, the value of `key`.
    ///
    /// # Errors
    /// If it is no text, empty, or has control characters.
    pub fn text(&self, key: &str, node: &SyntaxNode) -> Result<String, PipelineError> {
        match &node.value {
            // Control characters have no place in a key or path, and would break one-line messages.
            NodeValue::Str(text) if !text.is_empty() && !text.chars().any(char::is_control) => {
                Ok(text.clone())
            }
            _ => Err(self.wrong(key, node, "text (quote it if it looks like a number)")),
        }
    }

    /// The field an operator works on; `image` unless given.
    pub fn field(&mut self) -> Result<String, PipelineError> {
        match self.get("field") {
            None => Ok("image".into()),
            Some(node) => self.text("field", node),
        }
    }

    /// The whole number at `node`, the value of `key`.
    ///
    /// # Errors
    /// If it is no whole number in `range`.
    pub fn whole(
        &self,
        key: &str,
        node: &SyntaxNode,
        range: RangeInclusive<u32>,
    ) -> Result<u32, PipelineError> {
        let number = match node.value {
            NodeValue::Int(number) => u32::try_from(number).ok(),
            _ => None,
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let wanted = format!("a whole number from {} to {}", range.start(), range.end());
            self.wrong(key, node, &wanted)
        })
    }

    /// A finite number in `range`, written whole or with a point.
    pub fn number(
        &self,
        key: &str,
        node: &SyntaxNode,
        range: RangeInclusive<f64>,
    ) -> Result<f64, PipelineError> {
        let number = match node.value {
            NodeValue::Int(number) => Some(number as f64),
            NodeValue::Float(number) => Some(number),
            _ => None,
        };
        // Adding zero turns -0.0, which would have a canonical form of its own, into 0.0.
        let number = number.filter(|n| n.is_finite() && range.contains(n)).map(|n| n + 0.0);
        number.ok_or_else(|| {
            let wanted = match (*range.start(), *range.end()) {
                (f64::MIN, f64::MAX) => "a finite number".to_owned(),
                (low, f64::MAX) => format!("a number of at least {low}"),
                (low, high) => format!("a number from {low} to {high}"),
            };
            self.wrong(key, node, &wanted)
        })
    }

    /// A list of exactly `N` numbers.
    pub fn numbers<const N: usize>(
        &self,
        key: &str,
        node: &SyntaxNode,
        range: RangeInclusive<f64>,
    ) -> Result<[f64; N], PipelineError> {
        let items = match &node.value {
            NodeValue::Seq(items) if items.len() == N => items,
            _ => return Err(self.wrong(key, node, &format!("a list of {N} numbers"))),
        };
        let mut numbers = [0.0; N];
        for (number, item) in numbers.iter_mut().zip(items) {
            *number = self.number(key, item, range.clone())?;
        }
        Ok(numbers)
    }

    /// A list of whole numbers in `range`.
    pub fn wholes(
        &self,
        key: &str,
        node: &SyntaxNode,
        range: RangeInclusive<u32>,
    ) -> Result<Vec<u32>, PipelineError> {
        match &node.value {
            NodeValue::Seq(items) => {
                items.iter().map(|item| self.whole(key, item, range.clone())).collect()
            }
            _ => Err(self.wrong(key, node, "a list of whole numbers")),
        }
    }

    /// One of `choices` by name.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        node: &SyntaxNode,
        choices: &[(&str, T)],
    ) -> Result<T, PipelineError> {
        let chosen = match &node.value {
            NodeValue::Str(text) => choices.iter().find(|(name, _)| name == text),
            _ => None,
        };
        chosen.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.wrong(key, node, &one_of(&names))
        })
    }

    /// Every entry with its key as text, for mappings whose keys the author chooses.
    pub fn entries(&self) -> Result<Vec<(String, &'a SyntaxNode, &'a SyntaxNode)>, PipelineError> {
        let named = |(key, value): &'a (SyntaxNode, SyntaxNode)| match &key.value {
            NodeValue::Str(name) => Ok((name.clone(), key, value)),
            _ => {
                Err(key.error(format!("{} has the key {}; keys are text", self.what, key.shown())))
            }
        };
        self.entries.iter().map(named).collect()
    }

    /// Every entry whose key is none of `but`, for parameters that others understand.
    pub fn others(&mut self, but: &[&str]) -> Result<Vec<(String, &'a SyntaxNode)>, PipelineError> {
        self.open = true;
        let all = self.entries()?.into_iter();
        let others = all.filter(|(name, _, _)| !but.contains(&name.as_str()));
        Ok(others.map(|(name, _, value)| (name, value)).collect())
    }

    /// The keys that were asked for, in that order.
    pub fn asked(&self) -> &[&'static str] {
        &self.asked
    }

    /// Refuses keys nobody asked for.
    pub fn finish(self) -> Result<(), PipelineError> {
        for (name, key, _) in self.entries()? {
            if self.open || self.asked.contains(&name.as_str()) {
                continue;
            }
            let advice = match nearest(&name, &self.asked) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if self.asked.is_empty() => "it takes none".to_owned(),
                None => {
                    let mut known = self.asked.clone();
                    known.sort_unstable();
                    format!("it takes {}", known.join(", "))
                }
            };
            let (what, name) = (&self.what, shown(&name));
            return Err(key.error(format!("{what} has no key {name}; {advice}")));
        }
        Ok(())
    }
}

/// "a, b or c".
pub fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [only] => (*only).into(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// The name that `name` was probably meant to be.
pub fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    // Nobody mistypes a name into a much longer one; and the distance costs time quadratic in it.
    let name = name.get(..64.min(name.len()))?.to_lowercase();
    let distance = |other: &str| strsim::osa_distance(&name, other);
    let best = known.iter().map(|other| (distance(other), *other)).min()?;
    // A third of the letters wrong is still recognisable; more is another word.
    (best.0 <= 1.max(best.1.len().min(name.len()) / 3)).then_some(best.1)
}

// Parameters of operators and sources as data. Documentation, tools and the Python builder read
// them; a test of each registry compares them with the keys that parsing asks for.

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
    /// A parameter of this name. `doc` is its sentence in the manual.
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
