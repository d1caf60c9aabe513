//! The tree of a pipeline file as JSON, for the builder in Python.

use gristmill_syntax::{Node, node::Value};
use serde_json::{Map, Number, json};

/// The tree without lines. Numbers beyond JSON's become texts, which the pipeline's reader then refuses.
pub fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => match Number::from_i128(*value) {
            Some(number) => number.into(),
            None => json!(value.to_string()),
        },
        Value::Float(value) => match Number::from_f64(*value) {
            Some(number) => number.into(),
            None => json!(value.to_string()),
        },
        Value::Str(text) => json!(text),
        Value::Seq(items) => items.iter().map(json).collect(),
        Value::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| (key_of(key), json(value)));
            entries.collect::<Map<_, _>>().into()
        }
    }
}

/// A key as text.
fn key_of(key: &Node) -> String {
    match &key.value {
        Value::Str(text) => text.clone(),
        _ => json(key).to_string(),
    }
}

/// The line of each item of the list `ops`.
pub fn lines_of_ops(tree: &Node) -> Vec<Option<u32>> {
    let Value::Map(entries) = &tree.value else { return Vec::new() };
    let ops = entries.iter().find(|(key, _)| key_of(key) == "ops");
    match ops.map(|(_, ops)| &ops.value) {
        Some(Value::Seq(items)) => items.iter().map(|item| item.line).collect(),
        _ => Vec::new(),
    }
}
