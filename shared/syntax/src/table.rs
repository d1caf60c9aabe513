//! A mapping of the pipeline file with a known set of keys, read key by key.

use crate::{
    PipelineError,
    node::{NodeValue, SyntaxNode, shown},
};

use serde::Serialize;
use std::{borrow::Cow, fmt, ops::RangeInclusive};

/// Reads the keys of one mapping; what nobody asked for is an error at [`MappingReader::finish`].
pub struct MappingReader<'a> {
    /// How messages name the mapping, for example "`resize`".
    what: String,
    line: Option<u32>,
    entries: &'a [(SyntaxNode, SyntaxNode)],
    asked: Vec<&'static str>,
    /// Whether keys that nobody asked for were taken as well.
    open: bool,
    parameters: &'static [Parameter],
}

impl<'a> MappingReader<'a> {
    /// `node` as a mapping; nothing at all is an empty one.
    pub fn new(what: impl Into<String>, node: &'a SyntaxNode) -> Result<Self, PipelineError> {
        let mut reader = Self::empty(what, node.line);
        match &node.value {
            NodeValue::Map(entries) => reader.entries = entries,
            NodeValue::Null => {}
            _ => {
                let (what, found) = (reader.what, node.shown());
                return Err(node.error(format!("{what} must be a mapping of keys, not {found}")));
            }
        }
        Ok(reader)
    }

    /// A mapping without keys, as a bare operator name has.
    pub fn empty(what: impl Into<String>, line: Option<u32>) -> Self {
        let (what, asked) = (what.into(), Vec::new());
        MappingReader { what, line, entries: &[], asked, open: false, parameters: &[] }
    }

    /// Has the keys be those of `parameters`, for the readers of parameters.
    pub fn declare(&mut self, parameters: &'static [Parameter]) {
        self.parameters = parameters;
    }

    /// How messages name the mapping.
    pub fn name(&self) -> &str {
        &self.what
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

    /// The value of `key`; none if it is absent or null, which the canonical form writes for absent values.
    pub fn given(&mut self, key: &'static str) -> Option<&'a SyntaxNode> {
        self.get(key).filter(|node| node.value != NodeValue::Null)
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
            // These have no place in a key or path, and would break one-line messages.
            NodeValue::Str(text) if text.chars().any(char::is_control) => {
                Err(self.wrong(key, node, "text without control characters"))
            }
            NodeValue::Str(text) if !text.is_empty() => Ok(text.clone()),
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

/// Readers of parameters: kind, range and default are those of the declaration. A reader panics if there is
/// none, if it is of another kind, or if its default is no value of it; a test of each registry parses every
/// operator with and without each parameter, so that none does.
impl<'a> MappingReader<'a> {
    fn declared(&self, name: &str) -> &'static Parameter {
        let found = self.parameters.iter().find(|parameter| parameter.name == name);
        found.unwrap_or_else(|| panic!("{} does not declare `{name}`", self.what))
    }

    /// The given value of a parameter, or its default; none if it is absent and has no default.
    ///
    /// # Errors
    /// If it is required and absent.
    pub fn value(&mut self, name: &str) -> Result<Option<Cow<'a, SyntaxNode>>, PipelineError> {
        let Parameter { name, default, .. } = *self.declared(name);
        if let Some(node) = self.get(name) {
            return Ok(Some(Cow::Borrowed(node)));
        }
        match default {
            DefaultValue::Required => self.require(name).map(|node| Some(Cow::Borrowed(node))),
            DefaultValue::Absent => Ok(None),
            DefaultValue::Value(text) => match SyntaxNode::parse(text) {
                Ok(node) => Ok(Some(Cow::Owned(node))),
                Err(error) => panic!("the default of `{name}`: {error}"),
            },
        }
    }

    /// As [`value`](Self::value), of a parameter that is required or has a default.
    ///
    /// # Errors
    /// If it is required and absent.
    pub fn present(&mut self, name: &str) -> Result<Cow<'a, SyntaxNode>, PipelineError> {
        let value = self.value(name)?;
        Ok(value.unwrap_or_else(|| panic!("`{name}` has no default")))
    }

    /// Both ends of the numbers that a parameter takes, alone or in a list.
    pub fn numbers_of(&self, name: &str) -> RangeInclusive<f64> {
        match self.declared(name).kind {
            ParameterKind::Number { min, max }
            | ParameterKind::List(&ParameterKind::Number { min, max }) => min..=max,
            kind => panic!("`{name}` is {kind}"),
        }
    }

    /// Both ends of the whole numbers that a parameter takes, alone, in a list or in a mapping.
    pub fn wholes_of(&self, name: &str) -> RangeInclusive<u32> {
        let (min, max) = match self.declared(name).kind {
            ParameterKind::Whole { min, max }
            | ParameterKind::List(&ParameterKind::Whole { min, max })
            | ParameterKind::Map(&ParameterKind::Whole { min, max }) => (min, max),
            ParameterKind::Size { max } => (1, max),
            kind => panic!("`{name}` is {kind}"),
        };
        let [min, max] = [min, max].map(|bound| u32::try_from(bound).unwrap_or(u32::MAX));
        min..=max
    }

    /// Reads a whole number.
    pub fn read_whole(&mut self, name: &str) -> Result<u32, PipelineError> {
        let node = self.present(name)?;
        self.whole(name, &node, self.wholes_of(name))
    }

    /// Reads a list of whole numbers.
    pub fn read_wholes(&mut self, name: &str) -> Result<Vec<u32>, PipelineError> {
        let node = self.present(name)?;
        self.wholes(name, &node, self.wholes_of(name))
    }

    /// Reads a number.
    pub fn read_number(&mut self, name: &str) -> Result<f64, PipelineError> {
        let node = self.present(name)?;
        self.number(name, &node, self.numbers_of(name))
    }

    /// Reads true or false.
    pub fn read_flag(&mut self, name: &str) -> Result<bool, PipelineError> {
        let node = self.present(name)?;
        match node.value {
            NodeValue::Bool(value) => Ok(value),
            _ => Err(self.wrong(name, &node, "true or false")),
        }
    }

    /// Reads one of the declared names; `values` has the meaning of each, in the same order.
    pub fn read_choice<T: Copy>(&mut self, name: &str, values: &[T]) -> Result<T, PipelineError> {
        let ParameterKind::Choice(names) = self.declared(name).kind else {
            panic!("`{name}` is no choice")
        };
        assert_eq!(names.len(), values.len(), "the values of `{name}`");
        let choices: Vec<(&str, T)> = names.iter().copied().zip(values.iter().copied()).collect();
        let node = self.present(name)?;
        self.choice(name, &node, &choices)
    }
}

/// "a, b or c".
pub fn one_of<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
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

/// A parameter that a file must give; `doc` is its sentence in the manual.
pub const fn required(name: &'static str, kind: ParameterKind, doc: &'static str) -> Parameter {
    Parameter { name, kind, default: DefaultValue::Required, doc }
}

/// An optional parameter without a default.
pub const fn absent(name: &'static str, kind: ParameterKind, doc: &'static str) -> Parameter {
    Parameter { name, kind, default: DefaultValue::Absent, doc }
}

/// A parameter with a default, written as in a pipeline file.
pub const fn or(
    name: &'static str,
    kind: ParameterKind,
    default: &'static str,
    doc: &'static str,
) -> Parameter {
    Parameter { name, kind, default: DefaultValue::Value(default), doc }
}

impl fmt::Display for ParameterKind {
    /// As the documentation has it: "a whole number from 1 to 4".
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterKind::Bool => out.write_str("true or false"),
            ParameterKind::Whole { min, max } if *max >= u64::from(u32::MAX) => {
                write!(out, "a whole number from {min} on")
            }
            ParameterKind::Whole { min, max } => write!(out, "a whole number from {min} to {max}"),
            ParameterKind::Number { min: f64::MIN, max: f64::MAX } => out.write_str("a number"),
            ParameterKind::Number { min, max } => write!(out, "a number from {min} to {max}"),
            ParameterKind::Size { max } => {
                write!(out, "a whole number from 1 to {max}, or [height, width]")
            }
            ParameterKind::Text => out.write_str("text"),
            ParameterKind::Field => out.write_str("a field"),
            ParameterKind::Choice(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                out.write_str(&one_of(&names))
            }
            ParameterKind::List(item) => write!(out, "a list: {item}"),
            ParameterKind::Map(value) => write!(out, "by field: {value}"),
            ParameterKind::Features => out.write_str("features"),
            ParameterKind::Other(form) => out.write_str(form),
        }
    }
}

impl fmt::Display for DefaultValue {
    /// As the documentation has it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DefaultValue::Required => out.write_str("required"),
            DefaultValue::Absent => out.write_str("none"),
            DefaultValue::Value(value) => write!(out, "`{value}`"),
        }
    }
}
