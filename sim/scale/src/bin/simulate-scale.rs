//! The program `simulate-scale`: see its `--help`.

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = gristmill_scale::ScaleArgs::parse();
    match gristmill_scale::run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulate-scale: {error}");
            ExitCode::FAILURE
        }
    }
}
