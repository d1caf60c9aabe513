//! YAML or JSON as a tree whose every node knows its line.
//!
//! Reading into a tree first, and into types from there, is what lets an error name the line, the
//! operator and the parameter, and suggest the key that was meant.

use crate::{MAX_TEXT_BYTES, PipelineError};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{
    Location, MessageFormatter, NonFiniteFloatPolicy, Spanned, UserMessageFormatter,
};
use std::{collections::BTreeSet, fmt, marker::PhantomData};

/// Nesting deeper than any pipeline needs.
const MAX_DEPTH: usize = 32;
/// Values in all: a pipeline of a thousand operators has about ten thousand.
const MAX_NODES: usize = 100_000;
const TOO_MUCH: &str =
    "the canonical pipeline has a key twice, too many values, or is nested too deep";
/// Longest piece of the text repeated in a message.
const MAX_SHOWN_CHARS: usize = 48;

/// A YAML or JSON value. Keys of a map keep their order.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeValue {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    Seq(Vec<SyntaxNode>),
    Map(Vec<(SyntaxNode, SyntaxNode)>),
}

/// A value, and where it stands in its file: line and column from 1, none in the canonical form.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntaxNode {
    pub value: NodeValue,
    pub line: Option<u32>,
    pub column: Option<u32>,
}

impl SyntaxNode {
    /// Reads one YAML document.
    pub fn parse(text: &str) -> Result<SyntaxNode, PipelineError> {
        if text.len() > MAX_TEXT_BYTES {
            let bytes = text.len();
            return Err(PipelineError::general(format!(
                "the pipeline has {bytes} bytes; the limit is {MAX_TEXT_BYTES}: is this the right file?"
            )));
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_depth: MAX_DEPTH,
                flow_nesting_limit: MAX_DEPTH,
                max_documents: 1,
                max_nodes: MAX_NODES,
                max_total_scalar_bytes: MAX_TEXT_BYTES,
                max_recorded_anchor_bytes: MAX_TEXT_BYTES,
            },
            // Refused by us, where the message can say whose value it is.
            non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
            // YAML 1.2: `y`, `n`, `on` and `off` are text, and fields may be called so.
            strict_booleans: true,
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax(&error))
    }

    /// Reads JSON as it is stored: no line is known. The YAML reader is for what people write.
    pub fn parse_json(text: &str) -> Result<SyntaxNode, PipelineError> {
        if text.len() > MAX_TEXT_BYTES {
            let bytes = text.len();
            return Err(PipelineError::general(format!(
                "the canonical pipeline has {bytes} bytes; the limit is {MAX_TEXT_BYTES}"
            )));
        }
        let parsed = serde_json::from_str::<Unplaced>(text).map_err(|error| {
            // The error's own words may quote what a stranger wrote.
            let column = error.column();
            PipelineError::general(format!("this is not valid JSON at column {column}"))
        });
        let Unplaced(node) = parsed?;
        let mut left = MAX_NODES;
        if node.fits(2 * MAX_DEPTH, &mut left) {
            Ok(node)
        } else {
            Err(PipelineError::general(TOO_MUCH))
        }
    }

    /// Whether it has at most `left` values, which are nested at most `depth` deep, and no key twice.
    fn fits(&self, depth: usize, left: &mut usize) -> bool {
        let (Some(depth), Some(fewer)) = (depth.checked_sub(1), left.checked_sub(1)) else {
            return false;
        };
        *left = fewer;
        match &self.value {
            NodeValue::Seq(items) => items.iter().all(|item| item.fits(depth, left)),
            NodeValue::Map(entries) => {
                let mut keys = BTreeSet::new();
                entries.iter().all(|(key, value)| {
                    let is_new = matches!(&key.value, NodeValue::Str(key) if keys.insert(key));
                    is_new && value.fits(depth, left)
                })
            }
            _ => true,
        }
    }

    /// An error about this node.
    pub fn error(&self, message: impl Into<String>) -> PipelineError {
        PipelineError { line: self.line, column: self.column, message: message.into() }
    }

    /// How a message speaks of this value.
    pub fn shown(&self) -> String {
        match &self.value {
            NodeValue::Null => "nothing".into(),
            NodeValue::Bool(value) => value.to_string(),
            NodeValue::Int(value) => value.to_string(),
            NodeValue::Float(value) => value.to_string(),
            NodeValue::Str(text) => shown(text),
            NodeValue::Seq(_) => "a list".into(),
            NodeValue::Map(_) => "a mapping".into(),
        }
    }
}

/// Text as it is repeated in a message: quoted, on one line, and cut.
pub fn shown(text: &str) -> String {
    let mut cut: String = text.chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        cut.push_str("...");
    }
    format!("`{cut}`")
}

fn syntax(error: &serde_saphyr::Error) -> PipelineError {
    let (line, column) = error.location().map_or((None, None), position);
    let why = UserMessageFormatter.format_message(error.without_snippet());
    let why = if why.contains("limits breached") {
        format!("it has more than {MAX_NODES} values, or is nested deeper than {MAX_DEPTH}")
    } else {
        why.into_owned()
    };
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let why: String = why.chars().map(plain).take(200).collect();
    PipelineError { line, column, message: format!("this is not valid YAML: {why}") }
}

fn position(at: Location) -> (Option<u32>, Option<u32>) {
    let number = |n: u64| u32::try_from(n).ok().filter(|&n| n > 0);
    (number(at.line()), number(at.column()))
}

impl<'de> Deserialize<'de> for SyntaxNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<NodeValue>::deserialize(deserializer)?;
        let (line, column) = position(referenced);
        Ok(SyntaxNode { value, line, column })
    }
}

impl<'de> Deserialize<'de> for NodeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor::<SyntaxNode>(PhantomData))
    }
}

/// A node of a text whose lines are not counted.
struct Unplaced(SyntaxNode);

impl From<Unplaced> for SyntaxNode {
    fn from(Unplaced(node): Unplaced) -> Self {
        node
    }
}

impl<'de> Deserialize<'de> for Unplaced {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(ValueVisitor::<Unplaced>(PhantomData))?;
        Ok(Unplaced(SyntaxNode { value, line: None, column: None }))
    }
}

/// Reads a value whose inner ones are read as `N`.
struct ValueVisitor<N>(PhantomData<N>);

impl<'de, N: Deserialize<'de> + Into<SyntaxNode>> Visitor<'de> for ValueVisitor<N> {
    type Value = NodeValue;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a scalar, a list or a mapping")
    }

    fn visit_unit<E: Error>(self) -> Result<NodeValue, E> {
        Ok(NodeValue::Null)
    }

    fn visit_none<E: Error>(self) -> Result<NodeValue, E> {
        Ok(NodeValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<NodeValue, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<NodeValue, E> {
        Ok(NodeValue::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<NodeValue, E> {
        Ok(NodeValue::Int(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<NodeValue, E> {
        Ok(NodeValue::Int(value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<NodeValue, E> {
        Ok(NodeValue::Int(value))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<NodeValue, E> {
        Ok(NodeValue::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<NodeValue, E> {
        Ok(NodeValue::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<NodeValue, E> {
        Ok(NodeValue::Str(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<NodeValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<N>()? {
            items.push(item.into());
        }
        Ok(NodeValue::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeValue, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<N, N>()? {
            entries.push((key.into(), value.into()));
        }
        Ok(NodeValue::Map(entries))
    }
}
