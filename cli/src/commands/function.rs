//! The programs of a service as commands: `gristmill fetcher` is `gristmill-fetcher`; `gristmill function NAME` is one
//! function in its own process, built as the deployed one, or as a service on this machine starts it.

use crate::program;
use gristmill_client::ProgramFailure;
use gristmill_fetcher::FetcherOptions;
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
            WORKER => gristmill_worker::serve_orders(program::operators()).await,
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

/// The functions of a stack on AWS.
#[cfg(feature = "aws")]
mod deployed {
    use super::{WORKER, serve, unknown};
    use crate::program;
    use gristmill_aws::{Aws, StackSettings, function_memory_mb};
    use gristmill_client::ProgramFailure;
    use gristmill_coordinator::CoordinatorFunction;
    use gristmill_scaler::ScalerFunction;
    use gristmill_worker::WorkerFunction;

    type Served = Result<(), lambda_runtime::Error>;

    /// Runs the function `name` until its events end.
    pub fn run(name: &str) -> Result<(), ProgramFailure> {
        lambda_runtime::tracing::init_default_subscriber();
        serve(async {
            match name {
                WORKER => worker().await,
                "coordinator" => coordinator().await,
                "scaler" => scaler().await,
                name => Err(unknown(name).into()),
            }
        })
    }

    async fn coordinator() -> Served {
        let coordinator = CoordinatorFunction::from_settings(
            &StackSettings::from_env()?,
            &Aws::from_function_env()?,
        )?;
        gristmill_coordinator::serve(coordinator).await
    }

    async fn scaler() -> Served {
        let scaler =
            ScalerFunction::from_settings(&StackSettings::from_env()?, &Aws::from_function_env()?)?;
        gristmill_scaler::serve(scaler).await
    }

    async fn worker() -> Served {
        let (settings, aws) = (StackSettings::from_env()?, Aws::from_function_env()?);
        let memory_mb = function_memory_mb();
        gristmill_worker::serve(WorkerFunction::from_settings(
            &settings,
            &aws,
            memory_mb,
            program::operators(),
        )?)
        .await
    }
}

/// The refusal of a program that is not built for AWS.
#[cfg(not(feature = "aws"))]
mod deployed {
    use gristmill_client::{ProgramFailure, needs_aws};

    /// Refuses the function `name`.
    pub fn run(name: &str) -> Result<(), ProgramFailure> {
        needs_aws(&format!("function {name}"))
    }
}

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
