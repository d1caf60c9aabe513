//! `gristmill function NAME`: one function in its own process, built as the deployed one, or as a service on this machine
//! starts it.

use crate::user_operators;
use gristmill_aws::{Aws, Settings, function_memory_mb};
use gristmill_client::Failure;
use gristmill_coordinator::Coordinator;
use gristmill_scaler::Scaler;
use gristmill_worker::WorkerFunction;

/// Name of the function that runs operators.
pub const WORKER: &str = "worker";
/// Says that a service on this machine started the process.
pub const LOCAL: &str = "--local";

/// Run one function (started by a service, or by Lambda)
#[derive(Debug, clap::Args)]
pub struct Args {
    pub name: String,
    /// Take events from the service on this machine that started this process
    #[arg(long)]
    pub local: bool,
}

type Served = Result<(), lambda_runtime::Error>;

/// Runs the named function until its events end.
pub fn run(args: &Args) -> Result<(), Failure> {
    match args.local {
        // Standard output has its answers to the service.
        true => gristmill_client::log_to_stderr("warn"),
        false => lambda_runtime::tracing::init_default_subscriber(),
    }
    // Splits are computed on their own threads; one thread is enough for I/O.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.map_err(Failure::failed)?.block_on(async {
        gristmill_client::signals::survive_size_limits();
        match (args.name.as_str(), args.local) {
            (WORKER, true) => gristmill_worker::serve_orders(user_operators::get()).await,
            (WORKER, false) => worker().await,
            ("coordinator", false) => coordinator().await,
            ("scaler", false) => scaler().await,
            (name, _) => Err(format!("there is no function {name:?}").into()),
        }
    });
    served.map_err(Failure::failed)
}

async fn coordinator() -> Served {
    let coordinator = Coordinator::from_settings(&Settings::from_env()?, &Aws::of_function()?)?;
    gristmill_coordinator::serve(coordinator).await
}

async fn scaler() -> Served {
    let scaler = Scaler::from_settings(&Settings::from_env()?, &Aws::of_function()?)?;
    gristmill_scaler::serve(scaler).await
}

async fn worker() -> Served {
    let (settings, aws) = (Settings::from_env()?, Aws::of_function()?);
    let memory_mb = function_memory_mb();
    gristmill_worker::serve(WorkerFunction::from_settings(
        &settings,
        &aws,
        memory_mb,
        user_operators::get(),
    )?)
    .await
}
