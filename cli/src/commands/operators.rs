//! `gristmill operators`: the operators and sources of this program, as declared.

use crate::{output::say, program};
use gristmill_client::ProgramFailure;
use gristmill_operators::describe::table;
use gristmill_pipeline::{DefaultValue, OperatorRegistry, Parameter};
use gristmill_sources::FORMATS;
use serde_json::json;

/// List the operators of this program with their parameters, and with --json its sources
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gristmill operators\n  gristmill operators --json")]
pub struct OperatorsArgs {
    /// Print one JSON object: operators and sources
    #[arg(long)]
    json: bool,
    /// Print the parameter tables of docs/operators.md
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

impl OperatorsArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let registry = program::operators();
        if self.json {
            let (operators, sources) = (registry.entries(), FORMATS);
            say!("{}", json!({ "operators": operators, "sources": sources }));
            return Ok(());
        }
        if self.markdown {
            print_tables(&registry)
        } else {
            print_list(&registry)
        }
        Ok(())
    }
}

fn print_tables(registry: &OperatorRegistry) {
    for entry in registry.entries() {
        say!("### `{}`\n", entry.declaration.name);
        if let Some(table) = table(entry.parameters) {
            say!("{table}");
        }
    }
}

fn print_list(registry: &OperatorRegistry) {
    for entry in registry.entries() {
        say!("{}", entry.declaration.name);
        for Parameter { name, kind, default, .. } in entry.parameters {
            let default = match default {
                DefaultValue::Required => ", required".to_owned(),
                DefaultValue::Absent => String::new(),
                DefaultValue::Value(value) => format!(", {value} unless given"),
            };
            say!("  {name}: {}{default}", kind.to_string().replace('`', ""));
        }
    }
}
