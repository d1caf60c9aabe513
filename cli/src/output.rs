//! Standard output, whose reader may have gone: `| head` is no reason to fail, nor to leave a service behind.

use std::{
    fmt,
    io::{ErrorKind, Write as _, stdout},
};

/// Writes what is for the reader of standard output, if there still is one.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("gristmill: standard output cannot be written: {error}");
        }
        _ => {}
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
