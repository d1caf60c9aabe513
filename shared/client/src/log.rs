//! Standard error: a program's log, and lines for people. A standard error that cannot be written to, as on
//! a full disk or in a closed pipe, is no reason to end: `eprintln!` panics there.

use std::{
    fmt,
    io::{IsTerminal as _, Write as _},
};
use tracing_subscriber::EnvFilter;

/// Writes this process's log to standard error, filtered by `RUST_LOG`, or else by `default_filter`.
pub fn log_to_stderr(default_filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default_filter.into());
    let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let colours = !plain && std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours);
    let log = log.log_internal_errors(false);
    log.with_env_filter(filter).init();
}

/// Writes to standard error as far as that is possible. See [`complain!`](crate::complain).
pub fn write_stderr(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Writes a line to standard error as far as that is possible.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => { $crate::write_stderr(format_args!("{}\n", format_args!($($text)*))) };
}
