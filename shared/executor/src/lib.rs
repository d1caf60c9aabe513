//! Runs a pipeline over one split: source bytes in, one chunk object out.
//!
//! [`CompiledPipeline::compile`] turns a checked pipeline into steps once. [`CompiledPipeline::run_split`] runs them
//! over the records of a split, with scratch buffers that are reused for all elements and splits.
//! Rows are computed in place in their batch. The output depends only on pipeline, seed, epoch and
//! records, not on earlier runs or the machine. [`CompiledPipeline::resume_split`] makes the same object
//! from elements that a run captured at a cache point. The crate is synchronous, does no I/O, and
//! reads the clock only to time operators and waits.

mod cached_split;
mod element;
mod exchange;
mod finisher;
mod kernels;
mod program;
mod split;
mod split_execution;
mod staging;
mod step;
mod zip;

pub use cached_split::ResumeInput;
pub use exchange::{IMAGE_SIZES, REFUSED_OP, has_image_size};
pub use finisher::BatchFinisher;
pub use gristmill_kernel::AssetLoader;
pub use program::{CompiledPipeline, PipelineCompiler};
pub use split::ExecError;
pub use split::{
    CACHED_PART_BYTES, InputRange, OpMetrics, RecordPick, SplitInput, SplitOutput, ZippedInput,
};
pub use split_execution::{ExecutorScratch, UnfinishedSplit};

/// Libraries that decode, resize and tokenise: with the versions of operators, they determine the
/// bytes of a pipeline. Our own kernels are covered by the operator versions.
macro_rules! class_of {
    ($architecture:literal) => {
        concat!(
            $architecture,
            "/libjpeg-turbo-rs-0.9/fast_image_resize-6.1/png-0.18/image-webp-0.2/tokenizers-0.23"
        )
    };
}

/// The numerics class of this build, which begins with the architecture. Workers of one class
/// produce equal bytes.
pub const NUMERICS: &str = if cfg!(target_arch = "x86_64") {
    class_of!("x86_64")
} else if cfg!(target_arch = "aarch64") {
    class_of!("aarch64")
} else {
    class_of!("other")
};
