//! How a program logs, fails and ends: exit codes, standard error, signals and the allocator.

use gristmill_stream::{FetchError, FolderBuckets};
use std::{
    fmt,
    io::{IsTerminal as _, Write as _},
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Why a request failed, by what the caller does next; each has the exit code of a program that ends with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFailure {
    /// The request cannot be met: change the flags, the pipeline, or the file it names. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A service or a file failed: correct that, then try again. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The job's stream ended early. Exit code 1.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Ctrl-C or SIGTERM. Exit code 130 or 143.
    #[error("{0}")]
    Interrupted(Interruption),
    /// The reason was already reported; only the exit code remains.
    #[error("")]
    Reported(u8),
}

impl ProgramFailure {
    /// A [`ProgramFailure::Usage`].
    pub fn usage(message: impl ToString) -> Self {
        Self::Usage(message.to_string())
    }

    /// A [`ProgramFailure::Failed`].
    pub fn failed(message: impl ToString) -> Self {
        Self::Failed(message.to_string())
    }

    /// The exit code of a program that ends with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) | Self::Fetch(_) => 1,
            Self::Interrupted(by) => by.exit_code(),
            Self::Reported(code) => *code,
        }
    }

    /// The same, with the paths of `folders` in place of the buckets they are mounted as.
    pub fn in_words(self, folders: &FolderBuckets) -> Self {
        match self {
            Self::Usage(text) => Self::Usage(folders.in_words(&text)),
            Self::Failed(text) => Self::Failed(folders.in_words(&text)),
            Self::Fetch(error) => Self::Fetch(error.in_words(folders)),
            Self::Interrupted(_) | Self::Reported(_) => self,
        }
    }

    /// The message for a terminal: one line.
    /// None if the reason was already reported.
    pub fn line(&self) -> Option<String> {
        match self {
            Self::Reported(_) => None,
            failure => Some(printable(&failure.to_string())),
        }
    }
}

/// `text` with control characters, which names of files may hold, as `\n` or `\u{1b}`.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    shown
}

// Standard error: a program's log, and lines for people. A standard error that cannot be written to, as on
// a full disk or in a closed pipe, is no reason to end: `eprintln!` panics there.

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

// Allocator settings for a process that holds a few large buffers at a time.

/// Size from which buffers are returned to the system: buffers of batches and objects are larger.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 2 << 20;

/// Free memory kept at the end of the heap, for the frequent allocations of requests.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_BYTES: libc::c_int = 8 << 20;

/// Makes glibc return large buffers to the system when they are freed. Otherwise it keeps them after it has
/// seen a few, up to twice the memory in use. Call it first in `main`. Does nothing with other C libraries.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "libc calls that only set a number")]
    // SAFETY: mallopt takes two integers and is safe to call before other threads exist.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES);
    }
}

/// The request that ends a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Interruption {
    /// Exit code after this signal: 128 plus the signal's number.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }
}

impl std::fmt::Display for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Interrupted => "interrupted",
            Self::Terminated => "terminated",
        })
    }
}

/// Ctrl-C and SIGTERM, which no longer end the process themselves once this exists.
pub struct InterruptionSignals(Option<(Signal, Signal)>);

impl InterruptionSignals {
    /// To be called within a runtime.
    #[expect(clippy::new_without_default, reason = "it takes the signals from the process")]
    pub fn new() -> Self {
        Self(signal(SignalKind::interrupt()).ok().zip(signal(SignalKind::terminate()).ok()))
    }

    /// Resolves at the next one.
    pub async fn next(&mut self) -> Interruption {
        let Some((interrupt, terminate)) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => Interruption::Interrupted,
            _ = terminate.recv() => Interruption::Terminated,
        }
    }
}

/// Resolves at Ctrl-C or SIGTERM. After the first call, these signals no longer end the process themselves.
pub async fn interruption() -> Interruption {
    InterruptionSignals::new().next().await
}

/// Lets a write beyond a limit on the size of files (`ulimit -f`) fail, instead of ending this process: then it is treated
/// as a full disk. To be called within a runtime.
pub fn survive_size_limits() {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    const SIGXFSZ: i32 = 25;
    // The handler stays when the receiver is dropped.
    if let Err(error) = signal(SignalKind::from_raw(SIGXFSZ)) {
        tracing::debug!(%error, "a limit on the size of files would end this process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_say_who_can_correct_it() {
        assert_eq!(ProgramFailure::usage("x").exit_code(), 2);
        assert_eq!(ProgramFailure::failed("x").exit_code(), 1);
        assert_eq!(ProgramFailure::from(FetchError::JobStopped).exit_code(), 1);
        assert_eq!(ProgramFailure::Interrupted(Interruption::Interrupted).exit_code(), 130);
        assert_eq!(ProgramFailure::Interrupted(Interruption::Terminated).exit_code(), 143);
        assert_eq!(ProgramFailure::Reported(7).exit_code(), 7);
    }

    #[test]
    fn a_terminal_gets_one_line() {
        assert_eq!(
            ProgramFailure::usage("a\nb\u{1b}[1m").line().as_deref(),
            Some("a\\nb\\u{1b}[1m")
        );
        assert_eq!(ProgramFailure::Reported(1).line(), None);
    }
}
