//! `simulate`, the command as a program. Exit codes: 0 all bars hold, 1 one is missed, 2 bad input.

use clap::Parser;
use gristmill_scaling::{Args, Outcome, run};
use std::{io, process::ExitCode};

#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.args, &mut io::stdout()) {
        Ok(Outcome::Held) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::from(2)
        }
    }
}
