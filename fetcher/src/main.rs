//! `gristmill-fetcher`: see [`gristmill_fetcher::main_with`].

fn main() -> std::process::ExitCode {
    gristmill_fetcher::main_with(gristmill_operators::registry().clone())
}
