//! Runs a pipeline over one split: source bytes in, one chunk object out.
//!
//! [`Program::compile`] turns a checked pipeline into steps once; [`Program::run_split`] runs them
//! over the records of a split with scratch buffers that are reused from element to element and
//! from split to split. Rows are computed in place in the batch they are delivered in. The output
//! is a function of pipeline, seed, epoch and records, and of nothing else: not of what ran before,
//! nor where. [`Program::resume_split`] makes the same object of what a run put aside at a place to
//! cache. Synchronous; no I/O, and no clock but to time the operators.

mod cache_point;
mod capture;
mod compiler;
mod element;
#[cfg(test)]
mod equality;
mod error;
mod finisher;
mod kernels;
mod metrics;
mod program;
mod resume;
mod run;
mod split;
mod staging;
mod step;
mod steps;
mod wait;
mod zip;

pub use compiler::Compiler;
pub use error::ExecError;
pub use finisher::Finisher;
pub use gristmill_kernel::Assets;
pub use metrics::OpMetrics;
pub use program::Program;
pub use resume::ResumeInput;
pub use run::{Scratch, Unfinished};
pub use split::{CACHED_PART_BYTES, Part, Pick, SplitInput, SplitOutput, Zipped};

/// What the bytes of a pipeline depend on beside its operators' versions: who decodes, resizes and
/// tokenises. Our own kernels are covered by those versions.
macro_rules! class_of {
    ($architecture:literal) => {
        concat!(
            $architecture,
            "/libjpeg-turbo-rs-0.9/fast_image_resize-6.1/png-0.18/image-webp-0.2/tokenizers-0.23"
        )
    };
}

/// The numerics class of this build: workers of one class give equal bytes. It begins with the
/// architecture.
pub const NUMERICS: &str = if cfg!(target_arch = "x86_64") {
    class_of!("x86_64")
} else if cfg!(target_arch = "aarch64") {
    class_of!("aarch64")
} else {
    class_of!("other")
};
