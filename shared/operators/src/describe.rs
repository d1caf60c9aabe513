//! Descriptions of operators for people and tools: names, declarations and parameters.

use gristmill_pipeline::{
    DefaultValue, OF_FIELDS, OF_FILLED_FIELDS, OperatorDeclaration, OperatorRegistry, Parameter,
    ParameterKind, RegisteredOperator,
};
use serde::Serialize;
use std::fmt::Write;

/// An operator as `gristmill operators --json` prints it.
#[derive(Debug, Serialize)]
pub struct OperatorDescription {
    #[serde(flatten)]
    pub declaration: &'static OperatorDeclaration,
    pub parameters: &'static [Parameter],
}

/// All operators of a registry, in its order.
pub fn describe(registry: &OperatorRegistry) -> Vec<OperatorDescription> {
    let described = |entry: &RegisteredOperator| OperatorDescription {
        declaration: entry.declaration,
        parameters: entry.parameters,
    };
    registry.entries().iter().map(described).collect()
}

/// The table of an operator's parameters in `docs/operators.md`; none without parameters.
pub fn table(parameters: &[Parameter]) -> Option<String> {
    let is_shared = |parameter: &&Parameter| OF_FILLED_FIELDS.contains(parameter);
    let moves_several = parameters.iter().filter(is_shared).count() >= OF_FIELDS.len();
    let mut text = HEAD.to_owned();
    for parameter in parameters {
        if !(is_shared(&parameter) && moves_several) {
            text.push_str(&row(parameter, parameter.doc));
        } else if parameter.name == OF_FIELDS[0].name {
            text.push_str(&row(parameter, SEE));
        }
    }
    (!parameters.is_empty()).then_some(text)
}

/// The table of the parameters shared by operators on images with masks and boxes.
pub fn table_of_fields() -> String {
    let rows = OF_FILLED_FIELDS[1..].iter().map(|parameter| row(parameter, parameter.doc));
    rows.fold(HEAD.to_owned(), |text, row| text + &row)
}

/// Returns the text of `docs/operators.md` with its parameter tables replaced by the declared ones.
///
/// # Errors
/// The text lacks the section or the table of an operator.
pub fn with_tables(text: &str, registry: &OperatorRegistry) -> Result<String, String> {
    let mut text = with_table(text, FIELDS_TITLE, Some(table_of_fields()))?;
    for entry in registry.entries() {
        let title = format!("### `{}`\n", entry.declaration.name);
        text = with_table(&text, &title, table(entry.parameters))?;
    }
    Ok(text)
}

const FIELDS_TITLE: &str = "### Images with masks and boxes\n";
const SEE: &str = "Or `fields`, `masks`, `boxes`: see [above](#images-with-masks-and-boxes).";
const HEAD: &str = "| parameter | takes | default | |\n|---|---|---|---|\n";

/// Replaces the first parameter table of the section `title`, which ends at the next title.
fn with_table(text: &str, title: &str, table: Option<String>) -> Result<String, String> {
    let missing = || format!("docs/operators.md has no section {}", title.trim());
    let start = text.find(title).ok_or_else(missing)? + title.len();
    let end = text[start..].find("\n##").map_or(text.len(), |length| start + length);
    let Some(table) = table else { return Ok(text.to_owned()) };
    let section = &text[start..end];
    let begins = section.find("| parameter |").ok_or_else(|| {
        format!("docs/operators.md has no table of parameters below {}", title.trim())
    })?;
    let length = section[begins..].find("\n\n").map_or(section.len() - begins, |n| n + 1);
    let (before, after) = (&text[..start + begins], &text[start + begins + length..]);
    Ok(format!("{before}{table}{after}"))
}

fn row(parameter: &Parameter, doc: &str) -> String {
    let Parameter { name, kind, default, .. } = parameter;
    let default = match default {
        DefaultValue::Required => "required".to_owned(),
        DefaultValue::Absent => "none".to_owned(),
        DefaultValue::Value(value) => format!("`{value}`"),
    };
    format!("| `{name}` | {} | {default} | {doc} |\n", takes(kind))
}

/// The values of a kind, in words.
pub fn takes(kind: &ParameterKind) -> String {
    match kind {
        ParameterKind::Bool => "true or false".into(),
        ParameterKind::Whole { min, max } if *max >= u64::from(u32::MAX) => {
            format!("a whole number from {min} on")
        }
        ParameterKind::Whole { min, max } => format!("a whole number from {min} to {max}"),
        ParameterKind::Number { min, max } if *min == f64::MIN && *max == f64::MAX => {
            "a number".into()
        }
        ParameterKind::Number { min, max } => format!("a number from {min} to {max}"),
        ParameterKind::Size { .. } => kind.to_string(),
        ParameterKind::Text => "text".into(),
        ParameterKind::Field => "a field".into(),
        ParameterKind::Choice(names) => one_of(names),
        ParameterKind::List(item) => format!("a list: {}", takes(item)),
        ParameterKind::Map(value) => format!("by field: {}", takes(value)),
        ParameterKind::Features => "features".into(),
        ParameterKind::Other(words) => (*words).into(),
    }
}

fn one_of(names: &[&str]) -> String {
    let mut text = String::new();
    for (i, name) in names.iter().enumerate() {
        let separator = match i {
            0 => "",
            _ if i + 1 == names.len() => " or ",
            _ => ", ",
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}`{name}`");
    }
    text
}
