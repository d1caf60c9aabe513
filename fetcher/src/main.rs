//! `gristmill-fetcher`: see [`gristmill_fetcher::main_with`].

use gristmill_executor::user::Operators;

fn main() -> std::process::ExitCode {
    gristmill_fetcher::main_with(Operators::new())
}
