//! Compiles pipelines with the assets that their operators need.

use crate::{CompiledPipeline, ExecError};
use gristmill_kernel::{AssetLoader, NoAssets};
use gristmill_pipeline::Pipeline;

/// Compiles pipelines. The default has no assets and fuses operators.
#[derive(Clone, Copy)]
pub struct PipelineCompiler<'a> {
    pub(crate) assets: &'a dyn AssetLoader,
    pub(crate) fuse: bool,
}

impl std::fmt::Debug for PipelineCompiler<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Compiler").field("fuse", &self.fuse).finish_non_exhaustive()
    }
}

impl Default for PipelineCompiler<'_> {
    fn default() -> Self {
        PipelineCompiler { assets: &NoAssets, fuse: true }
    }
}

impl<'a> PipelineCompiler<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets where operators find files by the hash of their content.
    #[must_use]
    pub fn assets(self, assets: &'a dyn AssetLoader) -> Self {
        PipelineCompiler { assets, ..self }
    }

    /// Makes every operator a step of its own. Slower, with the same output and separate metrics
    /// for each operator.
    #[must_use]
    pub fn apart(self) -> Self {
        PipelineCompiler { fuse: false, ..self }
    }

    /// Compiles a pipeline.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if this build cannot run the pipeline, or if a file that an operator
    /// needs is missing or not as expected. [`ExecError::Output`] if its tensors cannot be stored.
    pub fn compile(&self, pipeline: &Pipeline) -> Result<CompiledPipeline, ExecError> {
        CompiledPipeline::compile_with(pipeline, self)
    }
}
