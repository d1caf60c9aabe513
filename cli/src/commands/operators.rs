//! `gristmill operators`: the operators of this program, their declarations and parameters.

use crate::{output::say, user_operators};
use gristmill_client::Failure;
use gristmill_operators::describe::{describe, table, takes};
use gristmill_pipeline::{DefaultValue, Parameter, Registry};

/// List the operators of this program with their parameters
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gristmill operators\n  gristmill operators --json")]
pub struct Args {
    /// Print one JSON list
    #[arg(long)]
    json: bool,
    /// Print the parameter tables of docs/operators.md
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        let registry = user_operators::get();
        if self.json {
            let json = serde_json::to_string(&describe(&registry));
            say!("{}", json.map_err(|error| Failure::failed(error.to_string()))?);
            return Ok(());
        }
        match self.markdown {
            true => print_tables(&registry),
            false => print_list(&registry),
        }
        Ok(())
    }
}

fn print_tables(registry: &Registry) {
    for entry in registry.entries() {
        say!("### `{}`\n", entry.declaration.name);
        if let Some(table) = table(entry.parameters) {
            say!("{table}");
        }
    }
}

fn print_list(registry: &Registry) {
    for entry in registry.entries() {
        say!("{}", entry.declaration.name);
        for Parameter { name, kind, default, .. } in entry.parameters {
            let default = match default {
                DefaultValue::Required => ", required".to_owned(),
                DefaultValue::Absent => String::new(),
                DefaultValue::Value(value) => format!(", {value} unless given"),
            };
            say!("  {name}: {}{default}", takes(kind).replace('`', ""));
        }
    }
}
