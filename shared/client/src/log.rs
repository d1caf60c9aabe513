//! The log of a program.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Writes this process's log to standard error, filtered by `RUST_LOG`, or else by `default_filter`.
pub fn log_to_stderr(default_filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default_filter.into());
    let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let colours = !plain && std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours);
    log.with_env_filter(filter).init();
}
