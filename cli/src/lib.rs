//! `gristmill`: the command-line program.
//!
//! A program with operators of a user is this one line in a crate of its own; it also runs the
//! functions of its local service:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let operators = gristmill_operators::registry().clone(); // .with::<MyOperator>()?
//!     gristmill::main_with(operators)
//! }
//! ```

#![deny(clippy::print_stderr)]

mod commands;
mod output;
mod program;
mod sample;
mod service;
mod training;

use clap::Parser;
use commands::{CliCommand, function};
use gristmill_client::{AuthoredPipeline, ProgramFailure, ServiceLauncher};
use gristmill_pipeline::OperatorRegistry;
use gristmill_ports::{Clock, SystemClock};
use std::{ffi::OsString, path::Path, process::ExitCode, time::Duration};

/// Serverless input-data preprocessing for machine-learning training.
///
/// Functions decode, crop, augment and batch; the trainer stops waiting. By default everything runs on this
/// machine: start with `gristmill demo`.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

/// Runs the command line of this process, with `operators`.
pub fn main_with(operators: OperatorRegistry) -> ExitCode {
    ExitCode::from(run_args(std::env::args_os(), operators))
}

/// Runs the command line `args`, whose first is the program's name, in a process that `launcher` starts. Returns
/// the exit code.
pub fn main_of(
    launcher: ServiceLauncher,
    args: impl IntoIterator<Item = OsString>,
    operators: OperatorRegistry,
) -> u8 {
    program::set_launcher(launcher);
    run_args(args, operators)
}

fn run_args(args: impl IntoIterator<Item = OsString>, operators: OperatorRegistry) -> u8 {
    program::set_operators(operators);
    gristmill_client::return_large_buffers();
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(asked) => return explained(&asked),
    };
    if let CliCommand::Function(args) = &cli.command {
        return finish(function::run(args));
    }
    // A run reports what matters itself; the service's log is for those who operate a service.
    gristmill_client::log_to_stderr(match &cli.command {
        CliCommand::Up(args) if args.is_by_hand() => "error",
        CliCommand::Fetcher(_) => gristmill_fetcher::LOG,
        _ => "off",
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(async {
                gristmill_client::survive_size_limits();
                cli.command.run().await
            });
            // A thread that waits for a lock must not keep an interrupted program alive.
            runtime.shutdown_timeout(Duration::from_secs(1));
            outcome
        }
        Err(error) => Err(ProgramFailure::failed(format!("cannot start: {error}"))),
    };
    finish(outcome)
}

/// Runs this process as the worker function with `operators`: the `bootstrap` of a deployed worker
/// that has operators of a user.
pub fn worker_with(operators: OperatorRegistry) -> ExitCode {
    program::set_operators(operators);
    let args = function::FunctionArgs { name: function::WORKER.to_owned(), local: false };
    ExitCode::from(finish(function::run(&args)))
}

/// Prints clap's own output without running anything: help, version, or a parse error.
fn explained(asked: &clap::Error) -> u8 {
    let code = u8::try_from(asked.exit_code()).unwrap_or(2);
    let printed = asked.print();
    if !asked.use_stderr() {
        output::note(printed);
    }
    match output::check() {
        Ok(()) => code,
        failed => finish(failed),
    }
}

/// Reads and checks a pipeline file and the files that it names.
fn read_pipeline(path: &Path) -> Result<AuthoredPipeline, ProgramFailure> {
    AuthoredPipeline::read(path, &program::operators()).map_err(ProgramFailure::usage)
}

fn thread_cpu() -> Duration {
    SystemClock.thread_cpu()
}

/// Prints a failure as one line on standard error; returns the exit code, which says whose fault it
/// was.
fn finish(outcome: Result<(), ProgramFailure>) -> u8 {
    match outcome.and_then(|()| output::check()) {
        Ok(()) => 0,
        Err(failure) => {
            if let Some(line) = failure.line() {
                gristmill_client::complain!("gristmill: {line}");
            }
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
