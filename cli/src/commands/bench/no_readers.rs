//! The refusal of a program that is built without the simulation.

use gristmill_client::Failure;
use gristmill_ports::without_feature;

#[derive(Debug, clap::Args)]
pub struct BenchReadersArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    ignored: Vec<String>,
}

pub async fn run(BenchReadersArgs { ignored: _ }: BenchReadersArgs) -> Result<(), ProgramFailure> {
    Err(ProgramFailure::usage(format!("bench readers: {}", without_feature("readers"))))
}
