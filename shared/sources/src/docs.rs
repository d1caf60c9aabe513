//! The documentation of the formats, from their definitions.

use crate::FORMATS;
use gristmill_syntax::{DefaultValue, Parameter};
use std::fmt::Write;

/// The section that follows the tables.
const PATHS: &str = "## Paths";

/// A table of all formats, then a table of the parameters of each format that has any.
fn tables() -> Vec<String> {
    let mut out = "| `source` | records | keys of its features |\n|---|---|---|\n".to_owned();
    for format in FORMATS {
        let paths: Vec<String> = std::iter::once(&format.name)
            .chain(format.aliases)
            .map(|name| format!("`{name}: PATH`"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {} | {} | {} |", paths.join(", "), format.record, format.keys);
    }
    let with_parameters = FORMATS.iter().filter(|format| !format.parameters.is_empty());
    let parameters = with_parameters.map(|format| {
        let mut out = format!("| beside `{}` | value | default | meaning |\n", format.name);
        out.push_str("|---|---|---|---|\n");
        format.parameters.iter().for_each(|parameter| row(&mut out, parameter));
        out
    });
    std::iter::once(out).chain(parameters).collect()
}

/// Returns the text of `docs/sources.md` with its tables replaced by those of the definitions. A
/// table is recognised by its first line; one that is missing comes before the section of paths.
///
/// # Errors
/// The text lacks that section.
pub fn with_tables(page: &str) -> Result<String, String> {
    let mut page = page.to_owned();
    for table in tables() {
        let head = table.lines().next().unwrap_or_default();
        let Some(start) = page.find(head) else {
            let before = page.find(PATHS);
            let before = before.ok_or_else(|| format!("docs/sources.md has no `{PATHS}`"))?;
            page.insert_str(before, &format!("{table}\n"));
            continue;
        };
        let length = page[start..].find("\n\n").map_or(page.len() - start, |length| length + 1);
        page.replace_range(start..start + length, &table);
    }
    Ok(page)
}

fn row(out: &mut String, Parameter { name, kind, default, doc }: &Parameter) {
    let default = match default {
        DefaultValue::Required => "required".to_owned(),
        DefaultValue::Absent => "none".to_owned(),
        DefaultValue::Value(value) => format!("`{value}`"),
    };
    let _ = writeln!(out, "| `{name}` | {kind} | {default} | {doc} |");
}
