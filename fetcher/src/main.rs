//! `gristmill-fetcher`: see [`gristmill_fetcher::main_with`].

use gristmill_pipeline::Registry;

fn main() -> std::process::ExitCode {
    gristmill_fetcher::main_with(gristmill_operators::registry().clone())
}
