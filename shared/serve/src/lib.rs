//! Serves a job's batches to the ranks of a trainer over sockets or pipes.
//!
//! [`RankServer`] gives each connected rank its batches and takes their acknowledgements, [`framing`] is the protocol, and
//! [`cursor`] keeps the place of the stream in a file.

#![deny(clippy::print_stderr)]

pub mod cursor;
pub mod framing;
mod server;

pub use server::{
    ConnectedClient, RankServer, ServeError, ServedCounts, ServerActivity, StartCandidates,
    error_frame, kept,
};
