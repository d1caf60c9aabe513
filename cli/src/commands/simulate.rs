//! `gristmill simulate`: policies against modelled trainers, workers and limits.

use crate::output;
use gristmill_client::Failure;
use gristmill_scaling::Outcome;

/// Run the policies in modelled environments and check their decisions
#[derive(Debug, clap::Args)]
// The group of the flattened arguments has the same name.
#[group(skip)]
#[command(
    after_help = "Exit code: 0 all bars hold, 1 one does not, 2 bad input. docs/scenarios.md says how to write a scenario.\n\nExamples:\n  gristmill simulate --all\n  gristmill simulate my.toml --sweep"
)]
pub struct Args {
    #[command(flatten)]
    simulation: gristmill_scaling::Args,
}

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        match gristmill_scaling::run(&self.simulation, &mut output::Output)
            .map_err(Failure::usage)?
        {
            Outcome::Held => Ok(()),
            // The printed table names the failed checks.
            Outcome::Failed => Err(Failure::Reported(1)),
        }
    }
}
