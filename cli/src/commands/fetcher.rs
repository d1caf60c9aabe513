//! `gristmill fetcher`: the program `gristmill-fetcher` as a command.

use crate::{owner, user_operators};
use gristmill_client::Failure;
use gristmill_fetcher::Options;

/// Serve the batches of a job to a training loop, as the program gristmill-fetcher does
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// End when standard input closes (used by demo and run)
    #[arg(long, hide = true)]
    attended: bool,
}

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        tokio::select! {
            served = gristmill_fetcher::run_with(self.options, user_operators::get()) => served,
            () = owner::gone(), if self.attended => {
                Err(Failure::failed("the program that started this fetcher has ended"))
            }
        }
    }
}
