//! Calls and table units of several fetchers of one run, in virtual time.

use super::ProgramFailure;

#[derive(Debug, clap::Args)]
// The group of the flattened arguments has the same name.
#[group(skip)]
#[command(
    after_help = "The production coordinator, workers and fetchers run over a metered table with DynamoDB's limits. A row is one number\nof readers and of workers; every rank takes a batch at each step. Bars: 5 polls a second of the reader that leads,\nand up to 20 if there are few, 250 of all others, 250 reports, a partition's limits, and units a step of polls that grow by 25 % at most with workers.\n\nExit code: 0 all bars hold, 1 one does not, 2 bad usage.\n\nExamples:\n  gristmill bench readers --readers 1,8,64,256\n  gristmill bench readers --readers 32 --workers 100 --calls"
)]
pub struct BenchReadersArgs {
    #[cfg(feature = "readers")]
    #[command(flatten)]
    bench: gristmill_scale::readers::ReaderCostArgs,
    #[cfg(not(feature = "readers"))]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    ignored: Vec<String>,
}

#[cfg(feature = "readers")]
pub async fn run(BenchReadersArgs { bench }: BenchReadersArgs) -> Result<(), ProgramFailure> {
    // Virtual time has a runtime of its own, which cannot run inside this one.
    let measured = tokio::task::spawn_blocking(move || {
        gristmill_scale::readers::run(&bench, &mut crate::output::StandardOutput)
            .map_err(|error| error.to_string())
    });
    let meets_bars =
        measured.await.map_err(ProgramFailure::failed)?.map_err(ProgramFailure::failed)?;
    // The printed lines name the missed bars.
    if meets_bars { Ok(()) } else { Err(ProgramFailure::Reported(1)) }
}

/// Refuses: this program is built without the simulation.
#[cfg(not(feature = "readers"))]
pub async fn run(BenchReadersArgs { ignored: _ }: BenchReadersArgs) -> Result<(), ProgramFailure> {
    let missing = gristmill_ports::without_feature("readers");
    Err(ProgramFailure::usage(format!("bench readers: {missing}")))
}
