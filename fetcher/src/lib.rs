//! `gristmill-fetcher`: the trainer's side of a job as a program of its own, over [`gristmill_client`] and [`gristmill_serve`].
//!
//! A program with operators of one's own calls [`main_with`]. A program that has this one as a command calls
//! [`run_with`].

#![deny(clippy::print_stderr)]

mod program;
mod socket;

pub use program::{FetcherOptions, LOG, main_with, run_with};
