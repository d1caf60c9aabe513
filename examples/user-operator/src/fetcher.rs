//! `gristmill-fetcher` with this crate's operators: the trainer's side of jobs that use them.
//!
//!     cargo run --release --package gristmill-user-operator --bin gristmill-cutout-fetcher -- --help

use std::process::ExitCode;

fn main() -> ExitCode {
    match gristmill_user_operator::operators() {
        Ok(operators) => gristmill_fetcher::main_with(operators),
        Err(error) => {
            eprintln!("gristmill-fetcher: {error}");
            ExitCode::FAILURE
        }
    }
}
