//! Drives the whole system from outside: starts programs as a user does, and recounts deliveries from
//! their bytes.

mod commands;
mod frames;
mod programs;
mod recount;

pub use commands::assert_documented;
pub use frames::{FrameReader, Received, read_frames};
pub use programs::{Background, TestDir, ensure_python, files_below, run_json};
pub use recount::{Delivered, read_numbers, read_sink};
