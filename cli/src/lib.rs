//! `gristmill`: everything a person does, as one program.
//!
//! A program with operators of one's own is this one line, built in a crate of its own; the functions of
//! its local service are that program too:
//!
//! ```no_run
//! use gristmill_executor::user::Operators;
//!
//! fn main() -> std::process::ExitCode {
//!     let operators = Operators::new(); // .with::<MyOperator>()
//!     gristmill::main_with(operators)
//! }
//! ```

mod args;
mod attach;
mod bench;
mod buckets;
mod cache;
mod doctor;
mod explain;
mod failure;
mod function;
mod job;
mod operators;
mod output;
mod plan;
mod sample;
mod skipped;
mod status;
mod train;
mod up;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;
use gristmill_executor::user::Operators;
use std::{process::ExitCode, time::Duration};

/// Runs the command line of this process, with operators of users beside ours.
pub fn main_with(operators: Operators) -> ExitCode {
    operators::set(operators);
    gristmill_client::return_large_buffers();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked) => return explained(&asked),
    };
    if let Command::Function { name } = &cli.command {
        return finish(function::run(name));
    }
    // A run reports what matters itself; the service's log is for operators of a service.
    let keeps_service = matches!(&cli.command, Command::Up(args) if !args.attended);
    gristmill_client::log_to_stderr(if keeps_service { "error" } else { "off" });
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

/// Runs this process as the worker function, with operators of users beside ours: what a deployed worker's
/// `bootstrap` is that has them.
pub fn worker_with(operators: Operators) -> ExitCode {
    operators::set(operators);
    finish(function::run(function::WORKER))
}

async fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(args) => train::demo(args).await,
        Command::Run(args) => train::run(args).await,
        Command::Up(args) if args.attended => up::tell_owner(up::run(args).await),
        Command::Up(args) => up::run(args).await,
        Command::Status(args) => status::status(args).await,
        Command::Stop(args) => status::stop(args).await,
        Command::Forget(args) => status::forget(args).await,
        Command::Cache(args) => cache::run(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Explain(args) => explain::run(&args).await,
        Command::Plan(args) => plan::run(&args).await,
        Command::Simulate(args) => simulate(&args),
        Command::Bench(args) => bench::run(args).await,
        Command::Function { .. } => Ok(()),
    }
}

/// Prints what clap answers without running anything: help, the version, or why the command line
/// cannot be understood.
fn explained(asked: &clap::Error) -> ExitCode {
    let code = u8::try_from(asked.exit_code()).unwrap_or(2);
    let printed = asked.print();
    if !asked.use_stderr() {
        output::note(printed);
    }
    match output::check() {
        Ok(()) => ExitCode::from(code),
        failed => finish(failed),
    }
}

fn simulate(args: &gristmill_scaling::Args) -> Result<(), Failure> {
    use gristmill_scaling::Outcome;
    match gristmill_scaling::run(args, &mut output::Output).map_err(Failure::usage)? {
        Outcome::Held => Ok(()),
        // The table names those that do not hold.
        Outcome::Failed => Err(Failure { code: 1, message: String::new() }),
    }
}

/// Names of files may hold anything: what is no text goes to no terminal.
fn one_line(message: &str) -> String {
    message.replace(|c: char| c.is_control(), " ")
}

/// One line on standard error, and the exit code that says whose fault it was.
fn finish(outcome: Result<(), Failure>) -> ExitCode {
    match outcome.and_then(|()| output::check()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("gristmill: {}", one_line(&failure.message));
            }
            ExitCode::from(failure.code)
        }
    }
}
