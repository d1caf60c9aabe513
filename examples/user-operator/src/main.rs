//! `gristmill` with this crate's operators: the command line, and the functions of its local service.
//!
//!     cargo run --release --package gristmill-user-operator -- demo --pipeline examples/user-operator/cutout.yaml

use std::process::ExitCode;

fn main() -> ExitCode {
    match gristmill_user_operator::operators() {
        Ok(operators) => gristmill::main_with(operators),
        Err(error) => {
            eprintln!("gristmill: {error}");
            ExitCode::FAILURE
        }
    }
}
