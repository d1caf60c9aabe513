//! `gristmill-fetcher`: the trainer's side of a job as a program of its own, over [`gristmill_client`].
//!
//! A program with operators of one's own calls [`main_with`].

mod options;
mod program;
mod ranked;
mod ranks;
mod socket;

pub use program::main_with;
