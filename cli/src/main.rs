//! The program, with our operators alone.

use gristmill_executor::user::Operators;
use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill::main_with(Operators::new())
}
