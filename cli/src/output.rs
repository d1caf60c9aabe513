//! Standard output, whose reader may have gone: `| head` is no reason to fail, nor to leave a service behind.
//! A disk that is full is one: what was asked for has reached nobody.

use gristmill_client::Failure;
use std::{
    fmt,
    io::{self, ErrorKind, Write, stdout},
    sync::OnceLock,
};

/// Why standard output could not be written, the first time.
static FAILED: OnceLock<String> = OnceLock::new();

/// Writes what is for the reader of standard output, if there still is one.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    note(out.write_fmt(text).and_then(|()| out.flush()));
}

/// Remembers a failure, unless it only says that the reader has gone.
pub fn note(outcome: io::Result<()>) {
    if let Err(error) = outcome
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error.to_string());
    }
}

/// Standard output for code that writes to a [`Write`]; failures are reported by [`check`].
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        note(stdout().lock().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        note(stdout().lock().flush());
        Ok(())
    }
}

/// Fails if something that was said so far reached nobody.
///
/// # Errors
/// Exit code 1, and why.
pub fn check() -> Result<(), Failure> {
    match FAILED.get() {
        Some(error) => Err(Failure::failed(format!("standard output cannot be written: {error}"))),
        None => Ok(()),
    }
}

/// A line.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Text that ends its lines itself.
macro_rules! say_all {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

pub(crate) use {say, say_all};
