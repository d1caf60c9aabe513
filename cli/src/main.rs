//! `gristmill`: everything a person does, as one program.

mod args;
mod attach;
mod bench;
mod dataset;
mod doctor;
mod explain;
mod failure;
mod function;
mod job;
mod plan;
mod sample;
mod skipped;
mod status;
mod train;
mod up;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;
use std::{process::ExitCode, time::Duration};

fn main() -> ExitCode {
    gristmill_fetcher::return_large_buffers();
    let cli = Cli::parse();
    if let Command::Function { name } = &cli.command {
        return finish(function::run(name));
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| "error".into()),
        )
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(run(cli));
            // A thread that waits for a lock must not keep an interrupted program.
            runtime.shutdown_timeout(Duration::from_secs(1));
            outcome
        }
        Err(error) => Err(Failure::failed(format!("cannot start: {error}"))),
    };
    finish(outcome)
}

async fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(args) => train::demo(args).await,
        Command::Run(args) => train::run(args).await,
        Command::Up(args) => up::run(args).await,
        Command::Status(args) => status::status(args).await,
        Command::Stop(args) => status::stop(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Explain(args) => explain::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Simulate(args) => simulate(&args),
        Command::Bench(args) => bench::run(args).await,
        Command::Function { .. } => Ok(()),
    }
}

fn simulate(args: &gristmill_scenario::Args) -> Result<(), Failure> {
    use gristmill_scenario::Outcome;
    match gristmill_scenario::run(args, &mut std::io::stdout()).map_err(Failure::usage)? {
        Outcome::Held => Ok(()),
        // The table names those that do not hold.
        Outcome::Failed => Err(Failure { code: 1, message: String::new() }),
    }
}

/// One line on standard error, and the exit code that says whose fault it was.
fn finish(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("gristmill: {}", failure.message.replace(['\n', '\r'], " "));
            }
            ExitCode::from(failure.code)
        }
    }
}
