//! Driving the whole system from outside: programs as a user starts them, deliveries recounted from
//! their bytes.

mod commands;
mod frames;
mod programs;
mod recount;

pub use commands::assert_documented;
pub use frames::{FrameReader, Received, read_frames};
pub use programs::{Background, TestDir, run_json};
pub use recount::{Delivered, read_numbers, read_sink};
