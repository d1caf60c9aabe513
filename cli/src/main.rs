//! The program, with our operators alone.

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill::main_with(gristmill_operators::registry().clone())
}
