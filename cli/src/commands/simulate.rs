//! `gristmill simulate`: policies against modelled trainers, workers and limits.

use crate::output;
use gristmill_client::ProgramFailure;

/// Run the policies in modelled environments and check their decisions
#[derive(Debug, clap::Args)]
// The group of the flattened arguments has the same name.
#[group(skip)]
#[command(
    after_help = "Exit code: 0 all bars hold, 1 one does not, 2 bad input. docs/scenarios.md says how to write a scenario.\n\nExamples:\n  gristmill simulate --all\n  gristmill simulate my.toml --sweep"
)]
pub struct SimulateArgs {
    #[command(flatten)]
    simulation: gristmill_scaling::ScalingArgs,
}

impl SimulateArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let holds = gristmill_scaling::run(&self.simulation, &mut output::StandardOutput)
            .map_err(ProgramFailure::usage)?;
        // The printed table names the failed checks.
        if holds { Ok(()) } else { Err(ProgramFailure::Reported(1)) }
    }
}
