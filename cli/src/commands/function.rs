//! `gristmill function NAME`: one function in its own process, built as the deployed one, or as a service on this machine
//! starts it.

#[cfg(feature = "aws")]
mod deployed;
#[cfg(not(feature = "aws"))]
#[path = "function/not_deployed.rs"]
mod deployed;

use crate::user_operators;
use gristmill_client::ProgramFailure;
use std::error::Error;

/// Name of the function that runs operators.
pub const WORKER: &str = "worker";
/// Says that a service on this machine started the process.
pub const LOCAL: &str = "--local";

/// Run one function (started by a service, or by Lambda)
#[derive(Debug, clap::Args)]
pub struct FunctionArgs {
    pub name: String,
    /// Take events from the service on this machine that started this process
    #[arg(long)]
    pub local: bool,
}

/// Runs the named function until its events end.
pub fn run(args: &FunctionArgs) -> Result<(), ProgramFailure> {
    if !args.local {
        return deployed::run(&args.name);
    }
    // Standard output has its answers to the service.
    gristmill_client::log_to_stderr("warn");
    serve(async {
        match args.name.as_str() {
            WORKER => gristmill_worker::serve_orders(user_operators::get()).await,
            name => Err(unknown(name).into()),
        }
    })
}

fn unknown(name: &str) -> String {
    format!("there is no function {name:?}")
}

fn serve(
    function: impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>>,
) -> Result<(), ProgramFailure> {
    // Splits are computed on their own threads; one thread is enough for I/O.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.map_err(ProgramFailure::failed)?.block_on(async {
        gristmill_client::survive_size_limits();
        function.await
    });
    served.map_err(ProgramFailure::failed)
}
