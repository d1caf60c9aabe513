//! The documentation of the formats, from their definitions.

use crate::FORMATS;
use gristmill_syntax::{DefaultValue, Parameter};
use std::fmt::Write;

/// Markdown: a table of all formats, then a table of the parameters of each format that has any.
pub fn markdown() -> String {
    let mut out = "| `source` | records | keys of its features |\n|---|---|---|\n".to_owned();
    for format in FORMATS {
        let paths: Vec<String> = std::iter::once(&format.name)
            .chain(format.aliases)
            .map(|name| format!("`{name}: PATH`"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {} | {} | {} |", paths.join(", "), format.record, format.keys);
    }
    for format in FORMATS.iter().filter(|format| !format.parameters.is_empty()) {
        let _ = writeln!(out, "\n| beside `{}` | value | default | meaning |", format.name);
        out.push_str("|---|---|---|---|\n");
        format.parameters.iter().for_each(|parameter| row(&mut out, parameter));
    }
    out
}

fn row(out: &mut String, Parameter { name, kind, default, doc }: &Parameter) {
    let default = match default {
        DefaultValue::Required => "required".to_owned(),
        DefaultValue::Absent => "none".to_owned(),
        DefaultValue::Value(value) => format!("`{value}`"),
    };
    let _ = writeln!(out, "| `{name}` | {kind} | {default} | {doc} |");
}
