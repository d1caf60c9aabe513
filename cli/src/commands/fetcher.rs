//! `gristmill fetcher`: the program `gristmill-fetcher` as a command.

use crate::program;
use gristmill_client::ProgramFailure;
use gristmill_fetcher::FetcherOptions;

/// Serve the batches of a job to a training loop, as the program gristmill-fetcher does
#[derive(Debug, clap::Args)]
pub struct FetcherArgs {
    #[command(flatten)]
    options: FetcherOptions,
    /// End when standard input closes (used by demo and run)
    #[arg(long, hide = true)]
    attended: bool,
}

impl FetcherArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        tokio::select! {
            served = gristmill_fetcher::run_with(self.options, program::operators()) => served,
            () = program::owner_ended(), if self.attended => {
                Err(ProgramFailure::failed("the program that started this fetcher has ended"))
            }
        }
    }
}
