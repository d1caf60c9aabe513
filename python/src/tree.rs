//! The tree of a pipeline file as JSON, for the builder in Python.

use gristmill_syntax::{SyntaxNode, node::NodeValue};
use serde_json::{Map, Number, json};

/// The tree without lines. Numbers beyond JSON's become texts, which the pipeline's reader then refuses.
pub fn json(node: &SyntaxNode) -> serde_json::Value {
    match &node.value {
        NodeValue::Null => serde_json::Value::Null,
        NodeValue::Bool(value) => json!(value),
        NodeValue::Int(value) => match Number::from_i128(*value) {
            Some(number) => number.into(),
            None => json!(value.to_string()),
        },
        NodeValue::Float(value) => match Number::from_f64(*value) {
            Some(number) => number.into(),
            None => json!(value.to_string()),
        },
        NodeValue::Str(text) => json!(text),
        NodeValue::Seq(items) => items.iter().map(json).collect(),
        NodeValue::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| (key_of(key), json(value)));
            entries.collect::<Map<_, _>>().into()
        }
    }
}

/// A key as text.
fn key_of(key: &SyntaxNode) -> String {
    match &key.value {
        NodeValue::Str(text) => text.clone(),
        _ => json(key).to_string(),
    }
}

/// The line of each item of the list `ops`.
pub fn lines_of_ops(tree: &SyntaxNode) -> Vec<Option<u32>> {
    let NodeValue::Map(entries) = &tree.value else { return Vec::new() };
    let ops = entries.iter().find(|(key, _)| key_of(key) == "ops");
    match ops.map(|(_, ops)| &ops.value) {
        Some(NodeValue::Seq(items)) => items.iter().map(|item| item.line).collect(),
        _ => Vec::new(),
    }
}
