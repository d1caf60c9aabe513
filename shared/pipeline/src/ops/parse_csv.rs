//! `parse_csv`: fields of the comma-separated line in a byte string.

use super::{element_wise, parsing};
use crate::{
    Declaration, Feature, PipelineError,
    flow::Flow,
    node::{Node, Value, shown},
    op::Operator,
    table::Table,
};
use gristmill_sources::jsonl::Jsonl;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most columns of a line.
const MAX_COLUMNS: usize = 4096;

/// bytes (one line of comma-separated values, RFC 4180) -> a field for each of `features`. Values may be
/// quoted with `"`, and then hold delimiters, line ends and `""` for `"`. i64 and f32 are decimal text,
/// several in one value stand apart by spaces or commas. A line with more or fewer values than `columns`,
/// a quote that does not end and a number that is none are errors of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseCsv {
    pub field: String,
    /// The names of all values of a line, in order: what the `key` of a feature names.
    pub columns: Vec<String>,
    /// One ASCII character between values; `"\t"` for tabs.
    pub delimiter: char,
    /// By the name of the new field: `{ key, dtype, shape }`, as the `features` of a source.
    pub features: BTreeMap<String, Feature>,
    /// Whether the byte string stays a field of the element.
    pub keep: bool,
}

impl Operator for ParseCsv {
    const DECLARATION: Declaration = element_wise("parse_csv", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let node = params.require("columns")?;
        let columns = columns(params, node)?;
        let delimiter = match params.get("delimiter") {
            Some(node) => delimiter(node)?,
            None => ',',
        };
        // Keys of any text, as those of a JSON object.
        let features = parsing::features::<Jsonl>(params)?;
        for Feature { key, .. } in features.values() {
            let named = columns.iter().filter(|column| *column == key).count();
            if named != 1 {
                let found = if named == 0 { "is none" } else { "is more than one" };
                return Err(
                    node.error(format!("key {} of `features` {found} of `columns`", shown(key)))
                );
            }
        }
        let keep = params.bool("keep", false)?;
        Ok(ParseCsv { field, columns, delimiter, features, keep })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        parsing::infer(flow, "parse_csv", &self.field, &self.features, self.keep)
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }

    fn output(&self) -> Option<&str> {
        None
    }

    fn outputs(&self) -> Vec<&str> {
        self.features.keys().map(String::as_str).collect()
    }
}

fn columns(params: &Table<'_>, node: &Node) -> Result<Vec<String>, PipelineError> {
    match &node.value {
        Value::Seq(items) if (1..=MAX_COLUMNS).contains(&items.len()) => {
            items.iter().map(|item| params.text("columns", item)).collect()
        }
        _ => Err(node.error(format!(
            "`parse_csv` `columns` must be a list of 1 to {MAX_COLUMNS} names, one for each value \
             of a line"
        ))),
    }
}

fn delimiter(node: &Node) -> Result<char, PipelineError> {
    let only = match &node.value {
        Value::Str(text) => text.chars().next().filter(|c| c.len_utf8() == text.len()),
        _ => None,
    };
    // Quotes and line ends have a meaning of their own.
    let only = only.filter(|c| c.is_ascii() && !matches!(c, '"' | '\n' | '\r' | '\0'));
    only.ok_or_else(|| {
        let found = node.shown();
        node.error(format!(
            "`parse_csv` `delimiter` must be one ASCII character such as \";\" or \"\\t\", not \
             {found}"
        ))
    })
}
