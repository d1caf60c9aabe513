//! Tables of parameters in the documentation of operators.

use gristmill_pipeline::{OF_FIELDS, OF_FILLED_FIELDS, OperatorRegistry, Parameter};

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
    format!("| `{name}` | {kind} | {default} | {doc} |\n")
}
