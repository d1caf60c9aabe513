//! Tables of text: how a file is written, and what stands in for values that are missing.

use super::{Feature, FeatureDType, Format};
use crate::{
    PipelineError,
    node::{Node, Value, shown},
    table::Table,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// The key under which tables apart by tabs are named.
pub(super) const TSV: &str = "tsv";
/// The key of the canonical form for all of this.
pub(super) const TABLE: &str = "table";
/// Most columns of a line.
const MAX_COLUMNS: usize = 4096;

/// How a file of lines is divided into values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CsvLayout {
    /// One ASCII character between values.
    pub delimiter: u8,
    /// The first line names the columns.
    pub header: bool,
    /// Values may be quoted with `"`, and then hold delimiters, line ends and `""` for `"`.
    pub quotes: bool,
}

impl CsvLayout {
    pub const COMMAS: Self = Self { delimiter: b',', header: true, quotes: true };
}

/// What the pipeline says of the values in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CsvValues {
    /// The names of all columns, of files without a header.
    pub columns: Vec<String>,
    /// Texts, beside none at all, that stand for a value that is missing.
    pub missing: Vec<String>,
    /// By field: what is read in place of a value that is missing. Without it the record is bad.
    pub defaults: BTreeMap<String, String>,
}

/// Both, as they are written in the canonical form.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    delimiter: char,
    header: bool,
    quotes: bool,
    #[serde(flatten)]
    values: &'a CsvValues,
}

impl<'a> Written<'a> {
    pub(super) fn new(layout: CsvLayout, values: &'a CsvValues) -> Self {
        let CsvLayout { delimiter, header, quotes } = layout;
        Self { delimiter: char::from(delimiter), header, quotes, values }
    }
}

/// Reads what stands beside the path of a table, or under [`TABLE`].
pub(super) fn parse(
    table: &mut Table<'_>,
    delimiter: u8,
    features: &BTreeMap<String, Feature>,
) -> Result<(Format, CsvValues), PipelineError> {
    let delimiter = match table.get("delimiter") {
        Some(node) => one_character(node)?,
        None => delimiter,
    };
    let header = table.bool("header", true)?;
    let quotes = table.bool("quotes", true)?;
    let columns = match table.get("columns") {
        Some(node) => texts(table, "columns", node)?,
        None => Vec::new(),
    };
    match (header, columns.is_empty()) {
        (true, false) => {
            return Err(table.error(
                "the header of its files names the columns: leave out `columns`, or say \
                 `header: false`",
            ));
        }
        (false, true) => {
            return Err(table.error(
                "without a header, `columns` must name the values of a line, such as [id, text]",
            ));
        }
        _ => {}
    }
    if let Some(feature) = features.values().find(|feature| {
        !header && columns.iter().filter(|column| **column == feature.key).count() != 1
    }) {
        return Err(table
            .error(format!("key {} of `features` is not one of `columns`", shown(&feature.key))));
    }
    let missing = match table.get("missing") {
        Some(node) => texts(table, "missing", node)?,
        None => Vec::new(),
    };
    let mut defaults = BTreeMap::new();
    if let Some(node) = table.get("defaults") {
        for (name, key, value) in Table::new("`defaults`", node)?.entries()? {
            let Some(feature) = features.get(&name) else {
                return Err(key.error(format!("{} is none of `features`", shown(&name))));
            };
            let text = default(value)?;
            if let Some(word) = unreadable(feature.dtype, &text) {
                let (dtype, name) = (feature.dtype.dtype(), shown(&name));
                return Err(value.error(format!(
                    "the default of {name} must be {dtype}, as the feature is, not `{word}`"
                )));
            }
            defaults.insert(name, text);
        }
    }
    let format = Format::Csv(CsvLayout { delimiter, header, quotes });
    Ok((format, CsvValues { columns, missing, defaults }))
}

/// The first word of a default that is no number of `dtype`; words stand apart as those of values do.
fn unreadable(dtype: FeatureDType, text: &str) -> Option<&str> {
    let is_number = |word: &&str| match dtype {
        FeatureDType::I64 => word.parse::<i64>().is_ok(),
        FeatureDType::U64 => word.parse::<u64>().is_ok(),
        FeatureDType::F32 | FeatureDType::F64 => word.parse::<f64>().is_ok(),
        FeatureDType::Bytes => true,
    };
    let mut words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.find(|word| !word.is_empty() && !is_number(word))
}

fn default(node: &Node) -> Result<String, PipelineError> {
    match &node.value {
        Value::Str(text) => Ok(text.clone()),
        Value::Int(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => {
            let found = node.shown();
            Err(node.error(format!("a default is a number or a text, not {found}")))
        }
    }
}

fn texts(table: &Table<'_>, key: &str, node: &Node) -> Result<Vec<String>, PipelineError> {
    match &node.value {
        Value::Seq(items) if items.len() <= MAX_COLUMNS => {
            let text = |item: &Node| match &item.value {
                Value::Str(text) => Ok(text.clone()),
                _ => table.text(key, item),
            };
            items.iter().map(text).collect()
        }
        _ => Err(table.wrong(key, node, &format!("a list of at most {MAX_COLUMNS} texts"))),
    }
}

fn one_character(node: &Node) -> Result<u8, PipelineError> {
    let only = match &node.value {
        Value::Str(text) => match text.as_bytes() {
            [byte] => Some(*byte),
            _ => None,
        },
        _ => None,
    };
    // Quotes and line ends have a meaning of their own.
    let only = only.filter(|c| c.is_ascii() && !matches!(c, b'"' | b'\n' | b'\r' | b'\0'));
    only.ok_or_else(|| {
        let found = node.shown();
        node.error(format!(
            "`delimiter` must be one ASCII character such as \";\" or \"\\t\", not {found}"
        ))
    })
}
