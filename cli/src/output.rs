//! Standard output. A reader that has gone, as with `| head`, is no reason to fail, nor to leave a
//! service behind. A full disk is a failure: the output did not reach its reader.

use gristmill_client::ProgramFailure;
use std::{
    fmt,
    io::{self, ErrorKind, Write, stdout},
    sync::OnceLock,
};

/// The first error of a write to standard output.
static FAILED: OnceLock<String> = OnceLock::new();

/// Writes to standard output, unless its reader has gone.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    note(out.write_fmt(text).and_then(|()| out.flush()));
}

/// Records a failure, unless it only means that the reader has gone.
pub fn note(outcome: io::Result<()>) {
    if let Err(error) = outcome
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error.to_string());
    }
}

/// Standard output for code that writes to a [`Write`]; failures are reported by [`check`].
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        note(stdout().lock().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        note(stdout().lock().flush());
        Ok(())
    }
}

/// Fails if any output so far could not be written.
pub fn check() -> Result<(), ProgramFailure> {
    FAILED.get().map_or(Ok(()), |error| {
        Err(ProgramFailure::failed(format!("standard output cannot be written: {error}")))
    })
}

/// Writes a line.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes text that has its own line ends.
macro_rules! say_all {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

pub(crate) use {say, say_all};
