//! Simulates the cost of coordination by number of workers: the production coordinator, worker loop, scaler and fetcher
//! in virtual time over a table that counts units and has a partition's limits. A seed determines a run.

mod args;
mod deployment;
mod figures;
mod modes;
mod partition;
mod platform;
mod report;
mod table;
mod training;

use args::Args;
use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = Args::parse();
    match modes::run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulate-scale: {error}");
            ExitCode::FAILURE
        }
    }
}
