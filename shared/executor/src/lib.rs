//! Runs a pipeline over one split: source bytes in, one chunk object out.
//!
//! [`Program::compile`] turns a checked pipeline into steps once; [`Program::run_split`] runs them
//! over the records of a split with scratch buffers that are reused from element to element and
//! from split to split. Rows are computed in place in the batch they are delivered in. The output
//! is a function of pipeline, seed, epoch and records, and of nothing else: not of what ran before,
//! nor where. Synchronous; no I/O, and no clock but to time the operators.

mod assets;
mod cell;
mod compiler;
mod element;
mod error;
mod metrics;
mod ops;
mod program;
mod random;
mod run;
pub mod sources;
mod staging;
mod step;
pub mod user;

pub use assets::Assets;
pub use compiler::Compiler;
pub use error::ExecError;
pub use metrics::OpMetrics;
pub use program::Program;
pub use run::{Part, Pick, Scratch, SplitInput, SplitOutput};

/// The numerics class of this build: workers of one class give equal bytes. It names what the bytes
/// of a pipeline depend on beside its operators' versions: architecture, decoder and resizer.
pub const NUMERICS: &str = if cfg!(target_arch = "x86_64") {
    "x86_64/libjpeg-turbo-rs-0.9/fast_image_resize-6.1"
} else if cfg!(target_arch = "aarch64") {
    "aarch64/libjpeg-turbo-rs-0.9/fast_image_resize-6.1"
} else {
    "other/libjpeg-turbo-rs-0.9/fast_image_resize-6.1"
};
